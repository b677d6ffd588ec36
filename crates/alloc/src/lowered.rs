//! The graph as an allocator sees it: the caller's tensors plus the copies and keep nodes that a scheduler adds.
//!
//! An overlay: it refers to the caller's [`Graph`] and never changes it.

use loadmaster_graph::{DeviceId, Flags, Graph, Op, TensorId, define_id};

define_id! {
    /// Something an allocator walks over: a tensor of the graph, a copy, or a keep node.
    pub ItemId, "i";
    /// A place of the list of buffer types that a graph allocator was made with. Node and leaf buffer ids are these.
    pub ArenaId, "arena";
}

/// What an item stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A tensor of the graph.
    Tensor(TensorId),
    /// Copy number `copy` of a tensor for a device.
    Copy {
        /// The original.
        of: TensorId,
        /// The device it is copied to.
        device: DeviceId,
        /// Which of the pipeline copies.
        copy: u32,
    },
    /// A node without operation that only keeps a tensor alive.
    Keep(TensorId),
}

impl Origin {
    /// The tensor whose type, extents and strides the item has.
    #[inline]
    #[must_use]
    pub const fn tensor(self) -> TensorId {
        match self {
            Self::Tensor(t) | Self::Keep(t) | Self::Copy { of: t, .. } => t,
        }
    }
}

/// One item.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Item {
    /// What it stands for.
    pub origin: Origin,
    /// Its operation (`NONE` for copies and keep nodes).
    pub op: Op,
    /// Its flags (pipelined copies are inputs and outputs).
    pub flags: Flags,
    /// It is in a buffer already, or has memory of its own: never placed (rule 4.1).
    pub has_memory: bool,
    /// The item that owns its bytes, for a view.
    pub root: Option<ItemId>,
    first_source: u32,
    source_count: u16,
}

/// Nodes and leafs in the order in which the allocator walks them (rule 3).
#[derive(Clone, Debug, PartialEq)]
pub struct AllocGraph<'g> {
    graph: &'g Graph,
    items: Vec<Item>,
    sources: Vec<Option<ItemId>>,
    nodes: Vec<ItemId>,
    leafs: Vec<ItemId>,
}

impl<'g> AllocGraph<'g> {
    /// An empty overlay of `graph`: every tensor is an item with the same index, nothing is a node or a leaf yet.
    /// `has_memory` says which tensors are in a buffer already or have memory of their own.
    #[must_use]
    pub fn overlay(graph: &'g Graph, mut has_memory: impl FnMut(TensorId) -> bool) -> Self {
        let topology = graph.topology();
        let mut sources = Vec::with_capacity(graph.tensors().len() * 2);
        let items = graph
            .tensors()
            .ids()
            .map(|id| {
                let link = topology.link(id);
                let src = topology.sources(id);
                let first_source = sources.len() as u32;
                sources.extend(src.iter().map(|s| s.map(ItemId::of)));
                Item {
                    origin: Origin::Tensor(id),
                    op: link.op,
                    flags: link.flags,
                    has_memory: has_memory(id),
                    root: link.root.map(ItemId::of),
                    first_source,
                    source_count: src.len() as u16,
                }
            })
            .collect();
        Self { graph, items, sources, nodes: Vec::new(), leafs: Vec::new() }
    }

    /// The graph as it stands: its own nodes and leafs, nothing added.
    #[must_use]
    pub fn of(graph: &'g Graph, has_memory: impl FnMut(TensorId) -> bool) -> Self {
        let mut this = Self::overlay(graph, has_memory);
        this.nodes = graph.nodes().values().map(|&t| ItemId::of(t)).collect();
        this.leafs = graph.leafs().values().map(|&t| ItemId::of(t)).collect();
        this
    }

    /// Adds a copy of a tensor. It has no sources and no memory yet.
    pub fn add_copy(&mut self, of: TensorId, device: DeviceId, copy: u32, flags: Flags) -> ItemId {
        self.add(Origin::Copy { of, device, copy }, flags, None)
    }

    /// Adds a keep node: its only source is the tensor.
    pub fn add_keep(&mut self, tensor: TensorId) -> ItemId {
        self.add(Origin::Keep(tensor), Flags::NONE, Some(ItemId::of(tensor)))
    }

    fn add(&mut self, origin: Origin, flags: Flags, source: Option<ItemId>) -> ItemId {
        let id = ItemId::new(self.items.len());
        let first_source = self.sources.len() as u32;
        self.sources.extend(source.map(Some));
        let source_count = u16::from(source.is_some());
        self.items.push(Item {
            origin,
            op: Op::None,
            flags,
            has_memory: false,
            root: None,
            first_source,
            source_count,
        });
        id
    }

    /// Lets operand `operand` of `user` read `item` instead (a node that reads a copy).
    pub fn set_source(&mut self, user: ItemId, operand: usize, item: ItemId) {
        let first = self.items[user.index()].first_source as usize;
        self.sources[first + operand] = Some(item);
    }

    /// Sets the flags of an item.
    pub fn set_flags(&mut self, item: ItemId, flags: Flags) {
        self.items[item.index()].flags = flags;
    }

    /// Appends a node.
    pub fn push_node(&mut self, item: ItemId) {
        self.nodes.push(item);
    }

    /// Appends a leaf.
    pub fn push_leaf(&mut self, item: ItemId) {
        self.leafs.push(item);
    }

    /// The graph below.
    #[must_use]
    pub fn graph(&self) -> &'g Graph {
        self.graph
    }
    /// All items; ids below the graph's tensor count are the tensors.
    #[inline]
    #[must_use]
    pub fn items(&self) -> &[Item] {
        &self.items
    }
    /// One item.
    #[inline]
    #[must_use]
    pub fn item(&self, id: ItemId) -> &Item {
        &self.items[id.index()]
    }
    /// The sources of an item, holes included.
    #[inline]
    #[must_use]
    pub fn sources(&self, id: ItemId) -> &[Option<ItemId>] {
        let item = &self.items[id.index()];
        let first = item.first_source as usize;
        &self.sources[first..first + item.source_count as usize]
    }
    /// Nodes in execution order.
    #[must_use]
    pub fn nodes(&self) -> &[ItemId] {
        &self.nodes
    }
    /// Leafs in placement order.
    #[must_use]
    pub fn leafs(&self) -> &[ItemId] {
        &self.leafs
    }
}

impl ItemId {
    /// The item of a tensor of the graph.
    #[inline]
    #[must_use]
    pub fn of(tensor: TensorId) -> Self {
        Self::new(tensor.index())
    }
}

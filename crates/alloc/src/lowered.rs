//! The graph as an allocator sees it: the caller's tensors plus the copies and keep nodes that a scheduler adds.
//!
//! An overlay: it refers to the caller's [`Graph`] and never changes it.

use crate::key::{Did, GraphKey, Steps};
use loadmaster_graph::{DeviceId, Flags, Graph, Op, Step, Tensor, TensorId, define_id};
use std::ops::Range;

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

impl Item {
    /// Number of sources, holes included.
    #[inline]
    #[must_use]
    pub const fn source_count(&self) -> u16 {
        self.source_count
    }
}

/// Nodes and leafs in the order in which the allocator walks them (rule 3).
#[derive(Clone, Debug)]
pub struct AllocGraph<'g> {
    graph: &'g Graph,
    structure: Structure,
    steps: Steps,
}

/// The overlay without the graph below: what a reserved plan remembers.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct Structure {
    pub(crate) items: Vec<Item>,
    pub(crate) sources: Vec<Option<ItemId>>,
    pub(crate) nodes: Vec<ItemId>,
    pub(crate) leafs: Vec<ItemId>,
    pub(crate) groups: Vec<Range<Step>>,
}

impl Structure {
    /// The sources of an item, holes included.
    #[inline]
    pub(crate) fn sources(&self, id: ItemId) -> &[Option<ItemId>] {
        let item = &self.items[id.index()];
        let first = item.first_source as usize;
        &self.sources[first..first + item.source_count as usize]
    }
}

impl<'g> AllocGraph<'g> {
    /// An empty overlay of `graph`: every tensor is an item with the same index, nothing is a node or a leaf yet.
    /// `has_memory` says which tensors are in a buffer already or have memory of their own.
    #[must_use]
    pub fn overlay(graph: &'g Graph, mut has_memory: impl FnMut(TensorId) -> bool) -> Self {
        let topology = graph.topology();
        let mut sources = Vec::with_capacity(graph.tensors().len() * 2);
        let mut memory = MemoryBits { steps: Steps::new(), word: 0, seen: 0 };
        let items = graph
            .tensors()
            .ids()
            .map(|id| {
                let link = topology.link(id);
                let src = topology.sources(id);
                let first_source = sources.len() as u32;
                sources.extend(src.iter().map(|s| s.map(ItemId::of)));
                let has_memory = has_memory(id);
                memory.see(has_memory);
                Item {
                    origin: Origin::Tensor(id),
                    op: link.op,
                    flags: link.flags,
                    has_memory,
                    root: link.root.map(ItemId::of),
                    first_source,
                    source_count: src.len() as u16,
                }
            })
            .collect();
        let structure = Structure { items, sources, ..Structure::default() };
        Self { graph, structure, steps: memory.finish() }
    }

    /// The graph as it stands: its own nodes and leafs, nothing added.
    #[must_use]
    pub fn of(graph: &'g Graph, has_memory: impl FnMut(TensorId) -> bool) -> Self {
        let mut this = Self::overlay(graph, has_memory);
        this.structure.nodes = graph.nodes().values().map(|&t| ItemId::of(t)).collect();
        this.structure.leafs = graph.leafs().values().map(|&t| ItemId::of(t)).collect();
        this.steps.add(Did::PushOwnLists, 0, 0);
        this
    }

    /// Adds a copy of a tensor. It has no sources and no memory yet.
    pub fn add_copy(&mut self, of: TensorId, device: DeviceId, copy: u32, flags: Flags) -> ItemId {
        let place = u64::from(flags.bits()) << 32 | device.index() as u64;
        self.steps.add(Did::AddCopy, place, (of.index() as u64) << 32 | u64::from(copy));
        self.add(Origin::Copy { of, device, copy }, flags, None)
    }

    /// Adds a keep node: its only source is the tensor.
    pub fn add_keep(&mut self, tensor: TensorId) -> ItemId {
        self.steps.add(Did::AddKeep, tensor.index() as u64, 0);
        self.add(Origin::Keep(tensor), Flags::NONE, Some(ItemId::of(tensor)))
    }

    fn add(&mut self, origin: Origin, flags: Flags, source: Option<ItemId>) -> ItemId {
        let structure = &mut self.structure;
        let id = ItemId::new(structure.items.len());
        let first_source = structure.sources.len() as u32;
        structure.sources.extend(source.map(Some));
        let source_count = u16::from(source.is_some());
        structure.items.push(Item {
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
        self.steps.add(Did::SetSource, user.index() as u64, (operand as u64) << 32 | item.index() as u64);
        let structure = &mut self.structure;
        let first = structure.items[user.index()].first_source as usize;
        structure.sources[first + operand] = Some(item);
    }

    /// Sets the flags of an item.
    pub fn set_flags(&mut self, item: ItemId, flags: Flags) {
        self.steps.add(Did::SetFlags, item.index() as u64, flags.bits().into());
        self.structure.items[item.index()].flags = flags;
    }

    /// Appends a node.
    pub fn push_node(&mut self, item: ItemId) {
        self.steps.add(Did::PushNode, item.index() as u64, 0);
        self.structure.nodes.push(item);
    }

    /// Appends a leaf.
    pub fn push_leaf(&mut self, item: ItemId) {
        self.steps.add(Did::PushLeaf, item.index() as u64, 0);
        self.structure.leafs.push(item);
    }

    /// Lets a placer run the nodes of some consecutive positions in another order (the nodes of a split, without its keep
    /// and copy nodes). Positions need not be filled yet; a placer checks them.
    pub fn add_group(&mut self, positions: Range<Step>) {
        self.steps.add(Did::AddGroup, positions.start.get().into(), positions.end.get().into());
        self.structure.groups.push(positions);
    }

    /// What tells this graph from others, as far as an allocator is concerned. O(1).
    #[must_use]
    pub fn key(&self) -> GraphKey {
        self.steps.key(self.graph)
    }

    pub(crate) fn structure(&self) -> &Structure {
        &self.structure
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
        &self.structure.items
    }
    /// One item.
    #[inline]
    #[must_use]
    pub fn item(&self, id: ItemId) -> &Item {
        &self.structure.items[id.index()]
    }
    /// The tensor whose type, extents and strides an item has.
    #[inline]
    #[must_use]
    pub fn tensor(&self, id: ItemId) -> &'g Tensor {
        self.graph.tensor(self.item(id).origin.tensor())
    }
    /// The sources of an item, holes included.
    #[inline]
    #[must_use]
    pub fn sources(&self, id: ItemId) -> &[Option<ItemId>] {
        self.structure.sources(id)
    }
    /// Nodes in execution order.
    #[must_use]
    pub fn nodes(&self) -> &[ItemId] {
        &self.structure.nodes
    }
    /// Half-open ranges of positions whose nodes may run in another order.
    #[must_use]
    pub fn groups(&self) -> &[Range<Step>] {
        &self.structure.groups
    }
    /// Leafs in placement order.
    #[must_use]
    pub fn leafs(&self) -> &[ItemId] {
        &self.structure.leafs
    }
}

/// Hashes one bit per tensor, 64 to a word.
struct MemoryBits {
    steps: Steps,
    word: u64,
    seen: u64,
}

impl MemoryBits {
    #[inline]
    fn see(&mut self, has_memory: bool) {
        self.word = self.word << 1 | u64::from(has_memory);
        self.seen += 1;
        if self.seen.is_multiple_of(64) {
            self.steps.add(Did::SeeMemory, self.seen, self.word);
        }
    }

    fn finish(mut self) -> Steps {
        self.steps.add(Did::SeeMemory, self.seen, self.word);
        self.steps
    }
}

impl PartialEq for AllocGraph<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.graph == other.graph && self.structure == other.structure
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

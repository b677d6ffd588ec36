//! What a graph says about lifetimes, whatever the order of its nodes.

use crate::arenas::{Arenas, BufferIds};
use crate::error::{AllocError, Holder};
use crate::lowered::{AllocGraph, ArenaId, ItemId, Origin};
use loadmaster_graph::{Bytes, Op};

/// What becomes of a leaf that is flagged `input`, but not `output`, and that no node reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum UnusedInputs {
    /// It keeps its bytes to the end, as in the reference.
    #[default]
    Keep,
    /// Its bytes are its own until the first node has run: the caller may write it, and nobody reads it.
    Drop,
}

/// Facts about every item, and the numbers that planning needs again and again.
pub(crate) struct Facts {
    items: Vec<ItemFacts>,
    /// One past the last step.
    pub(crate) horizon: u32,
}

/// What is known of one item.
#[derive(Clone, Copy)]
pub(crate) struct ItemFacts {
    /// The item whose bytes it has: its root, or itself.
    pub(crate) owner: ItemId,
    /// Where it is placed; `None` if it is not.
    pub(crate) arena: Option<ArenaId>,
    /// Its `alloc_size` there.
    pub(crate) size: Bytes,
    /// The same, rounded up to the alignment.
    pub(crate) padded: Bytes,
    /// Occurrences of it and of its views as a source, and views that are computed into it.
    pub(crate) uses: u32,
    /// It exists when the graph starts.
    pub(crate) from_start: bool,
    /// It is never released: an output, or something that nobody in the graph reads to the end.
    pub(crate) forever: bool,
}

impl Facts {
    /// O(items + sources). `ids` have been checked.
    pub(crate) fn new(
        graph: &AllocGraph<'_>,
        arenas: &Arenas,
        ids: BufferIds<'_>,
        unused: UnusedInputs,
    ) -> Result<Self, AllocError> {
        let items = graph.items().iter().enumerate().map(|(i, item)| ItemFacts::unplaced(ItemId::new(i), item.root));
        // A graph of leafs alone has one step, in which they live.
        let horizon = graph.nodes().len().max(1) as u32;
        let mut facts = Self { items: items.collect(), horizon };
        facts.count_uses(graph);
        facts.mark_kept(graph, unused);
        facts.place_items(graph, arenas, ids)?;
        Ok(facts)
    }

    #[inline]
    pub(crate) fn of(&self, item: ItemId) -> &ItemFacts {
        &self.items[item.index()]
    }

    /// Sources of a node that are placed.
    #[inline]
    pub(crate) fn placed_sources<'a>(
        &'a self,
        graph: &'a AllocGraph<'_>,
        node: ItemId,
    ) -> impl Iterator<Item = ItemId> + 'a {
        graph.sources(node).iter().flatten().copied().filter(|s| self.items[s.index()].arena.is_some())
    }

    /// Owners of the bytes that a node touches: those of its sources, each occurrence once, and its root.
    #[inline]
    pub(crate) fn touched<'a>(&'a self, graph: &'a AllocGraph<'_>, node: ItemId) -> impl Iterator<Item = ItemId> + 'a {
        let owner = |item: ItemId| self.items[item.index()].owner;
        let sources = graph.sources(node).iter().flatten().copied().chain(original(graph, node)).map(owner);
        let root = graph.item(node).root.filter(move |&r| graph.sources(node).iter().flatten().all(|&s| owner(s) != r));
        sources.chain(root)
    }

    fn count_uses(&mut self, graph: &AllocGraph<'_>) {
        for &node in graph.nodes() {
            for source in graph.sources(node).iter().flatten() {
                let owner = self.items[source.index()].owner;
                self.items[owner.index()].uses += 1;
                if *source != owner {
                    self.items[source.index()].uses += 1;
                }
            }
            if let Some(of) = original(graph, node) {
                let owner = self.items[of.index()].owner;
                self.items[owner.index()].uses += 1;
            }
            if let Some(root) = graph.item(node).root
                && graph.sources(node).iter().flatten().all(|s| self.items[s.index()].owner != root)
            {
                self.items[root.index()].uses += 1;
            }
        }
    }

    /// What nobody reads lives to the end, as does what a view that nobody reads belongs to.
    fn mark_kept(&mut self, graph: &AllocGraph<'_>, unused: UnusedInputs) {
        let kept_leafs = graph.leafs().iter().filter(|&&l| unused == UnusedInputs::Keep || !is_input(graph, l));
        let listed = graph.nodes().iter().chain(kept_leafs).copied();
        for item in listed.filter(|&i| !is_keep(graph, i)) {
            let facts = self.items[item.index()];
            // A computed view with `NONE` for an operation is a dependency, not a result.
            let silent = facts.owner != item && graph.item(item).op == Op::None;
            if facts.uses == 0 && !silent {
                self.items[facts.owner.index()].forever = true;
            }
        }
        for (i, item) in graph.items().iter().enumerate().filter(|(_, item)| item.flags.is_output()) {
            let owner = item.root.unwrap_or(ItemId::new(i));
            self.items[owner.index()].forever = true;
        }
    }

    fn place_items(&mut self, graph: &AllocGraph<'_>, arenas: &Arenas, ids: BufferIds<'_>) -> Result<(), AllocError> {
        for (i, &leaf) in graph.leafs().iter().enumerate() {
            self.place(graph, arenas, leaf, ids.leaf(i), true)?;
        }
        for (i, &node) in graph.nodes().iter().enumerate() {
            self.place(graph, arenas, node, ids.node(i), graph.item(node).flags.is_input())?;
        }
        // What is neither leaf nor node exists from its first use.
        for (i, &node) in graph.nodes().iter().enumerate() {
            for &source in graph.sources(node).iter().flatten() {
                self.place(graph, arenas, source, ids.node(i), graph.item(source).flags.is_input())?;
            }
        }
        Ok(())
    }

    fn place(
        &mut self,
        graph: &AllocGraph<'_>,
        arenas: &Arenas,
        id: ItemId,
        arena: ArenaId,
        from_start: bool,
    ) -> Result<(), AllocError> {
        let item = graph.item(id);
        let facts = &mut self.items[id.index()];
        if facts.arena.is_some() || item.has_memory || item.root.is_some() || is_keep(graph, id) {
            return Ok(());
        }
        let buffer_type = arenas.buffer_type(arena);
        let size = buffer_type.alloc_size(item.origin.tensor(), graph.tensor(id));
        let padded = size.checked_align_up(buffer_type.alignment()).ok_or_else(|| AllocError::Overflow {
            what: "a size rounded up to the alignment",
            tensor: Holder::of(graph, id, size),
            size,
        })?;
        *facts = ItemFacts { arena: Some(arena), size, padded, from_start, ..*facts };
        Ok(())
    }
}

impl ItemFacts {
    fn unplaced(id: ItemId, root: Option<ItemId>) -> Self {
        Self {
            owner: root.unwrap_or(id),
            arena: None,
            size: Bytes::ZERO,
            padded: Bytes::ZERO,
            uses: 0,
            from_start: false,
            forever: false,
        }
    }
}

/// What a copy is copied from.
fn original(graph: &AllocGraph<'_>, node: ItemId) -> Option<ItemId> {
    match graph.item(node).origin {
        Origin::Copy { of, .. } => Some(ItemId::of(of)),
        Origin::Tensor(_) | Origin::Keep(_) => None,
    }
}

fn is_input(graph: &AllocGraph<'_>, leaf: ItemId) -> bool {
    graph.item(leaf).flags.is_input() && graph.item(leaf).root.is_none()
}

pub(crate) fn is_keep(graph: &AllocGraph<'_>, item: ItemId) -> bool {
    matches!(graph.item(item).origin, Origin::Keep(_))
}

//! The plan: where every item goes and how large every chunk is.

use crate::arenas::Arenas;
use crate::lowered::{AllocGraph, ArenaId, ItemId};
use crate::pack::ChunkId;
use crate::place::UnusedInputs;
use loadmaster_graph::{Bytes, IdVec, Step};

/// Where an item lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Placement {
    /// Offset in the chunk.
    pub offset: Bytes,
    /// Bytes that the tensor takes there: its `alloc_size`, not rounded up.
    pub size: Bytes,
    /// The buffer id. Ids with the same buffer type share chunks.
    pub arena: ArenaId,
    /// The chunk of the arena.
    pub chunk: ChunkId,
}

/// A node that writes over one of its sources.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reuse {
    /// The node.
    pub node: ItemId,
    /// The source that it writes over, as the node sees it.
    pub source: ItemId,
    /// The owner of the bytes: the source, or its root.
    pub owner: ItemId,
}

/// Where every item of a lowered graph goes. It takes no memory and refers to no graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocPlan {
    pub(crate) placements: Vec<Option<Placement>>,
    pub(crate) chunks: IdVec<ArenaId, Vec<Bytes>>,
    pub(crate) reuses: Vec<Reuse>,
    pub(crate) order: Option<Vec<Step>>,
    pub(crate) unused_inputs: UnusedInputs,
}

impl AllocPlan {
    pub(crate) fn empty(graph: &AllocGraph<'_>, arenas: &Arenas) -> Self {
        Self {
            placements: vec![None; graph.items().len()],
            chunks: IdVec::filled(Vec::new(), arenas.len()),
            reuses: Vec::new(),
            order: None,
            unused_inputs: UnusedInputs::Keep,
        }
    }

    /// Where an item lies; `None` for views, keep nodes, what has memory already, and what the graph does not use.
    #[inline]
    #[must_use]
    pub fn placement(&self, item: ItemId) -> Option<Placement> {
        self.placements.get(item.index()).copied().flatten()
    }

    /// Every item that is placed, in item order.
    pub fn placed(&self) -> impl Iterator<Item = (ItemId, Placement)> {
        self.placements.iter().enumerate().filter_map(|(i, p)| p.map(|p| (ItemId::new(i), p)))
    }

    /// Where an item's first byte is, through views: its own placement, or its root's plus the offset of the view
    /// (size: bytes from the view's first to past its last). `None` if its bytes are not of this plan.
    #[must_use]
    pub fn locate(&self, graph: &AllocGraph<'_>, item: ItemId) -> Option<Placement> {
        let Some(root) = graph.item(item).root else { return self.placement(item) };
        let tensor = graph.tensor(item);
        let base = self.placement(root)?;
        let offset = base.offset.checked_add(tensor.view?.offset)?;
        Some(Placement { offset, size: tensor.nbytes(), ..base })
    }

    /// Sizes of the chunks of an arena. Ids that share a buffer type with an earlier one have none.
    #[must_use]
    pub fn chunks(&self, arena: ArenaId) -> &[Bytes] {
        self.chunks.get(arena).map_or(&[], Vec::as_slice)
    }

    /// Bytes of an arena, all chunks together: reported for the first id with its buffer type, zero for the others.
    #[must_use]
    pub fn buffer_size(&self, arena: ArenaId) -> Bytes {
        self.chunks(arena).iter().copied().sum()
    }

    /// [`Self::buffer_size`] of every id.
    #[must_use]
    pub fn buffer_sizes(&self) -> IdVec<ArenaId, Bytes> {
        self.chunks.ids().map(|arena| self.buffer_size(arena)).collect()
    }

    /// Bytes of all arenas.
    #[must_use]
    pub fn total_size(&self) -> Bytes {
        self.chunks.values().flatten().copied().sum()
    }

    /// Nodes that write over one of their sources.
    #[must_use]
    pub fn reuses(&self) -> &[Reuse] {
        &self.reuses
    }

    /// What the plan does with inputs that no node reads.
    #[must_use]
    pub fn unused_inputs(&self) -> UnusedInputs {
        self.unused_inputs
    }

    /// The order in which the plan holds, if it is not the graph's own: the i-th entry is the position in
    /// [`AllocGraph::nodes`] of the node that runs i-th.
    #[must_use]
    pub fn order(&self) -> Option<&[Step]> {
        self.order.as_deref()
    }

    /// Positions in [`AllocGraph::nodes`] in the order in which the nodes run.
    pub fn steps(&self, graph: &AllocGraph<'_>) -> impl Iterator<Item = Step> {
        let own = if self.order.is_none() { 0..graph.nodes().len() as u32 } else { 0..0 };
        self.order.iter().flatten().copied().chain(own.map(Step))
    }
}

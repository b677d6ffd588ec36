//! What a checker can find.

use crate::lowered::{ArenaId, ItemId};
use crate::pack::ChunkId;
use loadmaster_graph::{Align, Bytes, Op, Step};

/// A broken rule: a bug of the placer that made the plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// An item that needs bytes has none.
    #[error("{item} has no place")]
    Unplaced {
        /// The item.
        item: ItemId,
    },
    /// A view, a keep node, or what has memory already was placed.
    #[error("{item} has a place, but needs none")]
    NotToBePlaced {
        /// The item.
        item: ItemId,
    },
    /// A place in an arena that does not exist.
    #[error("{item} is placed in {arena}, which does not exist")]
    NoSuchArena {
        /// The item.
        item: ItemId,
        /// The arena.
        arena: ArenaId,
    },
    /// A place in an arena other than the one asked for.
    #[error("{item} is placed in {found}, not in {expected}")]
    WrongArena {
        /// The item.
        item: ItemId,
        /// The arena asked for.
        expected: ArenaId,
        /// The arena it is in.
        found: ArenaId,
    },
    /// A place in a chunk that does not exist.
    #[error("{item} is placed in {chunk} of {arena}, which does not exist")]
    NoSuchChunk {
        /// The item.
        item: ItemId,
        /// The arena.
        arena: ArenaId,
        /// The chunk.
        chunk: ChunkId,
    },
    /// An offset that is no multiple of the alignment.
    #[error("{item} is placed at byte {}, no multiple of {align}", offset.get())]
    Misaligned {
        /// The item.
        item: ItemId,
        /// The offset.
        offset: Bytes,
        /// The alignment.
        align: Align,
    },
    /// A place that is smaller than the tensor.
    #[error("{item} needs {} bytes, {} are planned", needed.get(), planned.get())]
    TooSmall {
        /// The item.
        item: ItemId,
        /// Bytes planned.
        planned: Bytes,
        /// Bytes needed.
        needed: Bytes,
    },
    /// A place that leaves its chunk (`end` is `None` if it overflows).
    #[error("{item} leaves its chunk of {} bytes", chunk.get())]
    PastChunk {
        /// The item.
        item: ItemId,
        /// Where it ends.
        end: Option<Bytes>,
        /// Bytes of the chunk.
        chunk: Bytes,
    },
    /// Two items share bytes at a step at which both must be intact.
    #[error("{first} and {second} share bytes of {chunk} of {arena} at {step}")]
    Overlap {
        /// The one that was there first.
        first: ItemId,
        /// The one that came later.
        second: ItemId,
        /// The arena.
        arena: ArenaId,
        /// The chunk.
        chunk: ChunkId,
        /// The step at which the second comes.
        step: Step,
    },
    /// A node writes over a source that it must not write over.
    #[error("{node} ({op}) writes over {source_item}: {fault}")]
    Reuse {
        /// The node.
        node: ItemId,
        /// Its operation.
        op: Op,
        /// The owner of the bytes.
        source_item: ItemId,
        /// Why it must not.
        fault: ReuseFault,
    },
    /// The plan's order is no permutation of the nodes.
    #[error("the order of the plan is no order of the graph's {nodes} nodes ({what})")]
    NoPermutation {
        /// Number of nodes.
        nodes: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The plan's order runs a node before something that it depends on.
    #[error("the order of the plan runs {later} before {earlier}, on which it depends")]
    Dependency {
        /// The node that must come first.
        earlier: ItemId,
        /// The node that depends on it.
        later: ItemId,
    },
}

/// Why a node must not write over a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReuseFault {
    /// The table does not allow it for this operand.
    #[error("the in-place table does not allow it")]
    NotInTable,
    /// The source is read through more than one operand.
    #[error("the same bytes are read through another operand")]
    ReadTwice,
    /// Types, extents or strides differ.
    #[error("the layouts differ")]
    Layout,
    /// The source is a view of a part only.
    #[error("the source is a view that does not cover its root")]
    PartialView,
    /// They do not begin at the same byte.
    #[error("they begin at different bytes")]
    Offset,
}

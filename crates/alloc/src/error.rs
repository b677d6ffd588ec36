//! Errors of this crate.

use crate::buffer_type::Refused;
use crate::dynamic::DynError;
use crate::group::GroupBufferId;
use crate::lowered::{AllocGraph, ArenaId, ItemId};
use crate::mismatch::Mismatch;
use crate::pack::{ChunkId, PackError};
use loadmaster_graph::{Bytes, Step, Tensor, TensorId};
use std::fmt;
use std::ops::Range;

/// Why memory could not be planned or taken. The allocator that returned it is unchanged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocError {
    /// An array of buffer ids does not have one entry per node or leaf.
    #[error("{found} buffer ids for {expected} {list}: give one id per entry")]
    IdCount {
        /// Which array.
        list: IdList,
        /// Entries that the graph has.
        expected: usize,
        /// Ids that were given.
        found: usize,
    },
    /// A buffer id names no buffer type of the allocator.
    #[error("entry {position} of the {list} has buffer id {id}, but there are only {arenas} buffer types")]
    IdOutOfRange {
        /// Which array.
        list: IdList,
        /// Position in the array.
        position: usize,
        /// The id.
        id: ArenaId,
        /// Number of buffer types.
        arenas: usize,
    },
    /// A tensor is larger than any buffer of its type can be.
    #[error(
        "{tensor} needs {needed} in one buffer, but {buffer_type} has none larger than {largest}: it can never fit"
    )]
    NeverFits {
        /// The tensor.
        tensor: Holder,
        /// Name of the buffer type.
        buffer_type: String,
        /// Bytes that it needs, alignment included.
        needed: Bytes,
        /// The largest buffer of the type.
        largest: Bytes,
    },
    /// A plan needs more than its memory has left.
    #[error(
        "{arena} ({buffer_type}) needs {needed} more, but {available} are available; largest: {}",
        Holders(holders)
    )]
    OverCapacity {
        /// The arena.
        arena: ArenaId,
        /// Name of the buffer type.
        buffer_type: String,
        /// Bytes that must be taken in addition.
        needed: Bytes,
        /// Bytes that are available.
        available: Bytes,
        /// The largest tensors alive at the peak, largest first.
        holders: Vec<Holder>,
    },
    /// The driver refused; everything taken for this request was given back.
    #[error("{chunk} of {arena}: {refused}")]
    DriverOutOfMemory {
        /// The arena.
        arena: ArenaId,
        /// The chunk.
        chunk: ChunkId,
        /// The driver's refusal.
        refused: Refused,
    },
    /// The driver refused a buffer of a group; the group's other buffers were given back.
    #[error("{buffer} of the group: {refused}")]
    GroupOutOfMemory {
        /// The buffer.
        buffer: GroupBufferId,
        /// The driver's refusal.
        refused: Refused,
    },
    /// The graph matches no reserved plan, and with several buffers nothing is planned again unasked.
    #[error("the graph does not match a reserved plan ({why}): reserve it first")]
    NeedsReserve {
        /// The first difference to the plan that was reserved last.
        why: Mismatch,
    },
    /// A size does not fit 63 bits, or a sum of sizes 64 bits.
    #[error("{what} overflows: {tensor} needs {size}")]
    Overflow {
        /// What overflowed.
        what: &'static str,
        /// The tensor at which it happened.
        tensor: Holder,
        /// Its size.
        size: Bytes,
    },
    /// The chunks of an arena overflow 64 bits together.
    #[error("the chunks of {arena} overflow 64 bits together")]
    ArenaOverflow {
        /// The arena.
        arena: ArenaId,
    },
    /// No room is left in a buffer.
    #[error("no room for {tensor}: it needs {needed}, {available} are left")]
    NoRoom {
        /// The tensor.
        tensor: Holder,
        /// Bytes that it needs, alignment included.
        needed: Bytes,
        /// Bytes that are left.
        available: Bytes,
    },
    /// A dynamic allocator has no room for a tensor.
    #[error("{tensor} in {arena}: {why}")]
    Dynamic {
        /// The tensor.
        tensor: Holder,
        /// The arena.
        arena: ArenaId,
        /// The allocator's reason.
        why: DynError,
    },
    /// The packing solver failed.
    #[error("packing {arena}: {why}")]
    Packing {
        /// The arena.
        arena: ArenaId,
        /// The solver's error.
        why: PackError,
    },
    /// A range of steps whose nodes may change their order cannot be one.
    #[error("steps {} to {} cannot be reordered: {why}", steps.start.get(), steps.end.get())]
    BadGroup {
        /// The half-open range.
        steps: Range<Step>,
        /// What is wrong.
        why: &'static str,
    },
}

/// Which array of buffer ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdList {
    /// One per node.
    Nodes,
    /// One per leaf.
    Leafs,
}

impl fmt::Display for IdList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nodes => "nodes",
            Self::Leafs => "leafs",
        })
    }
}

/// A tensor that takes memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// The tensor, or the original of a copy.
    pub tensor: TensorId,
    /// The item of the lowered graph, where there is one.
    pub item: Option<ItemId>,
    /// Its name.
    pub name: Box<str>,
    /// Bytes that it takes.
    pub size: Bytes,
}

impl Holder {
    pub(crate) fn of_tensor(id: TensorId, tensor: &Tensor, size: Bytes) -> Self {
        Self { tensor: id, item: None, name: tensor.name.clone(), size }
    }

    pub(crate) fn of(graph: &AllocGraph<'_>, item: ItemId, size: Bytes) -> Self {
        let tensor = graph.item(item).origin.tensor();
        Self { tensor, item: Some(item), name: graph.graph().tensor(tensor).name.clone(), size }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.tensor, self.name)
    }
}

struct Holders<'a>(&'a [Holder]);

impl fmt::Display for Holders<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, holder) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            write!(f, "{comma}{holder} with {}", holder.size)?;
        }
        Ok(())
    }
}

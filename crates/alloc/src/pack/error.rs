//! What can be wrong with a problem, and what a checker can find in a packing.

use super::problem::{ChunkId, PackBufferId};
use loadmaster_graph::{Align, Bytes, Step};

/// Why a problem cannot be packed at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// More buffers than an id can name.
    #[error("{count} buffers: at most {limit} can be packed at once")]
    TooMany {
        /// How many there are.
        count: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A lifetime ends before it begins.
    #[error("{buffer} lives from {start} to {end}: a lifetime must not end before it begins")]
    ReversedLifetime {
        /// The buffer.
        buffer: PackBufferId,
        /// Its first step.
        start: Step,
        /// The step it is said to end before.
        end: Step,
    },
    /// A fixed offset is not a multiple of the buffer's alignment.
    #[error("{buffer} is fixed at byte {offset}, which is not a multiple of its alignment {align}", offset = .offset.get())]
    FixedMisaligned {
        /// The buffer.
        buffer: PackBufferId,
        /// Its fixed offset.
        offset: Bytes,
        /// Its alignment.
        align: Align,
    },
    /// Two fixed buffers share bytes while both are alive.
    #[error("{first} and {second} are fixed over each other while both are alive ({step}): move one of them")]
    FixedConflict {
        /// One of them.
        first: PackBufferId,
        /// The other.
        second: PackBufferId,
        /// A step at which both are alive.
        step: Step,
    },
    /// A fixed buffer ends past the chunk limit.
    #[error("{buffer} is fixed up to byte {end}, past the chunk limit of {limit} bytes", end = .end.get(), limit = .limit.get())]
    FixedPastChunk {
        /// The buffer.
        buffer: PackBufferId,
        /// Where it ends.
        end: Bytes,
        /// The chunk limit.
        limit: Bytes,
    },
    /// A fixed buffer's end overflows.
    #[error("{buffer}: its fixed offset plus its size of {size} bytes overflows 64 bits", size = .size.get())]
    FixedOverflow {
        /// The buffer.
        buffer: PackBufferId,
        /// Its size.
        size: Bytes,
    },
    /// The buffers alive at one step need more bytes than 64 bits can count.
    #[error("the buffers alive at {step} overflow 64 bits together (from {buffer} on)")]
    LoadOverflow {
        /// The step.
        step: Step,
        /// The buffer whose birth overflows the sum.
        buffer: PackBufferId,
    },
    /// No method found offsets that 64 bits can hold.
    #[error("{buffer}: no free offset left below 2^64")]
    OffsetOverflow {
        /// The buffer that could not be placed.
        buffer: PackBufferId,
    },
}

impl PackError {
    /// The buffers that it names.
    #[must_use]
    pub fn buffers(&self) -> Vec<PackBufferId> {
        match *self {
            Self::TooMany { .. } => Vec::new(),
            Self::FixedConflict { first, second, .. } => vec![first, second],
            Self::ReversedLifetime { buffer, .. }
            | Self::FixedMisaligned { buffer, .. }
            | Self::FixedPastChunk { buffer, .. }
            | Self::FixedOverflow { buffer, .. }
            | Self::LoadOverflow { buffer, .. }
            | Self::OffsetOverflow { buffer } => vec![buffer],
        }
    }
}

/// What a checker finds wrong with a packing: a fault of whatever made it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackFault {
    /// Not one place a buffer.
    #[error("{places} places for {buffers} buffers")]
    Count {
        /// Places.
        places: usize,
        /// Buffers.
        buffers: usize,
    },
    /// An offset is not a multiple of the alignment.
    #[error("{buffer} lies at byte {offset}, which is not a multiple of its alignment {align}", offset = .offset.get())]
    Misaligned {
        /// The buffer.
        buffer: PackBufferId,
        /// Its offset.
        offset: Bytes,
        /// Its alignment.
        align: Align,
    },
    /// A fixed buffer lies somewhere else.
    #[error("{buffer} is fixed at byte {fixed} of the first chunk but lies at byte {offset} of {chunk}", fixed = .fixed.get(), offset = .offset.get())]
    Moved {
        /// The buffer.
        buffer: PackBufferId,
        /// Where it should lie.
        fixed: Bytes,
        /// The chunk it lies in.
        chunk: ChunkId,
        /// Where it lies there.
        offset: Bytes,
    },
    /// An end overflows.
    #[error("{buffer}: its end overflows 64 bits")]
    Overflow {
        /// The buffer.
        buffer: PackBufferId,
    },
    /// A buffer ends past the end of its chunk.
    #[error("{buffer} ends at byte {end} of {chunk}, which may have {limit}", end = .end.get(), limit = .limit.get())]
    PastChunk {
        /// The buffer.
        buffer: PackBufferId,
        /// Its chunk.
        chunk: ChunkId,
        /// Where it ends.
        end: Bytes,
        /// How long the chunk may be.
        limit: Bytes,
    },
    /// A chunk other than the first, without a chunk limit.
    #[error("{buffer} lies in {chunk}, but there is no chunk limit")]
    NeedlessChunk {
        /// The buffer.
        buffer: PackBufferId,
        /// Its chunk.
        chunk: ChunkId,
    },
    /// Two buffers share bytes while both are alive.
    #[error("{first} and {second} share bytes of {chunk} at {step}")]
    Overlap {
        /// The earlier born.
        first: PackBufferId,
        /// The other.
        second: PackBufferId,
        /// Their chunk.
        chunk: ChunkId,
        /// The first step at which both are alive.
        step: Step,
    },
    /// The stated peak is not the sum of the chunks' highest ends.
    #[error("the peak is said to be {stated} bytes but is {found}", stated = .stated.get(), found = .found.get())]
    Peak {
        /// As stated.
        stated: Bytes,
        /// As found.
        found: Bytes,
    },
    /// The stated bound is less than what is alive at a step.
    #[error("the lower bound is said to be {stated} bytes but {load} are alive at {step}", stated = .stated.get(), load = .load.get())]
    BoundTooLow {
        /// As stated.
        stated: Bytes,
        /// Bytes alive.
        load: Bytes,
        /// At this step.
        step: Step,
    },
    /// The stated bound exceeds the peak, or `proved` does not say whether they are equal.
    #[error("peak {peak}, lower bound {bound} and proved = {proved} contradict each other", peak = .peak.get(), bound = .bound.get())]
    BoundContradicts {
        /// The peak.
        peak: Bytes,
        /// The bound.
        bound: Bytes,
        /// Whether the optimum is said to be proved.
        proved: bool,
    },
}

//! The public values: problem and packing.

use loadmaster_graph::{Align, Bytes, Step, define_id};
use std::ops::Range;

define_id! {
    /// A buffer of a packing problem: its position in [`PackProblem::buffers`].
    pub PackBufferId, "b";
    /// One of the stretches of memory that a packing uses. Without a chunk limit there is only `chunk0`.
    pub ChunkId, "chunk";
}

/// Something that needs bytes during some steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PackBuffer {
    /// How many bytes. Zero: it is dropped, its offset is its fixed one or 0.
    pub size: Bytes,
    /// Its offset is a multiple of this.
    pub align: Align,
    /// Alive from the first step to the one before the last. Empty: never alive, treated as a buffer of size zero.
    pub lifetime: Range<Step>,
    /// Where it must lie (in the first chunk), if that is given.
    pub offset: Option<Bytes>,
}

impl PackBuffer {
    /// A buffer that may lie anywhere.
    #[must_use]
    pub const fn new(size: Bytes, align: Align, lifetime: Range<Step>) -> Self {
        Self { size, align, lifetime, offset: None }
    }

    /// Whether it ever needs a byte.
    pub(super) fn takes_bytes(&self) -> bool {
        self.size > Bytes::ZERO && self.lifetime.start < self.lifetime.end
    }
}

/// Buffers, and the limit on one stretch of memory.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct PackProblem {
    /// The buffers; a [`PackBufferId`] is a position here.
    pub buffers: Vec<PackBuffer>,
    /// The longest chunk; `None`: one chunk without limit. No buffer lies in two chunks. A chunk is as long as the
    /// largest buffer in it where that is more than the limit.
    pub max_chunk: Option<Bytes>,
}

/// Where a buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// The chunk.
    pub chunk: ChunkId,
    /// The offset in the chunk.
    pub offset: Bytes,
}

/// A solution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// One place a buffer, in the order of [`PackProblem::buffers`].
    pub places: Vec<Place>,
    /// The sum over the chunks of the highest end in each.
    pub peak: Bytes,
    /// No packing has a lower peak than this.
    pub lower_bound: Bytes,
    /// The peak equals the lower bound: no packing is better.
    pub proved: bool,
    /// What found it.
    pub method: Method,
}

/// The method that found a packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// Nothing to place, or everything fixed.
    Trivial,
    /// In the order given, each at the lowest offset that is free.
    FirstFit,
    /// In the order given, each in the smallest gap that holds it.
    BestFit,
    /// Largest first, each at the lowest free offset; of equals, the earlier born first.
    LargestFirst,
    /// Largest first, each at the lowest free offset; of equals, the later born first.
    LargestFirstLate,
    /// Always the buffer whose lowest free offset is lowest.
    Skyline,
    /// The place-or-postpone search.
    Search,
}

impl Method {
    /// A short name for reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trivial => "trivial",
            Self::FirstFit => "first fit",
            Self::BestFit => "best fit",
            Self::LargestFirst => "largest first",
            Self::LargestFirstLate => "largest first, later born first",
            Self::Skyline => "skyline",
            Self::Search => "search",
        }
    }
}

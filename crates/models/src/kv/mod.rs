//! Bookkeeping of the KV cache: which cell holds which position of which sequences. No tensor data.
//!
//! A cache has cells in one or more *streams*: one stream that all sequences share, or one per sequence. A
//! [`MicroBatch`] is what one run of a graph takes; a [`Slot`] says which cells its tokens go to. The order of events is
//! find, apply, fill the graph's inputs, run.

mod batch;
mod cells;
mod set;
mod state;

pub use batch::{Batch, BatchError, BatchToken, MicroBatch, MicroToken, PromptPiece, Sharing};
pub use cells::{CellId, Cells};
pub use set::{MAX_SEQUENCES, SequenceSet};
pub use state::{CacheKind, KvCache, KvError, KvState, Slot, Slots, StreamCopy};

loadmaster_graph::define_id! {
    /// A sequence: tokens that attend to each other.
    pub SequenceId, "seq";
    /// A stream of a cache.
    pub StreamId, "stream";
}

/// A position in a sequence, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Pos(pub u32);

impl Pos {
    /// The position after this one; saturates (contexts are capped far below).
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl std::fmt::Display for Pos {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "position {}", self.0)
    }
}

/// Whether a query at `query` does not see a key at `key` through a window of `window` tokens (itself included).
#[must_use]
pub const fn outside_window(window: u32, key: Pos, query: Pos) -> bool {
    query.0.saturating_sub(key.0) >= window
}

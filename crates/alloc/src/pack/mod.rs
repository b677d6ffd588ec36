//! The packing problem by itself: buffers with sizes and lifetimes, offsets wanted, highest end as low as possible.
//!
//! Two buffers may share bytes only if their lifetimes (half-open ranges of steps) do not meet. [`pack`] finds offsets,
//! [`pack_into`] answers whether they can stay below a capacity, [`lower_bound`] says what no packing can beat, and
//! [`check`] verifies a packing without sharing code with what made it. Files: [`csv`].
//!
//! Equal input gives an equal packing: effort is counted in search nodes, never in time.

mod bound;
mod check;
pub mod csv;
mod error;
mod greedy;
mod heuristics;
mod neighbours;
mod occupancy;
mod prepared;
mod problem;
mod search;
mod skyline;
mod solve;
mod spans;

pub use bound::lower_bound;
pub use check::check;
pub use error::{PackError, PackFault};
pub use problem::{ChunkId, Method, PackBuffer, PackBufferId, PackProblem, Packing, Place};
pub use solve::{Effort, FitOutcome, pack, pack_into, pack_into_until, pack_until};

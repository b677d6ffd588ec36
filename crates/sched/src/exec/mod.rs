//! Execution of a plan: see `protocol.md` for who waits for whom and why that is enough.
#![doc = include_str!("protocol.md")]

pub mod build;
mod cells;
pub mod check;
pub mod error;
pub mod hazards;
pub mod interleave;
pub mod paths;
pub mod place;
mod ranges;
pub mod schedule;

pub use build::{ExpertUpload, Outputs, Planned, ScheduleOptions, schedule};
pub use check::{Race, RunStep, check};
pub use error::{At, ExecError, Named};
pub use hazards::{Wait, Waits, waits};
pub use interleave::{Finding, Interleaver};
pub use paths::{CopyPath, PathTable};
pub use place::{Memories, Memory, MemoryId, Place, ResidentPlace};
pub use ranges::Span;
pub use schedule::{Access, Action, Hop, Mode, Move, Queue, QueueId, Schedule, Step, StepId};

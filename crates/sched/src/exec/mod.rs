//! Execution of a plan: see `protocol.md` for who waits for whom and why that is enough.
#![doc = include_str!("protocol.md")]

mod bind;
pub mod build;
mod cells;
pub mod check;
pub mod error;
pub mod executable;
mod experts;
mod failure;
pub mod hazards;
pub mod interleave;
mod issue;
pub mod noted;
pub mod observe;
pub mod open;
pub mod paths;
pub mod place;
mod ranges;
pub mod runtime;
pub mod schedule;
pub mod scratch;
mod selftest;
pub mod session;

pub use build::{ExpertUpload, Outputs, Planned, ScheduleOptions, schedule};
pub use check::{Race, RunStep, check};
pub use error::{At, ExecError, Named};
pub use executable::{Executable, Run};
pub use hazards::{Wait, Waits, waits};
pub use interleave::{Finding, Interleaver};
pub use observe::{Flow, Observer};
pub use open::{described, measured, open};
pub use paths::{CopyPath, PathReport, PathTable};
pub use place::{Memories, Memory, MemoryId, Place, ResidentPlace};
pub use ranges::Span;
pub use runtime::Runtime;
pub use schedule::{Access, Action, Hop, Mode, Move, Queue, QueueId, Schedule, Step, StepId};
pub use scratch::{ScratchNeed, ScratchNeeds, ScratchUse};
pub use session::{PlanId, Resident, Session, SessionNeeds, SessionOptions, SessionStats};

//! Planning of tensor graphs over several devices: which device runs what, where the graph is cut, what is copied, and
//! the list that the allocator places.
//!
//! Each stage is a function from values to a value: [`assign`](assign()), [`split`](split()), [`lower`](lower());
//! [`plan`](plan()) is the whole chain. None changes its input.

pub mod assign;
pub mod buffer_type;
pub mod check;
pub mod device_set;
pub mod error;
pub mod exec;
pub mod from_file;
pub mod lower;
pub mod machine;
pub mod op_set;
pub mod plan;
pub mod residency;
pub mod split;

pub use assign::{AssignOptions, Assignment, Cause, OpOffload, Policy, Sweep, assign};
pub use buffer_type::{PlanBufferType, Sizes, compute_types, paper_types};
pub use check::{PlanFault, check_lowered, check_splits};
pub use device_set::DeviceSet;
pub use error::SchedError;
pub use from_file::Setup;
pub use lower::{KeepUntil, LowerOptions, Lowered, arena_of, lower};
pub use machine::{Device, DeviceKind, DeviceSpec, Driver, Machine, MachineParts};
pub use op_set::OpSet;
pub use plan::{Cut, PlacedGraph, Plan, PlanOptions, cut, place_in, plan};
pub use residency::{Residency, ResidentBuffer, Usage};
pub use split::{CopyCause, InputCopy, Operand, Redirect, Split, SplitCause, SplitPlan, split};

//! Devices, buffers, streams and events: `cpu` and `sim`.
//!
//! [`device`] is the contract. `cpu` computes on host memory; `sim` is a virtual GPU with memory of its own. The only
//! crate with unsafe code.

pub mod device;
pub mod error;
mod mmap;
pub mod program;
pub mod stats;
pub mod stream;

pub use device::{Device, DeviceKind, MemoryInfo, OpShape, OperandSet, PeerAccess};
pub use error::{Call, DeviceError, Fault, Unsupported};
pub use mmap::mmap;
pub use program::{Command, Compiled, Operand, Program, SlotId};
pub use stats::{CopyCount, DeviceStats, Route};
pub use stream::{CommandId, CopyCommand, Event, Mark, Region, Stream};

//! Devices, buffers, streams and events: `cpu` and `sim`.
//!
//! [`device`] is the contract. `cpu` computes on host memory; `sim` is a virtual GPU with memory of its own. The only
//! crate with unsafe code.

pub mod clock;
pub mod cpu;
mod cpu_device;
pub mod cuda;
pub mod device;
pub mod error;
pub mod host;
mod mmap;
pub mod program;
pub mod sim;
pub mod stats;
pub mod stream;

pub use clock::{LinkEnd, LinkModel, SimClock, SimTime, TimeModel};
pub use cpu_device::{CpuDevice, CpuOptions};
pub use device::{Device, DeviceKind, MemoryInfo, OpShape, PeerAccess};
pub use error::{Call, DeviceError, Fault, Unsupported};
pub use host::{Arithmetic, Faults, HostBuffer, Kernels, Peers, SharedBytes, Trip};
pub use mmap::mmap;
pub use program::{Command, Compiled, Operand, Program, SlotId, Workspace};
pub use sim::{SimDevice, SimOptions, Staging};
pub use stats::{CopyCount, DeviceStats, Route};
pub use stream::{CommandId, CopyCommand, Event, Mark, Region, Stream};

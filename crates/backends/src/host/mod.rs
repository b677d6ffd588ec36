//! What the devices of this process share: host memory, threads as streams, events, programs with addresses.

mod block;
mod copy;
pub(crate) mod core;
mod event;
mod faults;
mod kernels;
mod memory;
pub(crate) mod program;
mod stream;
pub(crate) mod transfer;

pub(crate) use block::Block;
pub use core::{Arithmetic, Peers};
pub(crate) use event::HostEvent;
pub use faults::{Faults, Trip};
pub use kernels::Kernels;
pub use memory::{HostBuffer, SharedBytes};
pub(crate) use memory::{HostMemory, in_range};
pub(crate) use stream::QueueStream;

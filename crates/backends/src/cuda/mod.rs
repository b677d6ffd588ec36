//! `cuda`: NVIDIA GPUs through their driver, which is loaded at run time.
//!
//! A program with this backend runs on machines without a driver: [`probe`] and [`CudaDevice::open`] say that there is
//! none, and why. [`DRIVER_VARIABLE`] names a driver library instead of the system's.
//!
//! A context per GPU is shared by all devices on it; each device has its own memory limit, streams and events. Memory is
//! one driver allocation for each buffer. Kernels stand in `kernels/` and are compiled by NVRTC when a program first needs
//! them, and kept on disk ([`CACHE_VARIABLE`]).
//!
//! No object outlives its context, and memory is given back only when no GPU runs anything: the driver would take it
//! from under a copy that is still queued. An error of the driver from which no context recovers marks the context as
//! lost; every device on that GPU then answers everything with [`crate::Fault::Lost`].

mod cache;
mod code;
mod context;
mod copy;
mod core;
mod cublas;
mod device;
mod driver;
mod event;
mod handles;
pub(crate) mod launch;
mod memory;
mod modules;
mod nvrtc;
pub mod on_host;
mod probe;
mod products;
mod program;
mod replay;
pub mod simulator;
mod stream;
mod transfer;
mod trial;

pub use cache::CACHE_VARIABLE;
pub use cublas::{CUBLAS_VARIABLE, NoCublas};
pub use device::{CudaDevice, CudaOptions};
pub use driver::{DRIVER_VARIABLE, NoDriver};
pub use nvrtc::NVRTC_VARIABLE;
pub use probe::{DriverInfo, GpuInfo, driver, probe};
pub use products::{Products, ProductsFrom};

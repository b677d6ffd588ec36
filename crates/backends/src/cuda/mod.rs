//! `cuda`: NVIDIA GPUs through their driver, which is loaded at run time.
//!
//! A program with this backend runs on machines without a driver: [`probe`] and [`CudaDevice::open`] say that there is
//! none, and why. [`DRIVER_VARIABLE`] names a driver library instead of the system's.
//!
//! A context per GPU is shared by all devices on it; each device has its own memory limit, streams and events. Memory is
//! one driver allocation for each buffer. Kernels stand in `kernels/` and are compiled by NVRTC when a program first needs
//! them, and kept on disk ([`CACHE_VARIABLE`]).
//!
//! What kernels need beside their operands is a function of the node and of [`GpuTarget`] ([`workspace`]); it and what it
//! asks are there without the feature `cuda`, so that plans are the same in every program.
//!
//! No object outlives its context, and memory is given back only when no GPU runs anything: the driver would take it
//! from under a copy that is still queued. An error of the driver from which no context recovers marks the context as
//! lost; every device on that GPU then answers everything with [`crate::Fault::Lost`].

#[cfg(feature = "cuda")]
mod cache;
#[cfg(feature = "cuda")]
mod code;
#[cfg(feature = "cuda")]
mod context;
#[cfg(feature = "cuda")]
mod copy;
#[cfg(feature = "cuda")]
mod core;
#[cfg(feature = "cuda")]
mod cublas;
#[cfg(feature = "cuda")]
mod device;
#[cfg(feature = "cuda")]
mod driver;
#[cfg(feature = "cuda")]
mod event;
#[cfg(feature = "cuda")]
mod handles;
pub(crate) mod launch;
#[cfg(feature = "cuda")]
mod libraries;
#[cfg(feature = "cuda")]
mod memory;
#[cfg(feature = "cuda")]
mod modules;
#[cfg(feature = "cuda")]
mod nvrtc;
#[cfg(feature = "cuda")]
pub mod on_host;
#[cfg(feature = "cuda")]
mod probe;
#[cfg(feature = "cuda")]
mod products;
#[cfg(feature = "cuda")]
mod program;
#[cfg(feature = "cuda")]
mod replay;
#[cfg(feature = "cuda")]
pub mod simulator;
#[cfg(feature = "cuda")]
mod stream;
#[cfg(feature = "cuda")]
mod toolkit;
#[cfg(feature = "cuda")]
mod transfer;
#[cfg(feature = "cuda")]
mod trial;
#[cfg(feature = "cuda")]
mod watch;
mod workspace;

#[cfg(feature = "cuda")]
pub use cache::CACHE_VARIABLE;
#[cfg(feature = "cuda")]
pub use cublas::{CUBLAS_VARIABLE, NoCublas};
#[cfg(feature = "cuda")]
pub use device::{CudaDevice, CudaOptions};
#[cfg(feature = "cuda")]
pub use driver::{DRIVER_VARIABLE, NoDriver};
pub use launch::types::{LibraryRule, Target as GpuTarget};
#[cfg(feature = "cuda")]
pub use nvrtc::NVRTC_VARIABLE;
#[cfg(feature = "cuda")]
pub use probe::{DriverInfo, GpuInfo, driver, free_memory_of, probe, target_of};
#[cfg(feature = "cuda")]
pub use products::{Products, ProductsFrom};
pub use workspace::workspace;

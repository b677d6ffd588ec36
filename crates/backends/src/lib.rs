//! Devices, buffers, streams and events: `cpu` and `sim`.

mod mmap;

pub use mmap::mmap;

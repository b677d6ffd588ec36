//! Plans bound and run on `cpu` and virtual GPUs: results, overlap, paths, experts, observers, faults.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail tests")]

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_library;
mod experts;
mod faults;
mod observer;
mod paths;
mod pipeline;
mod random;
mod results;
mod sessions;
mod world;

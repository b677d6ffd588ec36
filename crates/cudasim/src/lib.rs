//! A stand-in CUDA driver: the part of the driver API that the CUDA backend calls, over simulated GPUs.
//!
//! It proves the backend on machines without a GPU, and finds there what a GPU would hide: a missing wait, a use after
//! free, a leak, a failure that nobody handles.
//!
//! # Selecting it
//! The library is `libloadmaster_cudasim.so`, a name that nobody looks for. `LOADMASTER_CUDA_DRIVER` set to its absolute
//! path makes the backend open it first; its SONAME is `libcuda.so`, so that a later search for the driver finds it. A
//! real driver has no `loadmaster_cudasim_abi`; this one has.
//!
//! # Configuring it
//! `LOADMASTER_CUDASIM`, or [`ffi::control::loadmaster_cudasim_configure`] while the process runs, takes parts joined by
//! commas:
//!
//! | part | meaning | default |
//! |---|---|---|
//! | `devices=2` | simulated GPUs, 0 to 16 | 1 |
//! | `memory=64MiB` or `memory=64MiB+1GiB` | memory of each; the last goes for the rest | 1GiB |
//! | `peer=all`, `none`, `0-1+2>3` | which device can access which other, both ways or one | all |
//! | `corrupt-peer=0-1` | pairs whose direct path changes a byte | none |
//! | `seed=7` | of the order of execution | 0 |
//! | `order=adversarial`, `eager`, `lazy` | by the seed, as early as possible, as late as possible | adversarial |
//! | `arch=80` | compute capability times ten | 80 |
//! | `multiprocessors=16` | multiprocessors that each says it has, 1 to 1024 | 4 |
//! | `fail=NAME:N[:CODE][:sticky][:late]` | call N of a function (`any`: of all) fails; may be repeated | |
//! | `skip=cuStreamWaitEvent:N` | call N of a function that waits is left out; may be repeated | |
//! | `audit=writes` | each launch is checked for writes outside what its kernel declares; slow | off |
//! | `cublas=off`, `rule`, `16`, `wrong` | whether the functions of cuBLAS may be used: not, by the backend's rule, from 16 columns on, by the rule with one wrong element in each product | off |
//! | `trace=stderr` | calls and operations are told as they happen, a line each | off |
//!
//! `CODE` is a number or a name such as `OUT_OF_MEMORY`. `sticky` kills the current device: it answers every later call
//! with the code. `late` lets the call succeed; the operation that it queued fails when it runs, and kills its device.
//! Calls that give something back do so even when they are made to fail: a driver reports earlier failures through them.
//!
//! # What it does
//! - Device addresses lie in reserved ranges: the host faults on them. The bytes are elsewhere, between guards that are
//!   checked after each kernel. Fresh memory is all ones, which is NaN in every float format. No address is given twice.
//!   Pinned memory is poisoned when a copy into it is queued, so that a reader that does not wait sees NaN.
//! - Every argument is checked. What is wrong gets the driver's code and a line in the report.
//! - Operations are queued, and run in an order that the seed chooses among those that events and synchronisation
//!   allow. See module `queue`.
//! - Beside it vector clocks find operations on the same bytes that nothing orders, in whatever order they ran. See
//!   module `race`.
//! - Copies of pageable memory are staged or waited for as the driver's documentation says. See module `transfer`.
//! - Streams can be captured into graphs, which launch as directed graphs and not as sequences. See module `capture`.
//! - Kernels are those of the CUDA backend, compiled for the host. A module image is `loadmaster-cudasim:SOURCE`.
//!
//! - The functions of cuBLAS that the backend calls are here too, if the configuration offers them. Their numbers for what
//!   went wrong are the library's. See module `blas`.
//!
//! Threads: see module `sim`.

mod audit;
mod blas;
mod capture;
mod clock;
mod code;
mod config;
mod context;
mod event;
mod fault;
pub mod ffi;
mod host;
mod launch;
mod mapping;
mod memory;
mod module;
mod product;
mod queue;
mod race;
pub mod registry;
mod report;
mod rng;
mod shadow;
mod sim;
mod state;
mod stream;
mod task;
mod transfer;

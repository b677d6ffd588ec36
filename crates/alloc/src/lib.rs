//! Memory planning: tensor, dynamic and graph allocators, placers, lower bounds, and a checker.
//!
//! Knows graphs, not devices: a kind of memory is a [`BufferType`]. Nothing here touches memory.
//!
//! - [`AllocGraph`]: a graph as an allocator sees it, with copies and keep nodes; [`BufferIds`]: where each entry goes.
//! - [`plan()`]: the pure core, an [`AllocPlan`] by a [`Placer`]. [`report()`] explains it, [`Checker`] verifies it.
//! - [`GraphAllocator`]: plans, keeps plans, holds memory. [`TensorAllocator`] and [`alloc_tensors`]: weights.
//! - [`pack`]: the packing problem by itself. [`DynAllocator`]: free blocks in chunks.
//!
//! "Rule n" in these docs is a rule of ggml's scheduler and allocator, whose behaviour [`Placer::Ggml`] reproduces.

#[cfg(test)]
extern crate self as loadmaster_alloc;

pub mod arenas;
pub mod buffer_type;
pub mod check;
pub mod dynamic;
pub mod error;
pub mod graph_allocator;
pub mod group;
pub mod in_place;
pub mod key;
pub mod linear;
pub mod lowered;
mod memory;
pub mod mismatch;
pub mod pack;
pub mod place;
pub mod plan;
pub mod report;
mod reservations;

pub use arenas::{Arenas, BufferIds};
pub use buffer_type::{Buffer, BufferType, Refused};
pub use check::{CheckError, Checker};
pub use dynamic::DynAllocator;
pub use error::AllocError;
pub use graph_allocator::{Allocation, GraphAllocator};
pub use group::{TensorGroup, alloc_tensors, alloc_tensors_size};
pub use in_place::InPlaceTable;
pub use key::GraphKey;
pub use linear::TensorAllocator;
pub use lowered::{AllocGraph, ArenaId, Item, ItemId, Origin};
pub use place::{BestOptions, InPlaceTables, Placer, Reorder, UnusedInputs, plan};
pub use plan::{AllocPlan, Placement, Reuse};
pub use report::{ArenaReport, Lifetime, PlanReport, lifetimes, report};

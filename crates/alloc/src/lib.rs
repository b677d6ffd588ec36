//! Memory planning: tensor, dynamic and graph allocators, placers, lower bounds, and a checker.
//!
//! Knows graphs, not devices: a kind of memory is a [`BufferType`]. Nothing here touches memory.

pub mod buffer_type;
pub mod lowered;
pub mod pack;

pub use buffer_type::{Buffer, BufferType, Refused};
pub use lowered::{AllocGraph, ArenaId, Item, ItemId, Origin};

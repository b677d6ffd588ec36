//! Real models through the whole house: prepared, loaded, run.

#![allow(clippy::unwrap_used, clippy::panic)]

#[cfg(feature = "cuda")]
mod cuda;
mod faults;
mod logits;
mod options;
mod sizes;
mod support;
mod texts;

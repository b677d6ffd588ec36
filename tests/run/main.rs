//! Real models through the whole house: prepared, loaded, run.

#![allow(clippy::unwrap_used, clippy::panic)]

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_faults;
mod endings;
mod faults;
mod logits;
mod options;
#[path = "../support/random_models.rs"]
mod random_models;
mod sequences;
mod sizes;
mod support;
mod texts;

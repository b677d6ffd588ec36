//! Real models through the whole house: prepared, loaded, run.

#![allow(clippy::unwrap_used, clippy::panic)]

mod faults;
mod logits;
mod options;
mod sizes;
mod support;
mod texts;

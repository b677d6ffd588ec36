//! Real models through the whole house: prepared, loaded, run.

mod faults;
mod logits;
mod options;
mod sizes;
mod support;
mod texts;

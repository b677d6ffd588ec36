//! The service: by its router, over real sockets, and with devices that die.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail loudly")]

mod answers;
#[cfg(feature = "cuda")]
mod cuda;
mod faults;
mod hostile;
mod ledger;
mod limits;
mod loads;
mod refusals;
mod shapes;
mod support;

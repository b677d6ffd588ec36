//! What the program tells while it runs: trace files, lines, a collector, metrics.

#![allow(clippy::unwrap_used, clippy::panic)]

mod collector;
mod documented;
mod lines;
mod log;
mod scrape;
mod served;
mod support;
mod traces;

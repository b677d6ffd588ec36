//! The library side of the `loadmaster` command: configuration, placement, and what the commands do.

pub mod commands;
pub mod config;
pub mod engine;
pub mod files;
pub mod placement;
pub mod plan;
pub mod probe;
pub mod serve;
pub mod telemetry;

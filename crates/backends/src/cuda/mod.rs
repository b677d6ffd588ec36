//! `cuda`: NVIDIA GPUs through their driver, which is loaded at run time.

#![allow(dead_code, reason = "launch types before their users")]

pub(crate) mod launch;
pub mod on_host;

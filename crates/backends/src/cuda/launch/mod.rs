//! From a node to kernel launches.

pub(crate) mod sources;
pub(crate) mod types;

use crate::cpu;
use crate::error::Unsupported;
use loadmaster_alloc::InPlaceTable;
use types::{Launches, NodeView, Target};

/// The launches of a node. A pure function of its arguments. Errors: no kernel for these types, shapes or parameters.
pub(crate) fn launches(node: &NodeView<'_>, _target: &Target) -> Result<Launches, Unsupported> {
    if !crate::program::computes(node.op) {
        return Ok(Launches::default());
    }
    Err(Unsupported { why: format!("no CUDA kernel of {}", node.op) })
}

/// Which operands may share bytes with the result: the kernels keep the table of the CPU's.
pub(crate) fn in_place() -> InPlaceTable {
    cpu::in_place()
}

//! The arithmetic that devices of this process run, as they see it.

use crate::cpu::{KernelError, NodeArgs};
use crate::device::OpShape;
use crate::error::Unsupported;
use loadmaster_alloc::InPlaceTable;
use std::fmt;

/// A set of kernels. The CPU and the virtual GPUs run the same one, so their results agree bit for bit.
pub trait Kernels: fmt::Debug + Send + Sync {
    /// What they are, for people.
    fn description(&self) -> String {
        format!("{self:?}")
    }
    /// Whether there is a kernel for this, and if not, why.
    fn supports(&self, op: &OpShape<'_>) -> Result<(), Unsupported>;
    /// Which operands may share their bytes with the result.
    fn in_place(&self) -> InPlaceTable;
    /// Computes nodes one after another until `next` gives none. Errors: the node that `next` gave last failed.
    ///
    /// # Safety
    /// Every operand's span must be valid memory while its node runs; nothing else may write the sources or touch the
    /// result meanwhile. The result overlaps a source only as [`Kernels::in_place`] allows.
    unsafe fn run<'a>(&self, next: &mut dyn FnMut() -> Option<NodeArgs<'a>>) -> Result<(), KernelError>;
}

//! What kernels need of a GPU's memory beside their operands, without any GPU.

use super::launch;
use super::launch::types::{Layout, NodeView, Target};
use crate::device::OpShape;
use crate::error::Unsupported;
use loadmaster_graph::{Bytes, Tensor};
use smallvec::SmallVec;

/// Bytes that the kernels of a node need while they run, on a GPU like `target`, for as many tokens, sequences and cached
/// cells as the node has, and for fewer of any of these: what was taken for the largest graph is enough for every other.
///
/// Pure, and O(1) but for attention, which takes a step for each number of queries that leaves multiprocessors idle.
/// Errors: no kernel for these types, shapes or parameters.
pub fn workspace(op: &OpShape<'_>, target: &Target) -> Result<Bytes, Unsupported> {
    with_view(op, |view| launch::workspace(view, target)).map(Bytes)
}

/// An operation as launches see it.
pub(crate) fn with_view<T>(op: &OpShape<'_>, then: impl FnOnce(&NodeView<'_>) -> T) -> T {
    let src: SmallVec<[_; 8]> = op.sources.iter().map(|s| s.map(layout)).collect();
    then(&NodeView { op: op.op(), params: &op.tensor.params, src: &src, dst: layout(op.tensor) })
}

fn layout(tensor: &Tensor) -> Layout {
    Layout { dtype: tensor.dtype, ne: tensor.ne, nb: tensor.nb }
}

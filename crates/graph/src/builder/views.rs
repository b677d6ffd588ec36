//! Views: other extents and strides for bytes that are there already.

use super::{BuildError, Built, GraphBuilder, OperandFault, derived, dims, params};
use crate::id::TensorId;
use crate::op::Op;
use crate::tensor::{DIMS, contiguous_strides};
use crate::units::Bytes;

impl GraphBuilder {
    /// Part of `a`: at most four extents, and the strides of the dimensions above the innermost, one less than extents.
    /// `offset` counts from the first byte of `a`. Missing outer dimensions are 1.
    ///
    /// `view(a, &[n], &[], o)` is ggml's `view_1d`, `view(a, &[n, m], &[nb1], o)` its `view_2d`, and so on.
    pub fn view(&mut self, a: TensorId, ne: &[u64], strides: &[Bytes], offset: Bytes) -> Built {
        let op = Op::View;
        let mut view = self.view_of(op, a, offset)?;
        if strides.len() + 1 != ne.len().max(1) {
            return Err(BuildError::Dimensions {
                op,
                what: "strides",
                found: strides.len(),
                limit: ne.len().max(1) - 1,
            });
        }
        view.ne = dims(op, ne)?;
        view.nb = match strides {
            [] => contiguous_strides(view.dtype, &view.ne),
            given => strides_above(&view.ne, view.dtype.block_size(), given),
        }
        .or_overflow(&view)?;
        view.params = params(&[offset.get() as u32, (offset.get() >> 32) as u32]);
        self.push(view)
    }

    /// Other extents of the same number of elements; `a` must be contiguous.
    pub fn reshape(&mut self, a: TensorId, ne: &[u64]) -> Built {
        let op = Op::Reshape;
        let tensor = self.operand(op, a)?;
        self.require(tensor.is_contiguous(), op, OperandFault::NotContiguous, &[a])?;
        let mut view = self.view_of(op, a, Bytes::ZERO)?;
        view.ne = dims(op, ne)?;
        self.require(view.elements() == tensor.elements(), op, OperandFault::ElementsDiffer, &[a])?;
        view.name = derived(&tensor.name, "reshaped");
        view.nb = contiguous_strides(view.dtype, &view.ne).or_overflow(&view)?;
        self.push(view)
    }

    /// Dimension `i` of `a` becomes dimension `axes[i]` of the result.
    pub fn permute(&mut self, a: TensorId, axes: [usize; DIMS]) -> Built {
        let op = Op::Permute;
        let tensor = self.operand(op, a)?;
        let all = (0..DIMS).all(|axis| axes.contains(&axis));
        self.require(all, op, OperandFault::BadAxes, &[a])?;
        let mut view = self.view_of(op, a, Bytes::ZERO)?;
        for (from, to) in axes.into_iter().enumerate() {
            view.ne[to] = tensor.ne[from];
            view.nb[to] = tensor.nb[from];
        }
        view.name = derived(&tensor.name, "permuted");
        view.params = params(&axes.map(|axis| axis as u32));
        self.push(view)
    }

    /// The two innermost dimensions change places.
    pub fn transpose(&mut self, a: TensorId) -> Built {
        let mut view = self.view_of(Op::Transpose, a, Bytes::ZERO)?;
        view.name = derived(&self.operand(Op::Transpose, a)?.name, "transposed");
        view.ne.swap(0, 1);
        view.nb.swap(0, 1);
        self.push(view)
    }
}

/// The given strides; above them, each is the one below times its extent.
fn strides_above(ne: &[u64; DIMS], innermost: Bytes, given: &[Bytes]) -> Option<[u64; DIMS]> {
    let mut nb = [innermost.get(); DIMS];
    for i in 1..DIMS {
        nb[i] = match given.get(i - 1) {
            Some(stride) => stride.get(),
            None => nb[i - 1].checked_mul(ne[i - 1])?,
        };
    }
    Some(nb)
}

/// Strides that do not exist are an overflow, or a partial block.
trait OrOverflow<T> {
    fn or_overflow(self, tensor: &crate::tensor::Tensor) -> Result<T, BuildError>;
}

impl<T> OrOverflow<T> for Option<T> {
    fn or_overflow(self, tensor: &crate::tensor::Tensor) -> Result<T, BuildError> {
        let (op, dtype, ne) = (tensor.op, tensor.dtype, tensor.ne);
        self.ok_or(BuildError::Shape { op, dtype, ne, why: super::shape_fault(dtype, &ne) })
    }
}

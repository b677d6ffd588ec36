//! Operations on one element at a time, and on rows.

use super::{BuildError, Built, GraphBuilder, OperandFault, contiguous, derived, params};
use crate::id::TensorId;
use crate::op::{Op, OpKind};
use crate::tensor::{Tensor, repeats};
use crate::units::Bytes;

/// Which half of the input of a fused gated linear unit is the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GluHalves {
    /// The first half of each row is activated, and gates the second.
    #[default]
    GateFirst,
    /// The second half of each row is activated, and gates the first.
    GateLast,
}

impl GraphBuilder {
    /// ADD, SUB, MUL or DIV: `a` with `b` repeated to its extents. Result: like `a`.
    pub fn binary(&mut self, op: Op, a: TensorId, b: TensorId) -> Built {
        self.check_binary(op, a, b)?;
        let tensor = self.like(op, a, &[Some(a), Some(b)])?;
        self.push(tensor)
    }

    /// Like [`Self::binary`], but the result is a view of `a`, whose elements are overwritten.
    pub fn binary_in_place(&mut self, op: Op, a: TensorId, b: TensorId) -> Built {
        self.check_binary(op, a, b)?;
        let mut tensor = self.view_of(op, a, Bytes::ZERO)?;
        tensor.src.push(Some(b));
        self.push(tensor)
    }

    fn check_binary(&self, op: Op, a: TensorId, b: TensorId) -> Result<(), BuildError> {
        if !matches!(op, Op::Add | Op::Sub | Op::Mul | Op::Div) {
            return Err(BuildError::Family { op, family: "binary" });
        }
        let fits = repeats(&self.operand(op, b)?.ne, &self.operand(op, a)?.ne);
        self.require(fits, op, OperandFault::NotRepeatable, &[a, b])
    }

    /// `a + b`, with `b` repeated.
    pub fn add(&mut self, a: TensorId, b: TensorId) -> Built {
        self.binary(Op::Add, a, b)
    }

    /// `a - b`, with `b` repeated.
    pub fn sub(&mut self, a: TensorId, b: TensorId) -> Built {
        self.binary(Op::Sub, a, b)
    }

    /// `a * b`, element by element, with `b` repeated.
    pub fn mul(&mut self, a: TensorId, b: TensorId) -> Built {
        self.binary(Op::Mul, a, b)
    }

    /// `a / b`, element by element, with `b` repeated.
    pub fn div(&mut self, a: TensorId, b: TensorId) -> Built {
        self.binary(Op::Div, a, b)
    }

    /// An operation on each element: the unary family (but XIELU), or DUP, SQR, SQRT, LOG, SIN, COS. Result: like `a`.
    pub fn unary(&mut self, op: Op, a: TensorId) -> Built {
        self.check_unary(op, a)?;
        let mut tensor = self.like(op, a, &[Some(a)])?;
        tensor.params = family_params(op);
        self.push(tensor)
    }

    /// Like [`Self::unary`], but the result is a view of `a`, whose elements are overwritten.
    pub fn unary_in_place(&mut self, op: Op, a: TensorId) -> Built {
        self.check_unary(op, a)?;
        let mut tensor = self.view_of(op, a, Bytes::ZERO)?;
        tensor.params = family_params(op);
        self.push(tensor)
    }

    fn check_unary(&self, op: Op, a: TensorId) -> Result<(), BuildError> {
        let tensor = self.operand(op, a)?;
        match op {
            Op::Dup | Op::Sqr | Op::Sqrt | Op::Log | Op::Sin | Op::Cos => Ok(()),
            Op::Xielu => Err(BuildError::Family { op, family: "parameterless unary" }),
            _ if op.kind() == OpKind::Unary => {
                self.require(tensor.has_contiguous_rows(), op, OperandFault::RowsNotContiguous, &[a])
            }
            _ => Err(BuildError::Family { op, family: "unary" }),
        }
    }

    /// A gated linear unit on rows that hold both halves. Result: like `a`, with half the innermost extent.
    pub fn glu(&mut self, op: Op, a: TensorId, halves: GluHalves) -> Built {
        let tensor = self.check_glu(op, a)?;
        let (dtype, mut ne) = (tensor.dtype, tensor.ne);
        self.require(ne[0].is_multiple_of(2), op, OperandFault::OddExtent, &[a])?;
        ne[0] /= 2;
        let mut result = contiguous(op, dtype, ne)?;
        result.src.push(Some(a));
        result.params = params(&[op.number_in_family(), u32::from(halves == GluHalves::GateLast)]);
        self.push(result)
    }

    /// A gated linear unit of a gate `a` and values `b` of the same extents. Result: like `a`.
    pub fn glu_split(&mut self, op: Op, a: TensorId, b: TensorId) -> Built {
        let tensor = self.glu_of_two(op, a, b, &[op.number_in_family()])?;
        self.push(tensor)
    }

    /// SiLU(a) · b.
    pub fn swiglu_split(&mut self, a: TensorId, b: TensorId) -> Built {
        self.glu_split(Op::Swiglu, a, b)
    }

    /// GELU(a) · b.
    pub fn geglu_split(&mut self, a: TensorId, b: TensorId) -> Built {
        self.glu_split(Op::Geglu, a, b)
    }

    /// The gated unit of gpt-oss: both inputs clamped to `limit`, the sigmoid's argument scaled by `alpha`.
    pub fn swiglu_oai(&mut self, a: TensorId, b: TensorId, alpha: f32, limit: f32) -> Built {
        let op = Op::SwigluOai;
        let words = [op.number_in_family(), 0, alpha.to_bits(), limit.to_bits()];
        let tensor = self.glu_of_two(op, a, b, &words)?;
        self.push(tensor)
    }

    fn glu_of_two(&self, op: Op, a: TensorId, b: TensorId, words: &[u32]) -> Result<Tensor, BuildError> {
        let (first, second) = (self.check_glu(op, a)?, self.check_glu(op, b)?);
        self.require(first.ne == second.ne, op, OperandFault::ExtentsDiffer, &[a, b])?;
        self.require(first.dtype == second.dtype, op, OperandFault::TypesDiffer, &[a, b])?;
        let mut tensor = self.like(op, a, &[Some(a), Some(b)])?;
        tensor.params = params(words);
        Ok(tensor)
    }

    fn check_glu(&self, op: Op, a: TensorId) -> Result<&Tensor, BuildError> {
        if op.kind() != OpKind::Glu {
            return Err(BuildError::Family { op, family: "gated linear unit" });
        }
        let tensor = self.operand(op, a)?;
        self.require(tensor.is_contiguous_beyond(1), op, OperandFault::NotContiguous, &[a])?;
        Ok(tensor)
    }

    /// Rows normalized to mean 0 and variance 1. Result: like `a`.
    pub fn norm(&mut self, a: TensorId, eps: f32) -> Built {
        self.with_params(Op::Norm, a, &[eps.to_bits()])
    }

    /// Rows normalized to root mean square 1. Result: like `a`.
    pub fn rms_norm(&mut self, a: TensorId, eps: f32) -> Built {
        self.with_params(Op::RmsNorm, a, &[eps.to_bits()])
    }

    /// Rows normalized to length 1. Result: like `a`.
    pub fn l2_norm(&mut self, a: TensorId, eps: f32) -> Built {
        self.with_params(Op::L2Norm, a, &[eps.to_bits()])
    }

    /// `a * factor`. Result: like `a`.
    pub fn scale(&mut self, a: TensorId, factor: f32) -> Built {
        self.scale_bias(a, factor, 0.0)
    }

    /// `a * factor + bias`. Result: like `a`.
    pub fn scale_bias(&mut self, a: TensorId, factor: f32, bias: f32) -> Built {
        self.check_scale(a)?;
        self.with_params(Op::Scale, a, &[factor.to_bits(), bias.to_bits()])
    }

    /// `a * factor`, as a view of `a`, whose elements are overwritten.
    pub fn scale_in_place(&mut self, a: TensorId, factor: f32) -> Built {
        self.check_scale(a)?;
        let mut tensor = self.view_of(Op::Scale, a, Bytes::ZERO)?;
        tensor.params = params(&[factor.to_bits()]);
        self.push(tensor)
    }

    fn check_scale(&self, a: TensorId) -> Result<(), BuildError> {
        let dense = self.operand(Op::Scale, a)?.is_padded_1d();
        self.require(dense, Op::Scale, OperandFault::NotContiguous, &[a])
    }

    /// Elements limited to `min..=max`. Result: like `a`.
    pub fn clamp(&mut self, a: TensorId, min: f32, max: f32) -> Built {
        self.with_params(Op::Clamp, a, &[min.to_bits(), max.to_bits()])
    }

    /// Every element set to a value. Result: like `a`.
    pub fn fill(&mut self, a: TensorId, value: f32) -> Built {
        let contiguous = self.operand(Op::Fill, a)?.is_contiguous();
        self.require(contiguous, Op::Fill, OperandFault::NotContiguous, &[a])?;
        self.with_params(Op::Fill, a, &[value.to_bits()])
    }

    fn with_params(&mut self, op: Op, a: TensorId, words: &[u32]) -> Built {
        let mut tensor = self.like(op, a, &[Some(a)])?;
        tensor.params = params(words);
        self.push(tensor)
    }

    /// The sum of each row. Result: type of `a`, `[1, ne1, ne2, ne3]`.
    pub fn sum_rows(&mut self, a: TensorId) -> Built {
        let tensor = self.operand(Op::SumRows, a)?;
        let (dtype, [_, outer @ ..]) = (tensor.dtype, tensor.ne);
        let mut result = contiguous(Op::SumRows, dtype, [1, outer[0], outer[1], outer[2]])?;
        result.src.push(Some(a));
        self.push(result)
    }

    /// `a` repeated to the given extents, which must be multiples of its own.
    pub fn repeat(&mut self, a: TensorId, ne: [u64; 4]) -> Built {
        let tensor = self.operand(Op::Repeat, a)?;
        let (dtype, fits) = (tensor.dtype, repeats(&tensor.ne, &ne));
        self.require(fits, Op::Repeat, OperandFault::NotRepeatable, &[a])?;
        let mut result = contiguous(Op::Repeat, dtype, ne)?;
        result.src.push(Some(a));
        self.push(result)
    }

    /// `a` and `b` one after the other along a dimension; the other extents must agree.
    pub fn concat(&mut self, a: TensorId, b: TensorId, dim: usize) -> Built {
        let op = Op::Concat;
        let (first, second) = (self.operand(op, a)?, self.operand(op, b)?);
        self.require(dim < 4, op, OperandFault::BadAxes, &[a, b])?;
        self.require(first.dtype == second.dtype, op, OperandFault::TypesDiffer, &[a, b])?;
        let (dtype, mut ne) = (first.dtype, first.ne);
        ne[dim] = second.ne[dim];
        self.require(ne == second.ne, op, OperandFault::ExtentsDiffer, &[a, b])?;
        ne[dim] = ne[dim].saturating_add(first.ne[dim]);
        let mut result = contiguous(op, dtype, ne)?;
        result.src.extend([Some(a), Some(b)]);
        result.params = params(&[dim as u32]);
        self.push(result)
    }

    /// A contiguous copy of `a` with the same extents.
    pub fn cont(&mut self, a: TensorId) -> Built {
        let ne = self.operand(Op::Cont, a)?.ne;
        self.cont_as(a, ne)
    }

    /// A contiguous copy of `a` with other extents of the same number of elements.
    pub fn cont_as(&mut self, a: TensorId, ne: [u64; 4]) -> Built {
        let op = Op::Cont;
        let tensor = self.operand(op, a)?;
        let mut result = contiguous(op, tensor.dtype, ne)?;
        result.name = derived(&tensor.name, "cont");
        self.require(tensor.elements() == result.elements(), op, OperandFault::ElementsDiffer, &[a])?;
        result.src.push(Some(a));
        self.push(result)
    }
}

/// The unary family carries its number; the operations beside it carry nothing.
fn family_params(op: Op) -> crate::tensor::OpParams {
    match op.kind() {
        OpKind::Plain => params(&[]),
        OpKind::Unary | OpKind::Glu => params(&[op.number_in_family()]),
    }
}

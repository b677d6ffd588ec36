//! Rows: reading and writing them by index, copying, sorting.

use super::matrix::is_multiple;
use super::{Built, GraphBuilder, OperandFault, contiguous, derived, params, sources};
use crate::dtype::DType;
use crate::id::TensorId;
use crate::op::Op;
use crate::units::Bytes;

/// Direction of a sort, under ggml's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[repr(u32)]
pub enum SortOrder {
    /// Smallest first.
    #[default]
    Ascending = 0,
    /// Largest first.
    Descending = 1,
}

impl GraphBuilder {
    /// Rows of `a` by index. `a`: `[n, m, x, y]`, `ids`: I32 `[k, x, y]`. Result: F32 (I32 for an I32 `a`) `[n, k, x, y]`.
    pub fn get_rows(&mut self, a: TensorId, ids: TensorId) -> Built {
        let op = Op::GetRows;
        let (rows, i) = (self.operand(op, a)?, self.operand(op, ids)?);
        let fits = rows.ne[2] == i.ne[1] && rows.ne[3] == i.ne[2] && i.ne[3] == 1;
        self.require(fits, op, OperandFault::ExtentsDiffer, &[a, ids])?;
        self.require(i.dtype == DType::I32, op, OperandFault::WrongType, &[a, ids])?;
        let dtype = if rows.dtype == DType::I32 { DType::I32 } else { DType::F32 };
        let mut result = contiguous(op, dtype, [rows.ne[0], i.ne[0], i.ne[1], i.ne[2]])?;
        result.src = sources(&[Some(a), Some(ids)]);
        self.push(result)
    }

    /// Writes rows into a tensor by index. `target`: `[n, m, x, y]`, `rows`: F32 or F16 `[n, k, x, y]`, `ids`: I64 or I32
    /// `[k, x or a divisor, y or a divisor]`. Result: a view of the target.
    pub fn set_rows(&mut self, target: TensorId, rows: TensorId, ids: TensorId) -> Built {
        let op = Op::SetRows;
        let all = [target, rows, ids];
        let (a, b, i) = (self.operand(op, target)?, self.operand(op, rows)?, self.operand(op, ids)?);
        let same = a.ne[0] == b.ne[0] && a.ne[2..] == b.ne[2..] && b.ne[1] == i.ne[0] && i.ne[3] == 1;
        let fits = same && is_multiple(b.ne[2], i.ne[1]) && is_multiple(b.ne[3], i.ne[2]);
        self.require(fits, op, OperandFault::ExtentsDiffer, &all)?;
        let types = matches!(b.dtype, DType::F32 | DType::F16) && matches!(i.dtype, DType::I64 | DType::I32);
        self.require(types, op, OperandFault::WrongType, &all)?;
        let dense = a.has_contiguous_rows() && b.has_contiguous_rows();
        self.require(dense, op, OperandFault::RowsNotContiguous, &all)?;
        let mut result = self.view_of(op, target, Bytes::ZERO)?;
        // The target stands last, for ggml's historical reasons.
        result.src = sources(&[Some(rows), Some(ids), Some(target)]);
        self.push(result)
    }

    /// Copies the elements of `a`, in order, into `target`, converting the type. Result: a view of the target.
    pub fn cpy(&mut self, a: TensorId, target: TensorId) -> Built {
        let op = Op::Cpy;
        let (from, to) = (self.operand(op, a)?, self.operand(op, target)?);
        self.require(from.elements() == to.elements(), op, OperandFault::ElementsDiffer, &[a, target])?;
        let mut result = self.view_of(op, target, Bytes::ZERO)?;
        result.name = match &*to.name {
            "" => derived(&from.name, "copy"),
            name => derived(name, &format!("copy of {}", from.name)),
        };
        result.src = sources(&[Some(a), Some(target)]);
        self.push(result)
    }

    /// The elements of `a` in another type, contiguous. As in ggml, the result is its own second source.
    pub fn cast(&mut self, a: TensorId, dtype: DType) -> Built {
        let from = self.operand(Op::Cpy, a)?;
        let mut result = contiguous(Op::Cpy, dtype, from.ne)?;
        result.name = derived(&from.name, "copy");
        result.src = sources(&[Some(a), Some(self.next_id())]);
        self.push(result)
    }

    /// The order of each row's elements. Result: I32, extents of `a`.
    pub fn argsort(&mut self, a: TensorId, order: SortOrder) -> Built {
        let op = Op::Argsort;
        let tensor = self.operand(op, a)?;
        self.require(tensor.ne[0] <= i32::MAX as u64, op, OperandFault::ExtentsDiffer, &[a])?;
        let mut result = contiguous(op, DType::I32, tensor.ne)?;
        result.src = sources(&[Some(a)]);
        result.params = params(&[order as u32]);
        self.push(result)
    }

    /// The positions of each row's `k` largest elements, largest first, as a view of the whole order (ggml's
    /// `argsort_top_k`; the order is the view's source). Result: I32 `[k, ne1, ne2, ne3]`.
    pub fn argsort_top_k(&mut self, a: TensorId, k: u64) -> Built {
        let enough = self.operand(Op::Argsort, a)?.ne[0] >= k;
        self.require(enough, Op::Argsort, OperandFault::TooFewElements, &[a])?;
        let order = self.argsort(a, SortOrder::Descending)?;
        let (ne, nb) = (self.tensors[order].ne, self.tensors[order].nb);
        self.view(order, &[k, ne[1], ne[2], ne[3]], &[nb[1], nb[2], nb[3]].map(Bytes), Bytes::ZERO)
    }

    /// The positions of each row's `k` largest elements, in no order. Result: I32 `[k, ne1, ne2, ne3]`.
    pub fn top_k(&mut self, a: TensorId, k: u64) -> Built {
        let op = Op::TopK;
        let tensor = self.operand(op, a)?;
        self.require(tensor.ne[0] >= k, op, OperandFault::TooFewElements, &[a])?;
        let mut result = contiguous(op, DType::I32, [k, tensor.ne[1], tensor.ne[2], tensor.ne[3]])?;
        result.src = sources(&[Some(a)]);
        self.push(result)
    }
}

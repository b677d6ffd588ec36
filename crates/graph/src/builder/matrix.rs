//! Matrix products.

use super::{BuildError, Built, GraphBuilder, OperandFault, contiguous, params, sources};
use crate::dtype::DType;
use crate::id::TensorId;
use crate::op::Op;
use crate::tensor::{OpParams, Tensor};

/// Precision of a product or of attention, under ggml's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
#[repr(u32)]
pub enum Precision {
    /// Whatever the device does best.
    #[default]
    Undefined = 0,
    /// At least 32-bit floats.
    F32 = 10,
    /// At least brain floats.
    Bf16 = 15,
    /// At least 16-bit floats.
    F16 = 20,
}

/// How many columns a reference implementation would multiply at once, for devices that follow its order of summation
/// bit for bit. It says what a token is, not how many columns a product has: a token of a prompt keeps the prompt's
/// order however the prompt is cut into micro-batches, and a token that was generated has the order of a single column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ColumnOrder {
    /// Columns that are multiplied at once, at least 1.
    pub columns: u8,
    /// The last of the product's columns, which are left over when columns are taken four at a time.
    pub tail: u16,
}

impl Default for ColumnOrder {
    fn default() -> Self {
        Self { columns: 1, tail: 0 }
    }
}

impl ColumnOrder {
    /// The parameter of MUL_MAT that tells it: `columns | tail << 8`, 0 or absent for a single column. ggml has no
    /// such word, so recorded graphs have none. Graphs that differ in it are different, also by their structural hash,
    /// because their results are; what they need is the same.
    pub const WORD: u8 = 2;

    /// All columns of a product at once. More than eight make no difference.
    #[must_use]
    pub fn of_all(columns: u32) -> Self {
        let tail = if columns < 4 { 0 } else { columns % 4 };
        Self { columns: columns.clamp(1, 8) as u8, tail: tail as u16 }
    }

    /// What a parameter word tells.
    #[must_use]
    pub fn from_word(word: u32) -> Self {
        let [columns, low, high, _] = word.to_le_bytes();
        Self { columns: columns.max(1), tail: u16::from_le_bytes([low, high]) }
    }

    fn word(self) -> u32 {
        if self == Self::default() { 0 } else { u32::from(self.columns) | u32::from(self.tail) << 8 }
    }
}

impl GraphBuilder {
    /// Tells devices the order of the columns of every MUL_MAT built from now on.
    pub fn set_column_order(&mut self, order: ColumnOrder) {
        self.columns = order;
    }

    /// The product of a matrix and rows. `a`: `[k, n, x, y]`, `b`: `[k, m, x·r, y·s]`. Result: F32 `[n, m, x·r, y·s]`.
    pub fn mul_mat(&mut self, a: TensorId, b: TensorId) -> Built {
        let op = Op::MulMat;
        let (first, second) = (self.operand(op, a)?, self.operand(op, b)?);
        self.require(can_multiply(first, second), op, OperandFault::ExtentsDiffer, &[a, b])?;
        self.require(!first.is_transposed(), op, OperandFault::Transposed, &[a, b])?;
        let ne = [first.ne[1], second.ne[1], second.ne[2], second.ne[3]];
        let mut result = contiguous(op, DType::F32, ne)?;
        result.src = sources(&[Some(a), Some(b)]);
        if self.columns != ColumnOrder::default() {
            set_word(&mut result.params, ColumnOrder::WORD.into(), self.columns.word());
        }
        self.push(result)
    }

    /// The product of rows with matrices chosen for each. `experts`: `[k, n, n_expert]`, `b`: `[k, n_used or 1, tokens]`,
    /// `ids`: I32 `[n_used, tokens]`. Result: F32 `[n, n_used, tokens]`.
    pub fn mul_mat_id(&mut self, experts: TensorId, b: TensorId, ids: TensorId) -> Built {
        let op = Op::MulMatId;
        let all = [experts, b, ids];
        let (w, x, i) = (self.operand(op, experts)?, self.operand(op, b)?, self.operand(op, ids)?);
        self.require(!w.is_transposed(), op, OperandFault::Transposed, &all)?;
        self.require(i.dtype == DType::I32, op, OperandFault::WrongType, &all)?;
        let flat = w.ne[3] == 1 && x.ne[3] == 1 && i.is_matrix();
        self.require(flat, op, OperandFault::TooManyDimensions, &all)?;
        let fits = i.ne[1] == x.ne[2] && w.ne[0] == x.ne[0] && is_multiple(i.ne[0], x.ne[1]);
        self.require(fits, op, OperandFault::ExtentsDiffer, &all)?;
        let mut result = contiguous(op, DType::F32, [w.ne[1], i.ne[0], x.ne[2], 1])?;
        result.src = sources(&all.map(Some));
        self.push(result)
    }

    /// `a` plus rows of `b` chosen for each. `a`: `[n, n_used, tokens]`, `b`: `[n, n_expert]`, `ids`: I32 `[n_used, tokens]`.
    /// Result: like `a`.
    pub fn add_id(&mut self, a: TensorId, b: TensorId, ids: TensorId) -> Built {
        let op = Op::AddId;
        let all = [a, b, ids];
        let (x, bias, i) = (self.operand(op, a)?, self.operand(op, b)?, self.operand(op, ids)?);
        let fits = x.ne[0] == bias.ne[0] && x.ne[1] == i.ne[0] && x.ne[2] == i.ne[1];
        self.require(fits, op, OperandFault::ExtentsDiffer, &all)?;
        self.require(i.dtype == DType::I32, op, OperandFault::WrongType, &all)?;
        let result = self.like(op, a, &all.map(Some))?;
        self.push(result)
    }

    /// Demands a precision of a MUL_MAT or FLASH_ATTN_EXT built before.
    pub fn set_precision(&mut self, id: TensorId, precision: Precision) -> Result<(), BuildError> {
        let op = self.operand(Op::None, id)?.op;
        let index = match op {
            Op::MulMat => 0,
            Op::FlashAttnExt => 3,
            _ => return self.require(false, op, OperandFault::NoSuchParameter, &[id]),
        };
        set_word(&mut self.tensors[id].params, index, precision as u32);
        Ok(())
    }
}

/// ggml's hint that the first operand of a product is a Hadamard matrix.
const HINT_HADAMARD: u32 = 1;

impl GraphBuilder {
    /// Tells devices that the first operand of a MUL_MAT built before is a Hadamard matrix.
    pub fn set_hadamard(&mut self, id: TensorId) -> Result<(), BuildError> {
        let op = self.operand(Op::None, id)?.op;
        self.require(op == Op::MulMat, op, OperandFault::NoSuchParameter, &[id])?;
        set_word(&mut self.tensors[id].params, 1, HINT_HADAMARD);
        Ok(())
    }
}

/// Sets a word of trimmed parameters.
fn set_word(words: &mut OpParams, index: usize, word: u32) {
    let len = words.len().max(index + 1);
    words.resize(len, 0);
    words[index] = word;
    *words = params(words);
}

/// Whether `a` can be repeated over the outer extents of `b`, and their rows agree.
pub(super) fn can_multiply(a: &Tensor, b: &Tensor) -> bool {
    a.ne[0] == b.ne[0] && is_multiple(b.ne[2], a.ne[2]) && is_multiple(b.ne[3], a.ne[3])
}

/// Whether `n` is a multiple of `of`; nothing but zero is one of zero.
pub(super) fn is_multiple(n: u64, of: u64) -> bool {
    n.is_multiple_of(of)
}

//! Tensors as the kernels see them: layout and address.

use super::error::{KernelError, SourceIndex, Types};
use loadmaster_graph::{DType, Dims, Op};

/// A tensor's bytes, to read: extents and byte strides innermost first, address of the first element (of the view).
#[derive(Clone, Copy, Debug)]
pub struct TensorRef {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub ne: Dims,
    /// Byte strides; `nb[0]` is the size of a block for quantized types.
    pub nb: Dims,
    /// The first element.
    pub data: *const u8,
}

/// A tensor's bytes, to write.
#[derive(Clone, Copy, Debug)]
pub struct TensorMut {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub ne: Dims,
    /// Byte strides.
    pub nb: Dims,
    /// The first element.
    pub data: *mut u8,
}

// SAFETY: both are plain addresses with a layout. Reading and writing through them is unsafe wherever it happens, under
// the contract of `compute` (valid for the layout, no aliasing but exactly in place), which holds on any thread.
unsafe impl Send for TensorRef {}
// SAFETY: as above.
unsafe impl Sync for TensorRef {}
// SAFETY: as above.
unsafe impl Send for TensorMut {}
// SAFETY: as above.
unsafe impl Sync for TensorMut {}

/// Everything that computes one node.
#[derive(Clone, Copy, Debug)]
pub struct NodeArgs<'a> {
    /// The operation.
    pub op: Op,
    /// Its raw parameter words; missing ones count as zero.
    pub params: &'a [u32],
    /// Its sources.
    pub src: &'a [Option<TensorRef>],
    /// Its result.
    pub dst: TensorMut,
}

/// Indices of a row: dimensions 1, 2 and 3.
pub(crate) type RowAt = [u64; 3];

/// Splits a flat row number by extents.
#[inline]
pub(crate) fn row_at(ne: &Dims, row: u64) -> RowAt {
    if ne[2] == 1 && ne[3] == 1 {
        return [row, 0, 0];
    }
    let plane = row / ne[1];
    [row % ne[1], plane % ne[2], plane / ne[2]]
}

macro_rules! layout {
    ($name:ident, $pointer:ty) => {
        impl $name {
            /// Address of the first element (a method, so that closures capture the whole tensor).
            #[inline]
            pub(crate) fn base(&self) -> $pointer {
                self.data
            }
            /// Number of rows.
            #[inline]
            pub(crate) fn rows(&self) -> u64 {
                self.ne[1] * self.ne[2] * self.ne[3]
            }
            /// Number of elements.
            #[inline]
            pub(crate) fn elements(&self) -> u64 {
                self.ne[0] * self.rows()
            }
            /// Elements (or blocks) of a row follow each other without gaps.
            #[inline]
            pub(crate) fn packed_rows(&self) -> bool {
                self.nb[0] == self.dtype.block_size().get() || self.ne[0] <= self.dtype.block_len()
            }
            /// Byte offset of a row.
            #[inline]
            pub(crate) fn row_offset(&self, at: RowAt) -> usize {
                (at[0] * self.nb[1] + at[1] * self.nb[2] + at[2] * self.nb[3]) as usize
            }
            /// Rows follow each other without gaps too.
            pub(crate) fn contiguous(&self) -> bool {
                let mut next = self.dtype.block_size().get() * (self.ne[0] / self.dtype.block_len());
                let mut packed = self.packed_rows();
                for i in 1..4 {
                    packed &= self.ne[i] == 1 || self.nb[i] == next;
                    next *= self.ne[i];
                }
                packed
            }
        }
    };
}
layout!(TensorRef, *const u8);
layout!(TensorMut, *mut u8);

impl TensorRef {
    /// Bytes from the first element to past the last; saturates.
    pub(crate) fn span(&self) -> usize {
        if self.ne.contains(&0) {
            return 0;
        }
        let blocks = self.ne[0].div_ceil(self.dtype.block_len());
        let steps = [blocks, self.ne[1], self.ne[2], self.ne[3]];
        let reach = steps.iter().zip(&self.nb).map(|(n, nb)| (n - 1).saturating_mul(*nb)).fold(0, u64::saturating_add);
        usize::try_from(reach.saturating_add(self.dtype.block_size().get())).unwrap_or(usize::MAX)
    }
    /// Address of a row.
    ///
    /// # Safety
    /// `at` must lie inside the extents (or the tensor be empty and the address unused).
    #[inline]
    pub(crate) unsafe fn row(&self, at: RowAt) -> *const u8 {
        // SAFETY: the offset stays inside the layout that the caller vouched for.
        unsafe { self.data.add(self.row_offset(at)) }
    }
    /// Address of the row that broadcasting pairs with `at`.
    ///
    /// # Safety
    /// No extent may be zero.
    #[inline]
    pub(crate) unsafe fn row_broadcast(&self, at: RowAt) -> *const u8 {
        let wrap = |i: u64, n: u64| if n == 1 { 0 } else { i % n };
        // SAFETY: every index is reduced below its extent.
        unsafe { self.row([wrap(at[0], self.ne[1]), wrap(at[1], self.ne[2]), wrap(at[2], self.ne[3])]) }
    }
}

impl TensorMut {
    /// Address of a row.
    ///
    /// # Safety
    /// `at` must lie inside the extents.
    #[inline]
    pub(crate) unsafe fn row(&self, at: RowAt) -> *mut u8 {
        // SAFETY: as above.
        unsafe { self.data.add(self.row_offset(at)) }
    }
    /// The same bytes, to read.
    #[inline]
    pub(crate) fn as_ref(&self) -> TensorRef {
        TensorRef { dtype: self.dtype, ne: self.ne, nb: self.nb, data: self.data }
    }
}

impl NodeArgs<'_> {
    /// A source that must be there.
    pub(crate) fn src(&self, operand: u8) -> Result<TensorRef, KernelError> {
        self.optional(operand).ok_or(KernelError::MissingSource { op: self.op, operand: SourceIndex(operand) })
    }
    /// A source that may be a hole.
    #[inline]
    pub(crate) fn optional(&self, operand: u8) -> Option<TensorRef> {
        self.src.get(usize::from(operand)).copied().flatten()
    }
    /// A parameter word; zero beyond the end.
    #[inline]
    pub(crate) fn word(&self, i: u8) -> u32 {
        self.params.get(usize::from(i)).copied().unwrap_or(0)
    }
    /// A parameter word as a signed number.
    #[inline]
    pub(crate) fn int(&self, i: u8) -> i32 {
        self.word(i) as i32
    }
    /// A parameter word as a float.
    #[inline]
    pub(crate) fn float(&self, i: u8) -> f32 {
        f32::from_bits(self.word(i))
    }
    /// `Ok` if a rule on shapes holds.
    pub(crate) fn require(&self, holds: bool, rule: &'static str) -> Result<(), KernelError> {
        if holds {
            return Ok(());
        }
        let src = self.src.iter().flatten().map(|t| t.ne).collect();
        Err(KernelError::Shape { op: self.op, rule, dst: self.dst.ne, src })
    }
    /// An error about a parameter word.
    pub(crate) fn bad_word(&self, word: u8, rule: &'static str) -> KernelError {
        KernelError::Parameter { op: self.op, word, value: self.word(word), rule }
    }
    /// An error about the types.
    pub(crate) fn unsupported(&self) -> KernelError {
        let src = self.src.iter().map(|t| t.map(|t| t.dtype)).collect();
        KernelError::Unsupported { op: self.op, types: Types { src, dst: self.dst.dtype } }
    }
    /// An error about an index.
    pub(crate) fn bad_index(&self, operand: u8, index: i64, rows: u64) -> KernelError {
        KernelError::Index { op: self.op, operand: SourceIndex(operand), index, rows }
    }
}

/// Whether `small` repeats a whole number of times in `large`, in every dimension.
pub(crate) fn repeats_into(small: &Dims, large: &Dims) -> bool {
    small.iter().zip(large).all(|(&s, &l)| l.is_multiple_of(s))
}

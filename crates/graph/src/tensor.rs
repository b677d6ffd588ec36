//! Tensors: shape, strides, operation, sources, view. No data and no placement.

use crate::dtype::DType;
use crate::id::TensorId;
use crate::op::Op;
use crate::units::Bytes;
use smallvec::SmallVec;

/// Number of dimensions of every tensor; unused ones have extent 1.
pub const DIMS: usize = 4;

/// Extents or byte strides, innermost first.
pub type Dims = [u64; DIMS];

/// Sources in operand order; a hole is `None`.
pub type Sources = SmallVec<[Option<TensorId>; 4]>;

/// Raw 32-bit operation parameters, trailing zeros dropped.
pub type OpParams = SmallVec<[u32; 4]>;

/// Flags of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Flags(u8);

impl Flags {
    /// No flags.
    pub const NONE: Self = Self(0);
    /// Written by the caller before the graph runs.
    pub const INPUT: Self = Self(1);
    /// Read by the caller after the graph ran: its memory is never given away.
    pub const OUTPUT: Self = Self(2);
    /// A trainable parameter.
    pub const PARAM: Self = Self(4);
    /// A loss.
    pub const LOSS: Self = Self(8);

    /// Every flag with its name in graph files.
    pub const NAMED: [(Self, &'static str); 4] =
        [(Self::INPUT, "input"), (Self::OUTPUT, "output"), (Self::PARAM, "param"), (Self::LOSS, "loss")];

    /// Both sets of flags.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
    /// Whether all of `other` are set.
    #[inline]
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
    /// Flagged `input`.
    #[inline]
    #[must_use]
    pub const fn is_input(self) -> bool {
        self.contains(Self::INPUT)
    }
    /// Flagged `output`.
    #[inline]
    #[must_use]
    pub const fn is_output(self) -> bool {
        self.contains(Self::OUTPUT)
    }
    /// The bits, for hashing and files.
    #[must_use]
    pub const fn bits(self) -> u8 {
        self.0
    }
}

/// Where a view's bytes are: always relative to the root storage, never to another view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct View {
    /// The tensor that owns the bytes.
    pub root: TensorId,
    /// Bytes from the root's first byte.
    pub offset: Bytes,
}

/// A tensor of a graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// Name, for people and for placement rules; not necessarily unique.
    pub name: Box<str>,
    /// Element type.
    pub dtype: DType,
    /// Extents, innermost first.
    pub ne: Dims,
    /// Byte strides, innermost first.
    pub nb: Dims,
    /// Operation that computes it; `NONE` for a leaf.
    pub op: Op,
    /// Parameters of the operation.
    pub params: OpParams,
    /// Sources of the operation.
    pub src: Sources,
    /// Set where the tensor is a view.
    pub view: Option<View>,
    /// Flags.
    pub flags: Flags,
}

impl Tensor {
    /// A tensor without operation, contiguous, of the given type and extents. `None` if `ne[0]` is no whole number of
    /// blocks or a stride overflows.
    #[must_use]
    pub fn leaf(name: impl Into<Box<str>>, dtype: DType, ne: Dims) -> Option<Self> {
        Some(Self {
            name: name.into(),
            dtype,
            ne,
            nb: contiguous_strides(dtype, &ne)?,
            op: Op::None,
            params: OpParams::new(),
            src: Sources::new(),
            view: None,
            flags: Flags::NONE,
        })
    }

    /// Bytes from the first to past the last element (ggml's `nbytes`); `None` on overflow.
    #[must_use]
    pub fn checked_nbytes(&self) -> Option<Bytes> {
        if self.ne.contains(&0) {
            return Some(Bytes::ZERO);
        }
        let block = self.dtype.block_len();
        let (first, outer) = if block == 1 {
            (self.dtype.block_size().get(), 0)
        } else {
            (self.ne[0].checked_mul(self.nb[0])? / block, 1)
        };
        (outer..DIMS).try_fold(first, |sum, i| sum.checked_add((self.ne[i] - 1).checked_mul(self.nb[i])?)).map(Bytes)
    }

    /// [`Self::checked_nbytes`] for tensors of a verified graph, where it cannot overflow.
    #[inline]
    #[must_use]
    pub fn nbytes(&self) -> Bytes {
        self.checked_nbytes().unwrap_or(Bytes::MAX)
    }

    /// Number of elements; saturates (a verified graph's tensors do not reach the limit).
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.ne.iter().fold(1, |n, &e| n.saturating_mul(e))
    }

    /// Number of rows: the product of all extents but the innermost.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.ne[1..].iter().fold(1, |n, &e| n.saturating_mul(e))
    }

    /// Same type, extents and strides.
    #[must_use]
    pub fn same_layout(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.ne == other.ne && self.nb == other.nb
    }

    /// Whether elements follow each other without gaps in the standard order. Strides of extents of 1 do not count.
    #[must_use]
    pub fn is_contiguous(&self) -> bool {
        self.is_contiguous_beyond(0)
    }

    /// Whether elements follow each other without gaps from dimension `dim` outwards; within `dim` and below, only rows
    /// need to be dense (ggml's `is_contiguous_N`). `is_contiguous_beyond(0)` is [`Self::is_contiguous`].
    #[must_use]
    pub fn is_contiguous_beyond(&self, dim: usize) -> bool {
        let size = self.dtype.block_size().get();
        let mut next = size.saturating_mul(self.ne[0] / self.dtype.block_len());
        for i in 1..DIMS {
            if i <= dim {
                next = self.nb[i];
            } else if self.ne[i] != 1 && self.nb[i] != next {
                return false;
            }
            next = next.saturating_mul(self.ne[i]);
        }
        self.has_contiguous_rows()
    }

    /// Whether the elements of a row follow each other without gaps.
    #[must_use]
    pub fn has_contiguous_rows(&self) -> bool {
        self.ne[0] == self.dtype.block_len() || self.nb[0] == self.dtype.block_size().get()
    }

    /// Whether rows lie at one distance throughout (ggml's `is_padded_1d`).
    #[must_use]
    pub fn is_padded_1d(&self) -> bool {
        let above = |i: usize| self.nb[i] == self.nb[i - 1].saturating_mul(self.ne[i - 1]);
        self.nb[0] == self.dtype.block_size().get() && above(2) && above(3)
    }

    /// Whether the innermost stride is larger than the next.
    #[must_use]
    pub const fn is_transposed(&self) -> bool {
        self.nb[0] > self.nb[1]
    }

    /// Whether only the innermost extent differs from 1.
    #[must_use]
    pub fn is_vector(&self) -> bool {
        self.ne[1..] == [1; 3]
    }

    /// Whether only the two innermost extents differ from 1.
    #[must_use]
    pub fn is_matrix(&self) -> bool {
        self.ne[2..] == [1; 2]
    }

    /// Whether it is a view.
    #[inline]
    #[must_use]
    pub const fn is_view(&self) -> bool {
        self.view.is_some()
    }
}

/// Strides of a contiguous tensor; `None` if `ne[0]` is no whole number of blocks or a stride overflows.
#[must_use]
pub fn contiguous_strides(dtype: DType, ne: &Dims) -> Option<Dims> {
    let row = dtype.row_size(ne[0])?.get();
    let plane = row.checked_mul(ne[1])?;
    Some([dtype.block_size().get(), row, plane, plane.checked_mul(ne[2])?])
}

/// Whether `ne` can be repeated to give `to`: each extent of `to` is a multiple (ggml's `can_repeat`).
#[must_use]
pub fn repeats(ne: &Dims, to: &Dims) -> bool {
    if ne.contains(&0) {
        return to.contains(&0);
    }
    ne.iter().zip(to).all(|(&n, &m)| m.is_multiple_of(n))
}

//! Tensors that own their bytes: the safe way to compute a node, for tests, benches and references.

use super::ctx::ComputeCtx;
use super::dispatch::compute;
use super::error::KernelError;
use super::tensor::{NodeArgs, TensorMut, TensorRef};
use loadmaster_graph::{Bytes, DType, Dims, Op, contiguous_strides};

/// A tensor with its own memory, aligned to 64 bytes.
#[derive(Clone, Debug)]
pub struct OwnedTensor {
    dtype: DType,
    ne: Dims,
    nb: Dims,
    offset: usize,
    lines: Vec<Line>,
}

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Why bytes and layout do not make a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OwnedError {
    /// The innermost extent is no whole number of blocks, or a size overflows.
    #[error("{dtype} {ne:?}: no whole number of blocks, or too large")]
    Layout {
        /// The type.
        dtype: DType,
        /// The extents.
        ne: Dims,
    },
    /// The layout reaches past the bytes.
    #[error("{dtype} {ne:?} with strides {nb:?} needs {needed}, the memory has {available}")]
    TooShort {
        /// The type.
        dtype: DType,
        /// The extents.
        ne: Dims,
        /// The strides.
        nb: Dims,
        /// Bytes the layout spans, from the start of the memory.
        needed: Bytes,
        /// Bytes there are.
        available: Bytes,
    },
}

impl OwnedTensor {
    /// A contiguous tensor of zero bytes. Errors: [`OwnedError::Layout`].
    pub fn zeros(dtype: DType, ne: Dims) -> Result<Self, OwnedError> {
        let bad = OwnedError::Layout { dtype, ne };
        let nb = contiguous_strides(dtype, &ne).ok_or_else(|| bad.clone())?;
        let bytes = nb[3].checked_mul(ne[3]).and_then(|b| usize::try_from(b).ok()).ok_or(bad)?;
        Ok(Self { dtype, ne, nb, offset: 0, lines: vec![Line([0; 64]); bytes.div_ceil(64)] })
    }

    /// A contiguous tensor with the first bytes given; the rest is zero. Errors: as [`Self::zeros`], or more bytes than
    /// it has.
    pub fn from_bytes(dtype: DType, ne: Dims, bytes: &[u8]) -> Result<Self, OwnedError> {
        let mut this = Self::zeros(dtype, ne)?;
        let available = Bytes(this.memory().len() as u64);
        let needed = Bytes(bytes.len() as u64);
        let nb = this.nb;
        let memory = this.memory_mut().get_mut(..bytes.len());
        memory.ok_or(OwnedError::TooShort { dtype, ne, nb, needed, available })?.copy_from_slice(bytes);
        Ok(this)
    }

    /// The same memory seen with other extents and strides, from a byte offset. Errors: the layout leaves the memory.
    pub fn with_layout(self, offset: Bytes, ne: Dims, nb: Dims) -> Result<Self, OwnedError> {
        let dtype = self.dtype;
        self.reinterpret(dtype, offset, ne, nb)
    }

    /// The same memory seen as another type. Errors: the layout leaves the memory.
    pub fn reinterpret(self, dtype: DType, offset: Bytes, ne: Dims, nb: Dims) -> Result<Self, OwnedError> {
        let available = Bytes(self.memory().len() as u64);
        let span = span(dtype, &ne, &nb).and_then(|s| s.checked_add(offset.get()));
        let needed = Bytes(span.ok_or(OwnedError::Layout { dtype, ne })?);
        if needed > available {
            return Err(OwnedError::TooShort { dtype, ne, nb, needed, available });
        }
        Ok(Self { dtype, ne, nb, offset: offset.get() as usize, ..self })
    }

    /// Element type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }
    /// Extents.
    #[must_use]
    pub fn ne(&self) -> Dims {
        self.ne
    }
    /// Byte strides.
    #[must_use]
    pub fn nb(&self) -> Dims {
        self.nb
    }
    /// Byte offset of the first element in the memory.
    #[must_use]
    pub fn offset(&self) -> Bytes {
        Bytes(self.offset as u64)
    }

    /// All bytes, whatever the layout; a multiple of 64.
    #[must_use]
    pub fn memory(&self) -> &[u8] {
        // SAFETY: lines are plain bytes without padding.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.lines.len() * 64) }
    }
    /// All bytes, to write.
    pub fn memory_mut(&mut self) -> &mut [u8] {
        // SAFETY: lines are plain bytes without padding, any value is valid.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.lines.len() * 64) }
    }

    fn to_ref(&self) -> TensorRef {
        // SAFETY: the offset lies inside the memory (or the tensor is empty and the offset at its end).
        let data = unsafe { self.lines.as_ptr().cast::<u8>().add(self.offset) };
        TensorRef { dtype: self.dtype, ne: self.ne, nb: self.nb, data }
    }
    fn to_mut(&mut self) -> TensorMut {
        // SAFETY: as above.
        let data = unsafe { self.lines.as_mut_ptr().cast::<u8>().add(self.offset) };
        TensorMut { dtype: self.dtype, ne: self.ne, nb: self.nb, data }
    }
}

/// Bytes from the first element to past the last.
fn span(dtype: DType, ne: &Dims, nb: &Dims) -> Option<u64> {
    if ne.contains(&0) {
        return Some(0);
    }
    let blocks = ne[0].checked_div(dtype.block_len()).filter(|b| b * dtype.block_len() == ne[0])?;
    let mut end = dtype.block_size().get();
    for (n, stride) in [blocks, ne[1], ne[2], ne[3]].into_iter().zip(nb) {
        end = end.checked_add((n - 1).checked_mul(*stride)?)?;
    }
    Some(end)
}

/// Computes a node on owned tensors. Errors: those of [`compute`].
pub fn compute_owned(
    ctx: &ComputeCtx,
    op: Op,
    params: &[u32],
    src: &[Option<&OwnedTensor>],
    dst: &mut OwnedTensor,
) -> Result<(), KernelError> {
    let src: Vec<_> = src.iter().map(|s| s.map(OwnedTensor::to_ref)).collect();
    let node = NodeArgs { op, params, src: &src, dst: dst.to_mut() };
    let all_aligned = node.src.iter().flatten().all(aligned) && aligned(&node.dst.as_ref());
    node.require(all_aligned, "elements must be aligned to their size")?;
    // SAFETY: owned tensors are valid for their layouts, which were checked against their memory; elements are aligned;
    // the exclusive borrow keeps the result apart from all sources.
    unsafe { compute(ctx, &node) }
}

fn aligned(t: &TensorRef) -> bool {
    let size = t.dtype.block_size().get();
    t.dtype.is_quantized() || ((t.data as u64).is_multiple_of(size) && t.nb.iter().all(|nb| nb % size == 0))
}

//! What the allocators need of a kind of memory.

use loadmaster_graph::{Align, Bytes, Tensor, TensorId};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A kind of memory with its rules. Two ids with the same buffer type (by [`same_type`]) share one dynamic
/// allocator and one arena.
pub trait BufferType: fmt::Debug + Send + Sync {
    /// Its name, for reports and errors.
    fn name(&self) -> &str;
    /// Every tensor starts at a multiple of this.
    fn alignment(&self) -> Align;
    /// The largest single buffer; `None`: no limit.
    fn max_size(&self) -> Option<Bytes>;
    /// Whether the host reads it in place.
    fn is_host(&self) -> bool;
    /// Bytes that a tensor takes here; at least `tensor.nbytes()`.
    fn alloc_size(&self, _id: TensorId, tensor: &Tensor) -> Bytes {
        tensor.nbytes()
    }
    /// Bytes that its memory has left, if that is known.
    fn available(&self) -> Option<Bytes> {
        None
    }
    /// Takes memory. The error is the driver's refusal; nothing is left allocated.
    fn alloc_buffer(&self, size: Bytes) -> Result<Arc<dyn Buffer>, Refused>;
}

/// Whether two handles name the same buffer type: the same value behind both.
#[must_use]
pub fn same_type(a: &Arc<dyn BufferType>, b: &Arc<dyn BufferType>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

/// An allocation. Dropping the last handle gives the memory back.
pub trait Buffer: fmt::Debug + Send + Sync {
    /// Its size.
    fn size(&self) -> Bytes;
    /// The address of its first byte, where that is not a multiple of the buffer type's alignment.
    fn base(&self) -> u64 {
        0
    }
    /// The concrete type, for the device that owns it.
    fn as_any(&self) -> &dyn Any;
}

/// A driver's refusal to allocate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{buffer_type}: the driver refused {needed}: {reason}")]
pub struct Refused {
    /// Name of the buffer type.
    pub buffer_type: String,
    /// Bytes asked for.
    pub needed: Bytes,
    /// Bytes that were free, if known.
    pub available: Option<Bytes>,
    /// The driver's words.
    pub reason: String,
}

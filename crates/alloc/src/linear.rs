//! The linear tensor allocator: one tensor after the other in one buffer (rule 6).

use crate::buffer_type::{Buffer, BufferType};
use crate::error::{AllocError, Holder};
use loadmaster_graph::{Bytes, Tensor, TensorId};
use std::sync::Arc;

/// Fills one buffer from its start. O(1) per tensor.
#[derive(Clone, Debug)]
pub struct TensorAllocator {
    buffer: Arc<dyn Buffer>,
    buffer_type: Arc<dyn BufferType>,
    next: Bytes,
}

impl TensorAllocator {
    /// Starts at the buffer's base, rounded up to the alignment of its type.
    #[must_use]
    pub fn new(buffer: Arc<dyn Buffer>, buffer_type: Arc<dyn BufferType>) -> Self {
        let mask = buffer_type.alignment().get() - 1;
        let next = Bytes(buffer.base().wrapping_neg() & mask);
        Self { buffer, buffer_type, next }
    }

    /// The offset in the buffer at which the tensor now lies. It takes its `alloc_size`, rounded up to the alignment.
    ///
    /// Errors: [`AllocError::NoRoom`], [`AllocError::Overflow`]; the allocator is unchanged.
    pub fn alloc(&mut self, id: TensorId, tensor: &Tensor) -> Result<Bytes, AllocError> {
        let needed = padded_size(self.buffer_type.as_ref(), id, tensor)?;
        let offset = self.next;
        let end = offset.checked_add(needed).filter(|&end| end <= self.buffer.size());
        self.next = end.ok_or_else(|| AllocError::NoRoom {
            tensor: Holder::of_tensor(id, tensor, needed),
            needed,
            available: self.available(),
        })?;
        Ok(offset)
    }

    /// Bytes that are left.
    #[must_use]
    pub fn available(&self) -> Bytes {
        self.buffer.size().saturating_sub(self.next)
    }

    /// The buffer.
    #[must_use]
    pub fn buffer(&self) -> &Arc<dyn Buffer> {
        &self.buffer
    }
}

/// Bytes that a tensor takes in a buffer type, rounded up to its alignment.
///
/// Errors: [`AllocError::Overflow`].
pub(crate) fn padded_size(buffer_type: &dyn BufferType, id: TensorId, tensor: &Tensor) -> Result<Bytes, AllocError> {
    let size = buffer_type.alloc_size(id, tensor);
    let padded = size.checked_align_up(buffer_type.alignment());
    padded.ok_or_else(|| AllocError::Overflow {
        what: "the size rounded up to the alignment",
        tensor: Holder::of_tensor(id, tensor, size),
        size,
    })
}

//! Memory of a virtual GPU.

use crate::error::Fault;
use crate::host::core::{Arithmetic, Core};
use crate::host::{Block, in_range};
use crate::stats::Space;
use loadmaster_alloc::{Buffer, BufferType, Refused};
use loadmaster_graph::{Align, Bytes, Tensor, TensorId};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// What fresh and freed memory holds: as floats of any width these bytes are NaN, as indices far out of range.
pub const POISON: u8 = 0xff;

/// A buffer in the memory of a virtual GPU. Its address is known to the crate's copies and kernels only.
pub(crate) struct SimBuffer {
    core: Arc<Core>,
    space: Space,
    size: Bytes,
    /// `None` where only time is simulated.
    block: Option<Block>,
}

impl SimBuffer {
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// The address of a range inside the buffer; `None` where it has no bytes.
    pub(crate) fn address(&self, offset: Bytes, len: Bytes) -> Result<Option<*mut u8>, Fault> {
        in_range(offset, len, self.size)?;
        // SAFETY: the offset is at most `size`, so the address stays inside the block or one past its end.
        Ok(self.block.as_ref().map(|block| unsafe { block.ptr().as_ptr().add(offset.get() as usize) }))
    }
}

impl fmt::Debug for SimBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimBuffer({}, {})", self.core.name, self.size)
    }
}

impl Buffer for SimBuffer {
    fn size(&self) -> Bytes {
        self.size
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for SimBuffer {
    fn drop(&mut self) {
        if let Some(block) = &mut self.block {
            block.poison(POISON);
        }
        self.core.counters.give_back(self.space, self.size);
    }
}

/// The kind of memory of one virtual GPU.
#[derive(Debug)]
pub(crate) struct SimMemory {
    pub(crate) core: Arc<Core>,
    pub(crate) align: Align,
    pub(crate) max_size: Option<Bytes>,
    pub(crate) capacity: Bytes,
    pub(crate) row_padding: u64,
}

impl SimMemory {
    fn space(&self) -> Space {
        Space::Limited(self.capacity)
    }
}

impl BufferType for SimMemory {
    fn name(&self) -> &str {
        &self.core.name
    }
    fn alignment(&self) -> Align {
        self.align
    }
    fn max_size(&self) -> Option<Bytes> {
        self.max_size
    }
    fn is_host(&self) -> bool {
        false
    }
    fn available(&self) -> Option<Bytes> {
        Some(self.capacity.saturating_sub(self.core.counters.own_bytes()))
    }
    fn alloc_size(&self, _id: TensorId, tensor: &Tensor) -> Bytes {
        padded(tensor, self.row_padding)
    }
    fn alloc_buffer(&self, size: Bytes) -> Result<Arc<dyn Buffer>, Refused> {
        let refused = |reason: String, available| Refused {
            buffer_type: self.core.name.to_string(),
            needed: size,
            available,
            reason,
        };
        self.core.may_allocate().map_err(|fault| refused(fault.to_string(), None))?;
        if self.max_size.is_some_and(|max| size > max) {
            return Err(refused("larger than the largest buffer".into(), self.max_size));
        }
        let counters = &self.core.counters;
        counters.take(self.space(), size).map_err(|free| refused("out of memory".into(), Some(free)))?;
        let block = match self.core.arithmetic {
            Arithmetic::TimeOnly => None,
            Arithmetic::Real => match Block::filled(size.get(), POISON) {
                Some(block) => Some(block),
                None => {
                    counters.give_back(self.space(), size);
                    return Err(refused("the host has no such block".into(), None));
                }
            },
        };
        Ok(Arc::new(SimBuffer { core: Arc::clone(&self.core), space: self.space(), size, block }))
    }
}

/// Bytes of a tensor whose quantized rows are padded to a multiple of `row_padding` elements (0: no padding).
pub(crate) fn padded(tensor: &Tensor, row_padding: u64) -> Bytes {
    let bytes = tensor.nbytes();
    if row_padding == 0 || !tensor.dtype.is_quantized() || tensor.ne[0].is_multiple_of(row_padding) {
        return bytes;
    }
    let missing = row_padding - tensor.ne[0] % row_padding;
    bytes.saturating_add(tensor.dtype.row_size(missing).unwrap_or(Bytes::ZERO))
}

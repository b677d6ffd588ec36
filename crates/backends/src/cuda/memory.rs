//! Memory of a GPU, one driver allocation for each buffer, and pinned memory of the host.

use super::code::Code;
use super::core::Core;
use super::handles::{DeviceMemory, PinnedBytes};
use crate::error::Fault;
use crate::host::{HostBuffer, in_range};
use crate::sim::memory::padded;
use crate::stats::Space;
use loadmaster_alloc::{Buffer, BufferType, Refused};
use loadmaster_graph::{Align, Bytes, Tensor, TensorId};
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// A buffer in the memory of a GPU.
pub(crate) struct CudaBuffer {
    /// Given back before it stops counting: whoever finds room within a limit finds it in the driver too.
    memory: DeviceMemory,
    counted: Counted,
}

impl CudaBuffer {
    /// Takes memory of a device. Errors: its limit, or the driver; nothing stays taken.
    pub(crate) fn new(core: &Arc<Core>, size: Bytes) -> Result<Self, Refused> {
        core.context.alive().map_err(|fault| refused(core, &core.name, size, &fault.to_string(), None))?;
        let counted = Counted::new(core, core.space(), size);
        let counted = counted
            .map_err(|free| refused(core, &core.name, size, "more than the device's limit leaves", Some(free)))?;
        let memory = DeviceMemory::new(&core.context, size.get());
        let memory = memory.map_err(|code| refused_by_driver(core, &core.name, size, code))?;
        Ok(Self { memory, counted })
    }

    /// The device whose memory it is.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.counted.core
    }

    /// The GPU's address of a range inside the buffer.
    pub(crate) fn address(&self, offset: Bytes, len: Bytes) -> Result<u64, Fault> {
        in_range(offset, len, self.counted.size)?;
        Ok(self.memory.address().saturating_add(offset.get()))
    }
}

fn refused(core: &Core, kind: &str, needed: Bytes, reason: &str, available: Option<Bytes>) -> Refused {
    tracing::debug!(device = %core.name, %needed, reason, "memory refused");
    Refused { buffer_type: kind.into(), needed, available, reason: reason.into() }
}

fn refused_by_driver(core: &Core, kind: &str, needed: Bytes, code: Code) -> Refused {
    let available = (code == Code::OUT_OF_MEMORY).then(|| core.driver_memory().ok()).flatten().map(|(free, _)| free);
    refused(core, kind, needed, &core.context.fault(code).to_string(), available)
}

impl fmt::Debug for CudaBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CudaBuffer({}, {})", self.counted.core.name, self.counted.size)
    }
}

impl Buffer for CudaBuffer {
    fn size(&self) -> Bytes {
        self.counted.size
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Bytes that count as a device's while this lives.
struct Counted {
    core: Arc<Core>,
    space: Space,
    size: Bytes,
}

impl Counted {
    /// Counts bytes. Errors: how many are left of the limit.
    fn new(core: &Arc<Core>, space: Space, size: Bytes) -> Result<Self, Bytes> {
        core.counters.take(space, size)?;
        Ok(Self { core: Arc::clone(core), space, size })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.core.counters.give_back(self.space, self.size);
    }
}

/// The kind of memory of one device.
#[derive(Debug)]
pub(crate) struct CudaMemory {
    pub(crate) core: Arc<Core>,
    pub(crate) align: Align,
    pub(crate) max_size: Option<Bytes>,
    pub(crate) row_padding: u64,
}

impl BufferType for CudaMemory {
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
        self.core.free()
    }
    fn alloc_size(&self, _id: TensorId, tensor: &Tensor) -> Bytes {
        padded(tensor, self.row_padding)
    }
    fn alloc_buffer(&self, size: Bytes) -> Result<Arc<dyn Buffer>, Refused> {
        if self.max_size.is_some_and(|max| size > max) {
            return Err(refused(&self.core, &self.core.name, size, "larger than the largest buffer", self.max_size));
        }
        Ok(Arc::new(CudaBuffer::new(&self.core, size)?))
    }
}

/// The kind of pinned memory that a device's driver gives.
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    pub(crate) core: Arc<Core>,
    pub(crate) name: Box<str>,
}

impl PinnedMemory {
    /// A buffer that does not count as the device's: a page of the host's that no plan knows of. Errors: the driver's.
    pub(crate) fn page(&self, size: Bytes) -> Result<Arc<dyn Buffer>, Refused> {
        let bytes = self.take(size)?;
        let address = bytes.address();
        // SAFETY: the driver's pinned memory is plain memory of the process; its owner is `bytes`.
        Ok(Arc::new(unsafe { HostBuffer::external(address, size, &self.name, Box::new(bytes)) }))
    }

    fn take(&self, size: Bytes) -> Result<PinnedBytes, Refused> {
        let core = &self.core;
        core.context.alive().map_err(|fault| refused(core, &self.name, size, &fault.to_string(), None))?;
        let bytes = PinnedBytes::new(&core.context, size.get());
        let bytes = bytes.map_err(|code| refused_by_driver(core, &self.name, size, code))?;
        // SAFETY: the driver gave as many bytes, which nobody else knows of yet.
        unsafe { bytes.address().as_ptr().write_bytes(0, size.get() as usize) };
        Ok(bytes)
    }
}

impl BufferType for PinnedMemory {
    fn name(&self) -> &str {
        &self.name
    }
    fn alignment(&self) -> Align {
        Align::ONE
    }
    fn max_size(&self) -> Option<Bytes> {
        None
    }
    fn is_host(&self) -> bool {
        true
    }
    fn available(&self) -> Option<Bytes> {
        None
    }
    fn alloc_buffer(&self, size: Bytes) -> Result<Arc<dyn Buffer>, Refused> {
        let (core, bytes) = (&self.core, self.take(size)?);
        // Without a limit nothing is refused.
        let counted = Counted::new(core, Space::Unlimited, size).ok();
        let address = bytes.address();
        let owner = Box::new((bytes, counted));
        // SAFETY: the driver's pinned memory is plain memory of the process; `owner` holds it.
        Ok(Arc::new(unsafe { HostBuffer::external(address, size, &self.name, owner) }))
    }
}

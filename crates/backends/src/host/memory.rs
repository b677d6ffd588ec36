//! Host memory of any origin, as one type: the device's own, mapped files, pinned memory of other drivers.

use crate::error::Fault;
use crate::host::block::Block;
use crate::host::core::Core;
use crate::stats::Space;
use loadmaster_alloc::{Buffer, BufferType, Refused};
use loadmaster_graph::{Align, Bytes};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes that somebody else owns: a mapped file, a vector, bytes in the program.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A buffer in host memory. The CPU computes on it in place; other devices copy from and to it.
///
/// [`HostBuffer::read`] and [`HostBuffer::write`] are plain memory accesses. Who may use which bytes when is the
/// executor's protocol (`protocol.md`): accesses that it does not order may see or leave any bytes.
pub struct HostBuffer {
    ptr: NonNull<u8>,
    size: Bytes,
    kind: Box<str>,
    owner: Owner,
}

#[expect(dead_code, reason = "owners are held for their memory")]
enum Owner {
    Device(Arc<Core>, Space, Block),
    Shared(SharedBytes),
    External(Box<dyn Any + Send + Sync>),
}

// SAFETY: the address stays valid while the owner lives, which is held here and is `Send`; the bytes have no thread
// affinity.
unsafe impl Send for HostBuffer {}
// SAFETY: through `&HostBuffer` bytes are accessed by raw copies only, never by references that could alias; the
// executor's protocol orders conflicting accesses.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    pub(crate) fn owned(core: Arc<Core>, space: Space, kind: &str, block: Block, size: Bytes) -> Self {
        Self { ptr: block.ptr(), size, kind: kind.into(), owner: Owner::Device(core, space, block) }
    }

    /// Wraps bytes that are only read, without copying them.
    #[must_use]
    pub fn shared(bytes: SharedBytes) -> Self {
        let slice: &[u8] = (*bytes).as_ref();
        let size = Bytes(slice.len() as u64);
        // An empty slice may dangle, but is never null.
        let ptr = NonNull::from(slice).cast();
        Self { ptr, size, kind: "mapped host memory".into(), owner: Owner::Shared(bytes) }
    }

    /// Wraps memory of another driver (pinned memory).
    ///
    /// # Safety
    /// `size` bytes from `ptr` must stay readable and writable by any thread until `owner` is dropped.
    #[must_use]
    pub unsafe fn external(ptr: NonNull<u8>, size: Bytes, kind: &str, owner: Box<dyn Any + Send + Sync>) -> Self {
        Self { ptr, size, kind: kind.into(), owner: Owner::External(owner) }
    }

    /// What kind of memory it is, for people.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Whether it may only be read.
    #[must_use]
    pub const fn is_read_only(&self) -> bool {
        matches!(self.owner, Owner::Shared(_))
    }

    /// Copies bytes out of the buffer. Errors: they are not inside.
    pub fn read(&self, offset: Bytes, bytes: &mut [u8]) -> Result<(), Fault> {
        let from = self.address(offset, Bytes(bytes.len() as u64))?;
        // SAFETY: `address` checked the range; `bytes` is borrowed exclusively, so it lies in no buffer that others may
        // write; the protocol orders this read after the writes that it is to see.
        unsafe { std::ptr::copy(from, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    /// Copies bytes into the buffer. Errors: they do not fit, or the buffer may only be read.
    pub fn write(&self, offset: Bytes, bytes: &[u8]) -> Result<(), Fault> {
        self.check_writable()?;
        let to = self.address(offset, Bytes(bytes.len() as u64))?;
        // SAFETY: `address` checked the range and the buffer is writable; `copy` allows overlap; the protocol orders
        // this write with all other uses of the range.
        unsafe { std::ptr::copy(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    pub(crate) fn check_writable(&self) -> Result<(), Fault> {
        if self.is_read_only() { Err(Fault::ReadOnly { buffer_type: self.kind.to_string() }) } else { Ok(()) }
    }

    /// The address of a range inside the buffer.
    pub(crate) fn address(&self, offset: Bytes, len: Bytes) -> Result<*mut u8, Fault> {
        in_range(offset, len, self.size)?;
        // SAFETY: the offset is at most `size`, so the address stays inside the allocation or one past its end.
        Ok(unsafe { self.ptr.as_ptr().add(offset.get() as usize) })
    }
}

/// Checks that `[offset, offset + len)` lies in a buffer of `size`.
pub(crate) fn in_range(offset: Bytes, len: Bytes, size: Bytes) -> Result<(), Fault> {
    let inside = offset.checked_add(len).is_some_and(|end| end <= size);
    if inside { Ok(()) } else { Err(Fault::OutOfRange { offset, len, size }) }
}

impl fmt::Debug for HostBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer({}, {})", self.kind, self.size)
    }
}

impl Buffer for HostBuffer {
    fn size(&self) -> Bytes {
        self.size
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if let Owner::Device(core, space, _) = &self.owner {
            core.counters.give_back(*space, self.size);
        }
    }
}

/// Host memory that a device allocates: the CPU's own, or a virtual GPU's pinned memory.
#[derive(Debug)]
pub(crate) struct HostMemory {
    pub(crate) core: Arc<Core>,
    pub(crate) name: Box<str>,
    pub(crate) align: Align,
    pub(crate) max_size: Option<Bytes>,
    pub(crate) space: Space,
}

impl BufferType for HostMemory {
    fn name(&self) -> &str {
        &self.name
    }
    fn alignment(&self) -> Align {
        self.align
    }
    fn max_size(&self) -> Option<Bytes> {
        self.max_size
    }
    fn is_host(&self) -> bool {
        true
    }
    fn available(&self) -> Option<Bytes> {
        match self.space {
            Space::Limited(capacity) => Some(capacity.saturating_sub(self.core.counters.own_bytes())),
            Space::Unlimited => None,
        }
    }
    fn alloc_buffer(&self, size: Bytes) -> Result<Arc<dyn Buffer>, Refused> {
        let refused =
            |reason: String, available| Refused { buffer_type: self.name.to_string(), needed: size, available, reason };
        self.core.may_allocate().map_err(|fault| refused(fault.to_string(), None))?;
        let counters = &self.core.counters;
        counters.take(self.space, size).map_err(|free| refused("out of memory".into(), Some(free)))?;
        let Some(block) = Block::zeroed(size.get()) else {
            counters.give_back(self.space, size);
            return Err(refused("the system has no such block".into(), None));
        };
        Ok(Arc::new(HostBuffer::owned(Arc::clone(&self.core), self.space, &self.name, block, size)))
    }
}

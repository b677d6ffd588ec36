//! A raw block of memory with a fixed address.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// Every block starts at a multiple of this: a cache line, and the widest vector.
pub(crate) const BLOCK_ALIGN: usize = 64;

/// Owned bytes that are read and written through their address by whoever the protocol lets.
#[derive(Debug)]
pub(crate) struct Block {
    ptr: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a block is plain bytes without thread affinity. It hands out addresses only; who may use them when is the
// protocol's concern, as stated where they are used.
unsafe impl Send for Block {}
// SAFETY: as above; `&Block` gives nothing but the address and the length.
unsafe impl Sync for Block {}

impl Block {
    /// Zeroed bytes (the system gives fresh pages lazily). `None`: the system refused, or the size does not fit.
    pub(crate) fn zeroed(len: u64) -> Option<Self> {
        let layout = Self::layout(len)?;
        // SAFETY: the layout has a size of at least one byte.
        let ptr = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Self { ptr, layout })
    }

    /// Bytes that all hold `pattern`.
    pub(crate) fn filled(len: u64, pattern: u8) -> Option<Self> {
        let layout = Self::layout(len)?;
        // SAFETY: the layout has a size of at least one byte.
        let ptr = NonNull::new(unsafe { alloc(layout) })?;
        // SAFETY: the block was just allocated with this size and nobody else knows it.
        unsafe { ptr.write_bytes(pattern, layout.size()) };
        Some(Self { ptr, layout })
    }

    fn layout(len: u64) -> Option<Layout> {
        Layout::from_size_align(usize::try_from(len).ok()?.max(1), BLOCK_ALIGN).ok()
    }

    pub(crate) fn ptr(&self) -> NonNull<u8> {
        self.ptr
    }

    /// Overwrites everything; for memory that nobody may use any more.
    pub(crate) fn poison(&mut self, pattern: u8) {
        // SAFETY: the block owns `layout.size()` bytes, and `&mut self` is the last handle.
        unsafe { self.ptr.write_bytes(pattern, self.layout.size()) };
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout by `alloc` or `alloc_zeroed`, freed once.
        unsafe { dealloc(self.ptr.as_ptr(), self.layout) };
    }
}

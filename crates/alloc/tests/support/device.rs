//! A buffer type that counts, refuses on demand, and may ask for more than a tensor's own size.

use loadmaster_alloc::{Buffer, BufferType, Refused};
use loadmaster_graph::{Align, Bytes, Tensor, TensorId};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all buffers of a type have in common.
#[derive(Debug, Default)]
pub struct Counters {
    /// Buffers that exist.
    pub buffers: AtomicU64,
    /// Bytes of the buffers that exist.
    pub bytes: AtomicU64,
    /// Calls of `alloc_buffer` so far.
    pub calls: AtomicU64,
    /// The call that is refused, from 1; 0: none.
    pub refuse: AtomicU64,
}

impl Counters {
    pub fn alive(&self) -> (u64, u64) {
        (self.buffers.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Refuses the `nth` call from now.
    pub fn refuse_in(&self, nth: u64) {
        self.refuse.store(self.calls.load(Ordering::Relaxed) + nth, Ordering::Relaxed);
    }

    pub fn refuse_none(&self) {
        self.refuse.store(0, Ordering::Relaxed);
    }
}

/// A kind of memory for tests.
#[derive(Debug)]
pub struct TestType {
    pub name: String,
    pub align: Align,
    pub max_size: Option<Bytes>,
    pub available: Option<Bytes>,
    /// Extra bytes for tensors whose innermost extent is odd.
    pub extra: Bytes,
    pub counters: Arc<Counters>,
}

impl TestType {
    pub fn new(name: &str, align: u64) -> Self {
        Self {
            name: name.to_owned(),
            align: Align::new(align).unwrap(),
            max_size: None,
            available: None,
            extra: Bytes::ZERO,
            counters: Arc::default(),
        }
    }
}

#[derive(Debug)]
struct TestBuffer {
    size: Bytes,
    counters: Arc<Counters>,
}

impl Buffer for TestBuffer {
    fn size(&self) -> Bytes {
        self.size
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for TestBuffer {
    fn drop(&mut self) {
        self.counters.buffers.fetch_sub(1, Ordering::Relaxed);
        self.counters.bytes.fetch_sub(self.size.get(), Ordering::Relaxed);
    }
}

impl BufferType for TestType {
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
    fn alloc_size(&self, _id: TensorId, tensor: &Tensor) -> Bytes {
        let extra = if tensor.ne[0] % 2 == 1 { self.extra } else { Bytes::ZERO };
        tensor.nbytes().saturating_add(extra)
    }
    fn available(&self) -> Option<Bytes> {
        self.available
    }
    fn alloc_buffer(&self, size: Bytes) -> Result<Arc<dyn Buffer>, Refused> {
        let call = self.counters.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if call == self.counters.refuse.load(Ordering::Relaxed) {
            let reason = "told to".to_owned();
            return Err(Refused { buffer_type: self.name.clone(), needed: size, available: None, reason });
        }
        self.counters.buffers.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes.fetch_add(size.get(), Ordering::Relaxed);
        Ok(Arc::new(TestBuffer { size, counters: Arc::clone(&self.counters) }))
    }
}

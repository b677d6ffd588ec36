//! Buffer types without memory: planning and the allocators' bookkeeping need none.

use loadmaster_alloc::{Buffer, BufferType, Refused};
use loadmaster_graph::{Align, Bytes, Tensor, TensorId};
use std::any::Any;
use std::sync::Arc;

/// The same buffer type, whose buffers are numbers.
pub fn unbacked(rules: &Arc<dyn BufferType>) -> Arc<dyn BufferType> {
    Arc::new(Unbacked(Arc::clone(rules)))
}

/// A buffer type that allocates nothing but a size.
#[derive(Debug)]
struct Unbacked(Arc<dyn BufferType>);

#[derive(Debug)]
struct Size(Bytes);

impl Buffer for Size {
    fn size(&self) -> Bytes {
        self.0
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl BufferType for Unbacked {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn alignment(&self) -> Align {
        self.0.alignment()
    }
    fn max_size(&self) -> Option<Bytes> {
        self.0.max_size()
    }
    fn is_host(&self) -> bool {
        self.0.is_host()
    }
    fn alloc_size(&self, id: TensorId, tensor: &Tensor) -> Bytes {
        self.0.alloc_size(id, tensor)
    }
    fn alloc_buffer(&self, size: Bytes) -> Result<Arc<dyn Buffer>, Refused> {
        Ok(Arc::new(Size(size)))
    }
}

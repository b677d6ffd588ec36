//! Buffer types of a machine as the allocators see them, for planning only.

use crate::machine::{BufferTypeDesc, Machine};
use loadmaster_alloc::{Buffer, BufferType, Refused};
use loadmaster_graph::{Align, BufferTypeId, Bytes, DeviceId, IdVec, Tensor, TensorId};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How much a tensor takes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Sizes {
    /// As the buffer type's rules say.
    #[default]
    ByRule,
    /// As recorded for some tensors; the others take their own size.
    Recorded(BTreeMap<TensorId, IdVec<DeviceId, Bytes>>),
}

/// A buffer type that plans and never allocates: measuring needs no device.
#[derive(Debug)]
pub struct PlanBufferType {
    desc: BufferTypeDesc,
    /// Sorted by tensor; `None`: the rules of `desc` hold.
    recorded: Option<Vec<(TensorId, Bytes)>>,
    backing: Backing,
}

/// What a buffer type that only plans says to a request for memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Backing {
    /// It refuses.
    Nothing,
    /// It gives a buffer that has a size and no bytes.
    Paper,
}

/// A buffer without bytes.
#[derive(Debug)]
struct PaperBuffer(Bytes);

impl Buffer for PaperBuffer {
    fn size(&self) -> Bytes {
        self.0
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl PlanBufferType {
    /// A buffer type that follows the rules of `desc`.
    #[must_use]
    pub fn new(desc: BufferTypeDesc) -> Self {
        Self { desc, recorded: None, backing: Backing::Nothing }
    }

    fn recorded(desc: BufferTypeDesc, device: DeviceId, sizes: &BTreeMap<TensorId, IdVec<DeviceId, Bytes>>) -> Self {
        let recorded = sizes.iter().filter_map(|(&t, by_device)| by_device.get(device).map(|&b| (t, b))).collect();
        Self { desc, recorded: Some(recorded), backing: Backing::Nothing }
    }
}

impl BufferType for PlanBufferType {
    fn name(&self) -> &str {
        &self.desc.name
    }
    fn alignment(&self) -> Align {
        self.desc.alignment
    }
    fn max_size(&self) -> Option<Bytes> {
        self.desc.max_size
    }
    fn is_host(&self) -> bool {
        self.desc.host
    }
    fn alloc_size(&self, id: TensorId, tensor: &Tensor) -> Bytes {
        let Some(recorded) = &self.recorded else { return self.desc.alloc_size(tensor) };
        let own = tensor.nbytes();
        match recorded.binary_search_by_key(&id, |&(t, _)| t) {
            Ok(found) => recorded[found].1.max(own),
            Err(_) => own,
        }
    }
    fn alloc_buffer(&self, size: Bytes) -> Result<Arc<dyn Buffer>, Refused> {
        let refused = |available, reason: &str| Refused {
            buffer_type: self.desc.name.to_string(),
            needed: size,
            available,
            reason: reason.to_owned(),
        };
        match self.backing {
            Backing::Nothing => Err(refused(None, "this buffer type only plans; allocate on a device")),
            Backing::Paper if self.desc.max_size.is_some_and(|max| size > max) => {
                Err(refused(self.desc.max_size, "larger than the largest buffer"))
            }
            Backing::Paper => Ok(Arc::new(PaperBuffer(size))),
        }
    }
}

/// The allocator's list of buffer types: one entry a device, in device order. Devices that share a compute buffer type
/// share the entry.
#[must_use]
pub fn compute_types(machine: &Machine, sizes: &Sizes) -> Vec<Arc<dyn BufferType>> {
    by_device(machine, |id, desc| match sizes {
        Sizes::ByRule => PlanBufferType::new(desc),
        Sizes::Recorded(sizes) => PlanBufferType::recorded(desc, id, sizes),
    })
}

/// The same list for an allocator that is to tell how much it would hold: its buffers have sizes and no bytes.
#[must_use]
pub fn paper_types(machine: &Machine) -> Vec<Arc<dyn BufferType>> {
    by_device(machine, |_, desc| PlanBufferType { backing: Backing::Paper, ..PlanBufferType::new(desc) })
}

fn by_device(machine: &Machine, make: impl Fn(DeviceId, BufferTypeDesc) -> PlanBufferType) -> Vec<Arc<dyn BufferType>> {
    let mut made: BTreeMap<BufferTypeId, Arc<dyn BufferType>> = BTreeMap::new();
    let entry = |(id, device): (DeviceId, &crate::machine::Device)| {
        let desc = || machine.buffer_types()[device.buffer_type].clone();
        Arc::clone(made.entry(device.buffer_type).or_insert_with(|| Arc::new(make(id, desc()))))
    };
    machine.devices().iter().map(entry).collect()
}

//! Buffer types of a machine as the allocators see them, for planning only.

use crate::machine::{BufferTypeDesc, Machine};
use loadmaster_alloc::{Buffer, BufferType, Refused};
use loadmaster_graph::{Align, BufferTypeId, Bytes, DeviceId, IdVec, Tensor, TensorId};
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
}

impl PlanBufferType {
    /// A buffer type that follows the rules of `desc`.
    #[must_use]
    pub fn new(desc: BufferTypeDesc) -> Self {
        Self { desc, recorded: None }
    }

    fn recorded(desc: BufferTypeDesc, device: DeviceId, sizes: &BTreeMap<TensorId, IdVec<DeviceId, Bytes>>) -> Self {
        let recorded = sizes.iter().filter_map(|(&t, by_device)| by_device.get(device).map(|&b| (t, b))).collect();
        Self { desc, recorded: Some(recorded) }
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
        Err(Refused {
            buffer_type: self.desc.name.to_string(),
            needed: size,
            available: None,
            reason: "this buffer type only plans; allocate on a device".to_owned(),
        })
    }
}

/// The allocator's list of buffer types: one entry a device, in device order. Devices that share a compute buffer type
/// share the entry.
#[must_use]
pub fn compute_types(machine: &Machine, sizes: &Sizes) -> Vec<Arc<dyn BufferType>> {
    let mut made: BTreeMap<BufferTypeId, Arc<dyn BufferType>> = BTreeMap::new();
    let entry = |(id, device): (DeviceId, &crate::machine::Device)| {
        let made = made.entry(device.buffer_type).or_insert_with(|| {
            let desc = machine.buffer_types()[device.buffer_type].clone();
            Arc::new(match sizes {
                Sizes::ByRule => PlanBufferType::new(desc),
                Sizes::Recorded(sizes) => PlanBufferType::recorded(desc, id, sizes),
            })
        });
        Arc::clone(made)
    };
    machine.devices().iter().map(entry).collect()
}

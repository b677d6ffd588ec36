//! The usual devices, with the rules that CUDA back ends and hosts have.

use super::{
    BufferTypeDesc, CUDA_ROW_PADDING, DEVICE_ALIGN, Device, DeviceKind, Driver, HOST_ALIGN, MachineParts,
    OFFLOAD_MIN_BATCH, Pool, PoolKind,
};
use crate::device_set::DeviceSet;
use crate::op_set::OpSet;
use loadmaster_graph::{Align, Bytes, DeviceId};

/// What a device's memory is like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemorySpec {
    /// How much there is; `None`: not known.
    pub capacity: Option<Bytes>,
    /// The largest single buffer; `None`: no limit.
    pub max_size: Option<Bytes>,
    /// Every tensor starts at a multiple of this.
    pub alignment: Align,
}

impl MemorySpec {
    /// Device memory of unknown size.
    #[must_use]
    pub const fn device() -> Self {
        Self { capacity: None, max_size: None, alignment: align(DEVICE_ALIGN) }
    }
    /// Host memory of unknown size.
    #[must_use]
    pub const fn host() -> Self {
        Self { capacity: None, max_size: None, alignment: align(HOST_ALIGN) }
    }
}

const fn align(value: u64) -> Align {
    match Align::new(value) {
        Some(align) => align,
        None => Align::ONE,
    }
}

impl MachineParts {
    /// Adds a GPU with a memory, a pool and a buffer type of its own, all of that name.
    pub fn push_gpu(&mut self, name: impl Into<Box<str>>, driver: Driver, memory: MemorySpec) -> DeviceId {
        self.push_device(name.into(), DeviceKind::Gpu, driver, memory)
    }

    /// Adds the host processor with a memory, a pool and a buffer type of its own, all of that name.
    pub fn push_host(&mut self, name: impl Into<Box<str>>, memory: MemorySpec) -> DeviceId {
        self.push_device(name.into(), DeviceKind::Cpu, Driver::Host, memory)
    }

    fn push_device(&mut self, name: Box<str>, kind: DeviceKind, driver: Driver, memory: MemorySpec) -> DeviceId {
        let id = DeviceId::new(self.devices.len());
        let is_host = kind == DeviceKind::Cpu;
        let pool_kind = if is_host { PoolKind::Host } else { PoolKind::Device };
        let pool =
            self.pools.push(Pool { name: name.clone(), kind: pool_kind, capacity: memory.capacity, within: None });
        let buffer_type = self.buffer_types.push(BufferTypeDesc {
            name: name.clone(),
            pool,
            alignment: memory.alignment,
            max_size: memory.max_size,
            host: is_host,
            row_padding: (!is_host).then_some(CUDA_ROW_PADDING),
            usable_by: DeviceSet::from_iter([id]),
        });
        self.devices.push(Device {
            name,
            kind,
            driver,
            buffer_type,
            ops: OpSet::all(),
            offload_min_batch: (!is_host).then_some(OFFLOAD_MIN_BATCH),
            gpu: None,
            pools: vec![pool],
        })
    }
}

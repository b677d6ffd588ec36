//! What a graph file says about its machine and about what is in memory, and how it fits another machine.

mod remap;

pub use remap::RemapError;

use crate::assign::{AssignOptions, OpOffload, Policy};
use crate::buffer_type::Sizes;
use crate::device_set::DeviceSet;
use crate::error::SchedError;
use crate::machine::{
    BufferTypeDesc, CUDA_ROW_PADDING, Device, DeviceKind, Driver, Machine, MachineParts, OFFLOAD_MIN_BATCH, Pool,
    PoolKind,
};
use crate::op_set::OpSet;
use crate::residency::{Residency, ResidentBuffer, Usage};
use loadmaster_graph::file::{BufferUsage, FileBuffer, FileDevice, FileDeviceKind, GraphFile};
use loadmaster_graph::{BufferId, BufferTypeId, DeviceId, IdVec};
use std::num::NonZeroU32;

/// Everything that planning a graph needs besides the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The machine.
    pub machine: Machine,
    /// What is in memory already.
    pub residency: Residency,
    /// How devices are chosen.
    pub assign: AssignOptions,
    /// Pipeline copies of every input.
    pub n_copies: NonZeroU32,
    /// How much tensors take.
    pub sizes: Sizes,
}

impl Setup {
    /// The file's own machine. Errors: two kinds of memory under one name, or what makes no machine.
    pub fn of(file: &GraphFile) -> Result<Self, SchedError> {
        let mut parts = machine_parts(file)?;
        let own = |device: DeviceId| Some(device);
        let buffers = file.buffers.values().map(|b| resident(&mut parts, b, &own)).collect();
        let sizes = Sizes::Recorded(file.alloc_sizes.clone());
        Ok(Self::assemble(file, Machine::new(parts)?, buffers, file.pinned.clone(), sizes))
    }

    /// Another machine instead of the file's. What the file keeps on a device must find one there: by name, or else by
    /// position among the devices of its kind. Errors: a device that holds something and has no counterpart.
    pub fn on(file: &GraphFile, machine: &Machine) -> Result<Self, SchedError> {
        let map = remap::DeviceMap::new(file, machine)?;
        let mut parts = machine.parts().clone();
        parts.fallback = Some(machine.fallback());
        let buffers = file.buffers.values().map(|b| map.resident(&mut parts, file, b)).collect();
        let pinned = file.pinned.iter().filter_map(|(&t, &d)| map.device(d).map(|d| (t, d))).collect();
        Ok(Self::assemble(file, Machine::new(parts)?, buffers, pinned, Sizes::ByRule))
    }

    fn assemble(
        file: &GraphFile,
        machine: Machine,
        buffers: IdVec<BufferId, ResidentBuffer>,
        pinned: std::collections::BTreeMap<loadmaster_graph::TensorId, DeviceId>,
        sizes: Sizes,
    ) -> Self {
        let residency =
            Residency { buffers, buffer_of: file.buffer_of.clone(), external: file.external.clone(), pinned };
        let op_offload = if file.op_offload { OpOffload::On } else { OpOffload::Off };
        let assign = AssignOptions { policy: Policy::Ggml, op_offload };
        let n_copies = NonZeroU32::new(file.n_copies).unwrap_or(NonZeroU32::MIN);
        Self { machine, residency, assign, n_copies, sizes }
    }
}

/// The devices of a file: a GPU uses its own buffer type only, the host every host type; the last is the fallback.
fn machine_parts(file: &GraphFile) -> Result<MachineParts, SchedError> {
    let mut parts = MachineParts::default();
    for (id, device) in file.devices.iter() {
        let buffer_type = compute_type(&mut parts, file, id, device)?;
        let is_gpu = device.kind == FileDeviceKind::Gpu;
        parts.devices.push(Device {
            name: device.name.as_str().into(),
            kind: if is_gpu { DeviceKind::Gpu } else { DeviceKind::Cpu },
            driver: if is_gpu { Driver::Sim } else { Driver::Host },
            buffer_type,
            ops: OpSet::all(),
            offload_min_batch: is_gpu.then_some(OFFLOAD_MIN_BATCH),
            gpu: None,
            pools: vec![parts.buffer_types[buffer_type].pool],
        });
    }
    Ok(parts)
}

/// The buffer type that a device of a file computes in; devices that name the same one share it.
fn compute_type(
    parts: &mut MachineParts,
    file: &GraphFile,
    id: DeviceId,
    device: &FileDevice,
) -> Result<BufferTypeId, SchedError> {
    let wanted = &device.buffer_type;
    let earlier = file.devices.values().take(id.index()).position(|d| d.buffer_type.name == wanted.name);
    if let Some(earlier) = earlier.map(DeviceId::new) {
        if file.devices[earlier].buffer_type != *wanted {
            let name = wanted.name.as_str().into();
            return Err(SchedError::BufferTypeClash { name, first: earlier, second: id });
        }
        return Ok(parts.devices[earlier].buffer_type);
    }
    let kind = if wanted.host { PoolKind::Host } else { PoolKind::Device };
    let name: Box<str> = wanted.name.as_str().into();
    let pool = parts.pools.push(Pool { name: name.clone(), kind, capacity: None, within: None });
    let uses = |d: &FileDevice| d.buffer_type.name == wanted.name || (wanted.host && d.kind == FileDeviceKind::Cpu);
    Ok(parts.buffer_types.push(BufferTypeDesc {
        name,
        pool,
        alignment: wanted.alignment,
        max_size: wanted.max_size,
        host: wanted.host,
        row_padding: (device.kind == FileDeviceKind::Gpu).then_some(CUDA_ROW_PADDING),
        usable_by: file.devices.iter().filter(|(_, d)| uses(d)).map(|(id, _)| id).collect(),
    }))
}

/// A buffer of the file, its type added to the machine if that has none such yet.
fn resident(
    parts: &mut MachineParts,
    buffer: &FileBuffer,
    device: &impl Fn(DeviceId) -> Option<DeviceId>,
) -> ResidentBuffer {
    let usable_by: DeviceSet = buffer.usable_by.iter().filter_map(|&d| device(d)).collect();
    let known = parts
        .buffer_types
        .iter()
        .find(|(_, t)| *t.name == *buffer.buffer_type && t.host == buffer.host && t.usable_by == usable_by);
    let buffer_type = match known {
        Some((id, _)) => id,
        None => add_buffer_type(parts, buffer, usable_by),
    };
    ResidentBuffer { buffer_type, usage: usage(buffer.usage) }
}

/// A type that no device computes in: memory of the first device that can use it, or else of the fallback.
fn add_buffer_type(parts: &mut MachineParts, buffer: &FileBuffer, usable_by: DeviceSet) -> BufferTypeId {
    let last = DeviceId::new(parts.devices.len().saturating_sub(1));
    let fallback = parts.fallback.unwrap_or(last);
    let home = usable_by.first().filter(|_| !buffer.host).unwrap_or(fallback);
    let like = parts.buffer_types[parts.devices[home].buffer_type].clone();
    let name = buffer.buffer_type.as_str().into();
    parts.buffer_types.push(BufferTypeDesc { name, host: buffer.host, usable_by, ..like })
}

fn usage(usage: BufferUsage) -> Usage {
    match usage {
        BufferUsage::Weights => Usage::Weights,
        BufferUsage::Compute => Usage::Compute,
        BufferUsage::Any => Usage::Any,
    }
}

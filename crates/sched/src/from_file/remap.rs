//! A file's devices on another machine.

use super::resident;
use crate::machine::{DeviceKind, Machine, MachineParts};
use crate::residency::{ResidentBuffer, Usage};
use loadmaster_graph::file::{FileBuffer, FileDeviceKind, GraphFile};
use loadmaster_graph::{BufferId, DeviceId, IdVec, TensorId};
use std::fmt;

/// What a file keeps on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    /// A buffer that only this device can use in place.
    Buffer(BufferId),
    /// A tensor that the caller pinned to it.
    Pinned(TensorId),
}

impl fmt::Display for Holding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Buffer(buffer) => write!(f, "{buffer}"),
            Self::Pinned(tensor) => write!(f, "{tensor} (pinned)"),
        }
    }
}

/// A device of a graph file holds something and has no counterpart on the machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the file keeps {holding} on device `{device}`, its GPU {position}, but the machine ({machine}) has no device of \
     that name and only {gpus} GPUs: name a device `{device}` or give more GPUs"
)]
pub struct RemapError {
    /// The file's device.
    pub device: String,
    /// What it holds.
    pub holding: Holding,
    /// Its position among the file's GPUs.
    pub position: usize,
    /// Names of the machine's devices.
    pub machine: String,
    /// How many GPUs the machine has.
    pub gpus: usize,
}

/// The counterpart of each device of a file.
pub(super) struct DeviceMap {
    devices: IdVec<DeviceId, Option<DeviceId>>,
}

impl DeviceMap {
    pub(super) fn new(file: &GraphFile, machine: &Machine) -> Result<Self, RemapError> {
        let holdings = holdings(file);
        let is_gpu = |d: DeviceId| file.devices[d].kind == FileDeviceKind::Gpu;
        let by_name = |d: DeviceId| machine.device_named(&file.devices[d].name).filter(|&m| is_gpu_of(machine, m));
        let needed = || holdings.iter().filter(|(d, h)| h.is_some() && is_gpu(*d)).map(|(d, _)| d);
        let named = needed().all(|d| by_name(d).is_some());
        let gpus: Vec<DeviceId> = machine.devices().ids().filter(|&m| is_gpu_of(machine, m)).collect();
        let position = |d: DeviceId| file.devices.ids().take(d.index()).filter(|&e| is_gpu(e)).count();
        let counterpart = |d: DeviceId| match (is_gpu(d), named) {
            (false, _) => Some(machine.fallback()),
            (true, true) => by_name(d),
            (true, false) => gpus.get(position(d)).copied(),
        };
        let map = Self { devices: file.devices.ids().map(counterpart).collect() };
        for (device, holding) in holdings.iter() {
            if let (Some(holding), None) = (*holding, map.devices[device]) {
                return Err(RemapError {
                    device: file.devices[device].name.clone(),
                    holding,
                    position: position(device),
                    machine: machine.names(machine.devices().ids()),
                    gpus: gpus.len(),
                });
            }
        }
        Ok(map)
    }

    /// The counterpart of a device.
    pub(super) fn device(&self, device: DeviceId) -> Option<DeviceId> {
        self.devices.get(device).copied().flatten()
    }

    /// A buffer on the new machine: in the compute buffer type of the counterpart of the device that computes in it, or
    /// in a type of its own with the counterparts of its users.
    pub(super) fn resident(&self, parts: &mut MachineParts, file: &GraphFile, buffer: &FileBuffer) -> ResidentBuffer {
        let owner = file.devices.iter().find(|(_, d)| d.buffer_type.name == buffer.buffer_type);
        let usage: Usage = super::usage(buffer.usage);
        match owner.and_then(|(d, _)| self.device(d)) {
            Some(device) => ResidentBuffer { buffer_type: parts.devices[device].buffer_type, usage },
            None => resident(parts, buffer, &|d| self.device(d)),
        }
    }
}

fn is_gpu_of(machine: &Machine, device: DeviceId) -> bool {
    machine.device(device).kind == DeviceKind::Gpu
}

/// What each device of a file holds that no other could: the first such thing.
fn holdings(file: &GraphFile) -> IdVec<DeviceId, Option<Holding>> {
    let mut found = IdVec::filled(None, file.devices.len());
    for (id, buffer) in file.buffers.iter() {
        let owner = file.devices.iter().find(|(_, d)| d.buffer_type.name == buffer.buffer_type).map(|(d, _)| d);
        let sole = if let [only] = buffer.usable_by[..] { Some(only) } else { None };
        for device in owner.into_iter().chain(sole) {
            found[device].get_or_insert(Holding::Buffer(id));
        }
    }
    for (&tensor, &device) in &file.pinned {
        found[device].get_or_insert(Holding::Pinned(tensor));
    }
    found
}

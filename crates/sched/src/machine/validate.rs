//! The rules that the parts of a machine obey.

use super::{BufferTypeDesc, Device, Link, MachineError, MachineParts, PoolKind};
use loadmaster_graph::{Bytes, DeviceId, PoolId};
use std::collections::BTreeSet;

/// Checks every rule; the first broken one is the error. Returns the fallback device.
pub(super) fn validate(parts: &MachineParts) -> Result<DeviceId, MachineError> {
    let last = parts.devices.len().checked_sub(1).map(DeviceId::new).ok_or(MachineError::NoDevice)?;
    unique("device", parts.devices.values().map(|d| &d.name))?;
    unique("pool", parts.pools.values().map(|p| &p.name))?;
    if let Some((i, _)) = parts.buffer_types.values().enumerate().find(|(_, t)| t.name.is_empty()) {
        return Err(MachineError::NoName { what: "buffer type", index: i });
    }
    if let Some(pool) = parts.pools.values().find(|p| p.capacity == Some(Bytes::ZERO)) {
        return Err(MachineError::EmptyPool { pool: pool.name.clone() });
    }
    parts.pools.ids().try_for_each(|id| nested(parts, id))?;
    parts.buffer_types.values().try_for_each(|t| buffer_type(parts, t))?;
    parts.devices.iter().try_for_each(|(id, d)| device(parts, id, d))?;
    links(parts)?;
    match parts.fallback {
        Some(fallback) => known_device(parts, fallback, || "the fallback".to_owned()).map(|()| fallback),
        None => Ok(last),
    }
}

fn unique<'a>(what: &'static str, names: impl Iterator<Item = &'a Box<str>>) -> Result<(), MachineError> {
    let mut seen = BTreeSet::new();
    for (index, name) in names.enumerate() {
        if name.is_empty() {
            return Err(MachineError::NoName { what, index });
        }
        if !seen.insert(name) {
            return Err(MachineError::DuplicateName { what, name: name.clone() });
        }
    }
    Ok(())
}

fn known_device(parts: &MachineParts, device: DeviceId, place: impl Fn() -> String) -> Result<(), MachineError> {
    let count = parts.devices.len();
    if device.index() < count {
        return Ok(());
    }
    Err(MachineError::UnknownDevice { place: place(), device, count })
}

fn known_pool(parts: &MachineParts, pool: PoolId, place: impl Fn() -> String) -> Result<(), MachineError> {
    let count = parts.pools.len();
    if pool.index() < count {
        return Ok(());
    }
    Err(MachineError::UnknownPool { place: place(), pool, count })
}

/// A pool is within others that exist, and not within itself.
fn nested(parts: &MachineParts, pool: PoolId) -> Result<(), MachineError> {
    let mut at = pool;
    for _ in 0..parts.pools.len() {
        let Some(outer) = parts.pools[at].within else { return Ok(()) };
        known_pool(parts, outer, || format!("pool `{}`", parts.pools[at].name))?;
        at = outer;
    }
    Err(MachineError::PoolCycle { pool: parts.pools[pool].name.clone() })
}

fn buffer_type(parts: &MachineParts, desc: &BufferTypeDesc) -> Result<(), MachineError> {
    let place = || format!("buffer type `{}`", desc.name);
    known_pool(parts, desc.pool, place)?;
    desc.usable_by.iter().try_for_each(|d| known_device(parts, d, place))?;
    let pool = &parts.pools[desc.pool];
    if let Some(max_size) = desc.max_size {
        let fault = |why| MachineError::MaxSize { buffer_type: desc.name.clone(), max_size, why };
        if max_size.get() < desc.alignment.get() {
            return Err(fault("is smaller than the alignment"));
        }
        if pool.capacity.is_some_and(|c| max_size > c) {
            return Err(fault("is more than the pool holds"));
        }
    }
    if let Some(padding) = desc.row_padding.filter(|p| *p == 0 || p % 256 != 0) {
        return Err(MachineError::RowPadding { buffer_type: desc.name.clone(), padding });
    }
    if desc.host && pool.kind == PoolKind::Device {
        return Err(MachineError::HostFlag { buffer_type: desc.name.clone(), pool: pool.name.clone() });
    }
    Ok(())
}

fn device(parts: &MachineParts, id: DeviceId, device: &Device) -> Result<(), MachineError> {
    device.pools.iter().try_for_each(|&p| known_pool(parts, p, || format!("device `{}`", device.name)))?;
    let Some(desc) = parts.buffer_types.get(device.buffer_type) else {
        let (device, buffer_type) = (device.name.clone(), device.buffer_type);
        return Err(MachineError::UnknownBufferType { device, buffer_type, count: parts.buffer_types.len() });
    };
    if !desc.usable_by.contains(id) {
        let (device, buffer_type) = (device.name.clone(), desc.name.clone());
        return Err(MachineError::CannotUseOwnType { device, buffer_type });
    }
    if !device.pools.contains(&desc.pool) {
        let (device, pool) = (device.name.clone(), parts.pools[desc.pool].name.clone());
        return Err(MachineError::ForeignPool { device, pool });
    }
    Ok(())
}

fn links(parts: &MachineParts) -> Result<(), MachineError> {
    let name = |d: DeviceId| parts.devices[d].name.clone();
    let mut seen = BTreeSet::new();
    for (i, &Link { from, to, path, bandwidth, .. }) in parts.links.iter().enumerate() {
        [from, to].into_iter().try_for_each(|d| known_device(parts, d, || format!("link {i}")))?;
        if from == to {
            return Err(MachineError::LinkToItself { device: name(from) });
        }
        if bandwidth == Bytes::ZERO {
            return Err(MachineError::NoBandwidth { from: name(from), to: name(to) });
        }
        if !seen.insert((from, to, path as u8)) {
            return Err(MachineError::DuplicateLink { from: name(from), to: name(to), path });
        }
    }
    Ok(())
}

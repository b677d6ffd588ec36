//! From names to ids, with every limit checked first.

use super::raw::{RawBufferType, RawConfig, RawDevice, RawDeviceKind, RawLink, RawPath, RawPool, RawPoolKind};
use super::{
    Config, ConfigError, FileSpeed, MAX_BUFFER_TYPES, MAX_DEVICES, MAX_FLOPS, MAX_LINKS, MAX_NAME_LEN, MAX_POOLS,
};
use loadmaster_backends::cuda::GpuTarget;
use loadmaster_graph::{Align, Bytes, Id, Op};
use loadmaster_sched::machine::{
    BufferTypeDesc, CUDA_ROW_PADDING, DEVICE_ALIGN, HOST_ALIGN, Link, LinkPath, MAX_GPU_FIGURE, OFFLOAD_MIN_BATCH,
    Pool, PoolKind, parse_size,
};
use loadmaster_sched::{Device, DeviceKind, Driver, Machine, MachineParts, OpSet};

/// Names and ids of one file.
struct Names {
    pools: Vec<String>,
    buffer_types: Vec<String>,
    devices: Vec<String>,
}

pub(super) fn resolve(raw: RawConfig) -> Result<Config, ConfigError> {
    check_counts(&raw)?;
    check_names(&raw)?;
    let names = Names {
        pools: raw.pool.iter().map(|p| p.name.clone()).collect(),
        buffer_types: raw.buffer_type.iter().map(|t| t.name.clone()).collect(),
        devices: raw.device.iter().map(|d| d.name.clone()).collect(),
    };
    let mut parts = MachineParts {
        pools: raw.pool.iter().map(|p| pool(p, &names)).collect::<Result<_, _>>()?,
        buffer_types: raw.buffer_type.iter().map(|t| buffer_type(t, &names)).collect::<Result<_, _>>()?,
        ..MachineParts::default()
    };
    for device in &raw.device {
        let device = resolve_device(device, &names, &parts)?;
        parts.devices.push(device);
    }
    parts.links = raw.link.iter().enumerate().map(|(i, l)| link(i, l, &names)).collect::<Result<_, _>>()?;
    let fallback = raw.fallback.as_deref().map(|name| find("fallback", "device", name, &names.devices));
    parts.fallback = fallback.transpose()?;
    let speeds = raw.device.iter().map(speed).collect::<Result<_, _>>()?;
    Ok(Config { name: raw.name, machine: Machine::new(parts)?, speeds })
}

fn speed(raw: &RawDevice) -> Result<FileSpeed, ConfigError> {
    let place = format!("device `{}`", raw.name);
    let bandwidth = raw.bandwidth.as_deref().map(|text| size(&place, "bandwidth", text)).transpose()?;
    let fault =
        |key: &str, found: f64| ConfigError::Speed { place: format!("{place}: {key}"), found, limit: MAX_FLOPS };
    if bandwidth == Some(Bytes::ZERO) {
        return Err(fault("bandwidth", 0.0));
    }
    // The negation also holds for what is no number.
    match raw.flops.filter(|f| !(*f > 0.0 && *f <= MAX_FLOPS)) {
        Some(found) => Err(fault("flops", found)),
        None => Ok(FileSpeed { bandwidth, flops: raw.flops }),
    }
}

fn check_counts(raw: &RawConfig) -> Result<(), ConfigError> {
    let counts = [
        ("devices", raw.device.len(), MAX_DEVICES),
        ("pools", raw.pool.len(), MAX_POOLS),
        ("buffer types", raw.buffer_type.len(), MAX_BUFFER_TYPES),
        ("links", raw.link.len(), MAX_LINKS),
    ];
    match counts.into_iter().find(|(_, found, limit)| found > limit) {
        Some((what, found, limit)) => Err(ConfigError::Limit { what, found: found as u64, limit: limit as u64 }),
        None => Ok(()),
    }
}

/// Lengths of the names that things are given; references to them are bounded by their being found.
fn check_names(raw: &RawConfig) -> Result<(), ConfigError> {
    let pools = raw.pool.iter().map(|p| &p.name);
    let types = raw.buffer_type.iter().map(|t| &t.name);
    let devices = raw.device.iter().map(|d| &d.name);
    let mut given = std::iter::once(&raw.name).chain(pools).chain(types).chain(devices);
    match given.find(|name| name.len() > MAX_NAME_LEN) {
        Some(long) => {
            Err(ConfigError::Limit { what: "bytes of a name", found: long.len() as u64, limit: MAX_NAME_LEN as u64 })
        }
        None => Ok(()),
    }
}

fn find<K: Id>(place: &str, what: &'static str, name: &str, known: &[String]) -> Result<K, ConfigError> {
    known.iter().position(|k| k == name).map(K::from_index).ok_or_else(|| ConfigError::UnknownName {
        place: place.to_owned(),
        what,
        name: name.to_owned(),
        known: if known.is_empty() { "none".to_owned() } else { known.join(", ") },
    })
}

fn size(place: &str, key: &str, text: &str) -> Result<Bytes, ConfigError> {
    parse_size(text).map_err(|source| ConfigError::Size { place: format!("{place}: {key}"), source })
}

fn pool(raw: &RawPool, names: &Names) -> Result<Pool, ConfigError> {
    let place = format!("pool `{}`", raw.name);
    let kind = match raw.kind {
        RawPoolKind::Device => PoolKind::Device,
        RawPoolKind::Host => PoolKind::Host,
        RawPoolKind::Pinned => PoolKind::PinnedHost,
        RawPoolKind::Unified => PoolKind::Unified,
    };
    let capacity = raw.capacity.as_deref().map(|c| size(&place, "capacity", c)).transpose()?;
    let within = raw.within.as_deref().map(|name| find(&format!("{place}: within"), "pool", name, &names.pools));
    Ok(Pool { name: raw.name.as_str().into(), kind, capacity, within: within.transpose()? })
}

fn buffer_type(raw: &RawBufferType, names: &Names) -> Result<BufferTypeDesc, ConfigError> {
    let place = format!("buffer type `{}`", raw.name);
    let usual = if raw.host { HOST_ALIGN } else { DEVICE_ALIGN };
    let found = raw.alignment.unwrap_or(usual);
    let usable_by = raw.usable_by.iter().map(|d| find(&format!("{place}: usable_by"), "device", d, &names.devices));
    let usual_padding = if raw.host { 0 } else { CUDA_ROW_PADDING };
    Ok(BufferTypeDesc {
        name: raw.name.as_str().into(),
        pool: find(&format!("{place}: pool"), "pool", &raw.pool, &names.pools)?,
        alignment: Align::new(found).ok_or(ConfigError::Alignment { place: place.clone(), found })?,
        max_size: raw.max_size.as_deref().map(|s| size(&place, "max_size", s)).transpose()?,
        host: raw.host,
        row_padding: Some(raw.row_padding.unwrap_or(usual_padding)).filter(|&p| p > 0),
        usable_by: usable_by.collect::<Result<_, _>>()?,
    })
}

fn resolve_device(raw: &RawDevice, names: &Names, parts: &MachineParts) -> Result<Device, ConfigError> {
    let place = format!("device `{}`", raw.name);
    let buffer_type = find(&format!("{place}: buffer_type"), "buffer type", &raw.buffer_type, &names.buffer_types)?;
    let own = parts.buffer_types[buffer_type].pool;
    let mut pools = vec![own];
    for name in &raw.pools {
        let pool = find(&format!("{place}: pools"), "pool", name, &names.pools)?;
        if !pools.contains(&pool) {
            pools.push(pool);
        }
    }
    let is_gpu = raw.kind == RawDeviceKind::Gpu;
    let usual_batch = if is_gpu { OFFLOAD_MIN_BATCH } else { 0 };
    Ok(Device {
        name: raw.name.as_str().into(),
        kind: if is_gpu { DeviceKind::Gpu } else { DeviceKind::Cpu },
        driver: driver(raw, &place)?,
        buffer_type,
        ops: ops(raw, &place)?,
        offload_min_batch: Some(raw.offload_min_batch.unwrap_or(usual_batch)).filter(|&b| b > 0),
        gpu: gpu(raw, &place)?,
        pools,
    })
}

fn gpu(raw: &RawDevice, place: &str) -> Result<Option<GpuTarget>, ConfigError> {
    let fault = |found: u32| ConfigError::Gpu { place: place.to_owned(), found, limit: MAX_GPU_FIGURE };
    match (raw.arch, raw.multiprocessors) {
        (None, None) => Ok(None),
        (Some(arch), Some(multiprocessors)) if raw.kind == RawDeviceKind::Gpu => {
            match [arch, multiprocessors].into_iter().find(|n| !(1..=MAX_GPU_FIGURE).contains(n)) {
                Some(found) => Err(fault(found)),
                None => Ok(Some(GpuTarget::described(arch, multiprocessors))),
            }
        }
        (arch, multiprocessors) => Err(fault(arch.or(multiprocessors).unwrap_or_default())),
    }
}

fn driver(raw: &RawDevice, place: &str) -> Result<Driver, ConfigError> {
    let text = raw.driver.as_deref().unwrap_or(if raw.kind == RawDeviceKind::Cpu { "host" } else { "" });
    let fault = |why| ConfigError::Driver { place: place.to_owned(), driver: text.to_owned(), why };
    match (text, raw.kind) {
        ("host", RawDeviceKind::Cpu) => return Ok(Driver::Host),
        ("host", RawDeviceKind::Gpu) => return Err(fault("drives no gpu; write sim or cuda:N")),
        (_, RawDeviceKind::Cpu) => return Err(fault("drives no cpu; write host")),
        ("sim", RawDeviceKind::Gpu) => return Ok(Driver::Sim),
        _ => {}
    }
    let ordinal = text.strip_prefix("cuda:").and_then(|n| n.parse().ok());
    ordinal
        .map(|ordinal| Driver::Cuda { ordinal })
        .ok_or_else(|| fault("is none that drives a gpu; write sim or cuda:N"))
}

fn ops(raw: &RawDevice, place: &str) -> Result<OpSet, ConfigError> {
    raw.unsupported_ops.iter().try_fold(OpSet::all(), |ops, name| {
        let unknown = || ConfigError::UnknownName {
            place: format!("{place}: unsupported_ops"),
            what: "operation",
            name: name.clone(),
            known: format!("ggml's, such as {}, {} and {}", Op::MulMat, Op::Rope, Op::Silu),
        };
        Op::from_name(name).map(|op| ops.without(op)).ok_or_else(unknown)
    })
}

fn link(index: usize, raw: &RawLink, names: &Names) -> Result<Link, ConfigError> {
    let place = format!("link {index}");
    let path = match raw.path {
        RawPath::Peer => LinkPath::Peer,
        RawPath::Pinned => LinkPath::Pinned,
        RawPath::Pageable => LinkPath::Pageable,
        RawPath::Shared => LinkPath::Shared,
    };
    Ok(Link {
        from: find(&format!("{place}: from"), "device", &raw.from, &names.devices)?,
        to: find(&format!("{place}: to"), "device", &raw.to, &names.devices)?,
        path,
        bandwidth: size(&place, "bandwidth", &raw.bandwidth)?,
        latency_ns: raw.latency_ns,
    })
}

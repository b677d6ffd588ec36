//! Machine files as text.

use super::Config;
use loadmaster_graph::{DeviceId, Op, PoolId};
use loadmaster_sched::machine::{BufferTypeDesc, Link, LinkPath, Pool, PoolKind};
use loadmaster_sched::{Device, Driver};
use std::fmt::Write;

/// Every key that the machine has, whether it is the usual value or not: what is read back is the same.
pub(super) fn render(config: &Config) -> String {
    let mut out = format!("name = {}\n", quoted(&config.name));
    // Writing to a string cannot fail.
    let _ = write_all(config, &mut out);
    out
}

fn write_all(config: &Config, out: &mut String) -> std::fmt::Result {
    let machine = &config.machine;
    let name = |d: DeviceId| quoted(&machine.device(d).name);
    if let Some(fallback) = machine.parts().fallback {
        writeln!(out, "fallback = {}", name(fallback))?;
    }
    let pool_name = |p: PoolId| quoted(&machine.pools()[p].name);
    for described in machine.pools().values() {
        pool(described, out)?;
        if let Some(outer) = described.within {
            writeln!(out, "within = {}", pool_name(outer))?;
        }
    }
    for memory in machine.buffer_types().values() {
        let users = machine.devices().ids().filter(|&d| memory.usable_by.contains(d)).map(name);
        buffer_type(memory, &pool_name(memory.pool), &users.collect::<Vec<_>>(), out)?;
    }
    for (id, described) in machine.devices().iter() {
        device(described, &quoted(&machine.buffer_types()[described.buffer_type].name), out)?;
        let further: Vec<String> = described.pools.iter().skip(1).map(|&p| pool_name(p)).collect();
        if !further.is_empty() {
            writeln!(out, "pools = [{}]", further.join(", "))?;
        }
        let speed = config.speeds[id];
        if let Some(bytes) = speed.bandwidth {
            writeln!(out, "bandwidth = \"{}\"", bytes.get())?;
        }
        if let Some(flops) = speed.flops {
            writeln!(out, "flops = {flops:?}")?;
        }
    }
    machine.links().iter().try_for_each(|l| link(l, &name(l.from), &name(l.to), out))
}

fn pool(pool: &Pool, out: &mut String) -> std::fmt::Result {
    let kind = match pool.kind {
        PoolKind::Device => "device",
        PoolKind::Host => "host",
        PoolKind::PinnedHost => "pinned",
        PoolKind::Unified => "unified",
    };
    writeln!(out, "\n[[pool]]\nname = {}\nkind = \"{kind}\"", quoted(&pool.name))?;
    match pool.capacity {
        Some(bytes) => writeln!(out, "capacity = \"{}\"", bytes.get()),
        None => Ok(()),
    }
}

fn buffer_type(memory: &BufferTypeDesc, pool: &str, users: &[String], out: &mut String) -> std::fmt::Result {
    writeln!(out, "\n[[buffer_type]]\nname = {}\npool = {pool}", quoted(&memory.name))?;
    writeln!(out, "alignment = {}\nhost = {}", memory.alignment.get(), memory.host)?;
    if let Some(bytes) = memory.max_size {
        writeln!(out, "max_size = \"{}\"", bytes.get())?;
    }
    writeln!(out, "row_padding = {}\nusable_by = [{}]", memory.row_padding.unwrap_or(0), users.join(", "))
}

fn device(device: &Device, memory: &str, out: &mut String) -> std::fmt::Result {
    let driver = match device.driver {
        Driver::Host => "host".to_owned(),
        Driver::Sim => "sim".to_owned(),
        Driver::Cuda { ordinal } => format!("cuda:{ordinal}"),
    };
    writeln!(out, "\n[[device]]\nname = {}\nkind = \"{}\"", quoted(&device.name), device.kind)?;
    writeln!(out, "driver = \"{driver}\"\nbuffer_type = {memory}")?;
    writeln!(out, "offload_min_batch = {}", device.offload_min_batch.unwrap_or(0))?;
    if let Some(gpu) = device.gpu {
        writeln!(out, "arch = {}\nmultiprocessors = {}", gpu.arch, gpu.multiprocessors)?;
    }
    let missing = Op::ALL.iter().filter(|&&op| !device.ops.contains(op)).map(|op| quoted(&op.to_string()));
    let missing: Vec<String> = missing.collect();
    match missing.as_slice() {
        [] => Ok(()),
        some => writeln!(out, "unsupported_ops = [{}]", some.join(", ")),
    }
}

fn link(link: &Link, from: &str, to: &str, out: &mut String) -> std::fmt::Result {
    let path = match link.path {
        LinkPath::Peer => "peer",
        LinkPath::Pinned => "pinned",
        LinkPath::Pageable => "pageable",
        LinkPath::Shared => "shared",
    };
    writeln!(out, "\n[[link]]\nfrom = {from}\nto = {to}\npath = \"{path}\"")?;
    writeln!(out, "bandwidth = \"{}\"\nlatency_ns = {}", link.bandwidth.get(), link.latency_ns)
}

/// A basic string of TOML.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

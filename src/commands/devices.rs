//! `loadmaster devices`: what this machine has, and how bytes go from device to device.

use super::input::MachineArgs;
use super::table::{Column, Table};
use anyhow::Context;
use loadmaster_backends::{Device, MemoryInfo};
use loadmaster_graph::{Bytes, DeviceId, IdVec};
use loadmaster_sched::exec::{ExecError, PathReport, Runtime, measured, open};
use loadmaster_sched::{DeviceSpec, Machine};
use serde_json::json;
use std::num::NonZeroUsize;
use std::process::ExitCode;

/// Show devices, memory, and the tested path between every two devices with its reason and bandwidth
///
/// Without --device or --machine: every GPU that the CUDA driver has, and the host.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What was found.
struct Found {
    /// What the CUDA driver is, or why there is none.
    driver: String,
    machine: Machine,
    devices: IdVec<DeviceId, (String, String, MemoryInfo)>,
    /// Who computes the matrix products of the GPUs, and why.
    products: Vec<(String, String)>,
    paths: Vec<PathReport>,
}

/// Runs the command: 0 shown, 1 a device cannot be opened, 2 what was asked for makes no sense.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let asked = match args.machine.machine()? {
        Some(machine) => machine,
        None => match all_gpus() {
            Ok(gpus) => Machine::from_specs(&gpus)?,
            Err(error) => return Ok(super::failed(&error)),
        },
    };
    match look(asked) {
        Ok(found) => {
            let text = if args.json { as_json(&found) } else { as_text(&found) };
            super::print(&text).context("standard output")?;
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => Ok(super::failed(&error.into())),
    }
}

fn look(asked: Machine) -> Result<Found, ExecError> {
    let machine = measured(asked)?;
    let opened = open(&machine, NonZeroUsize::MIN)?;
    let describe = |d: &std::sync::Arc<dyn Device>| (d.name().to_owned(), d.description(), d.memory());
    let devices = opened.iter().map(describe).collect();
    let products = opened.iter().filter_map(|d| Some((d.name().to_owned(), products(d.as_ref())?))).collect();
    let paths = Runtime::new(machine.clone(), opened)?.path_report().to_vec();
    Ok(Found { driver: driver(), machine, devices, products, paths })
}

#[cfg(feature = "cuda")]
fn products(device: &dyn Device) -> Option<String> {
    Some(device.as_any().downcast_ref::<loadmaster_backends::cuda::CudaDevice>()?.products())
}

#[cfg(not(feature = "cuda"))]
fn products(_: &dyn Device) -> Option<String> {
    None
}

#[cfg(feature = "cuda")]
fn driver() -> String {
    match loadmaster_backends::cuda::driver() {
        Ok(info) => {
            let (major, minor) = info.version;
            let kind = if info.is_simulator { "stand-in for tests, CUDA" } else { "CUDA" };
            format!("{kind} {major}.{minor}")
        }
        Err(why) => why.to_string(),
    }
}

#[cfg(not(feature = "cuda"))]
fn driver() -> String {
    "this program was built without CUDA".to_owned()
}

#[cfg(feature = "cuda")]
fn all_gpus() -> anyhow::Result<Vec<DeviceSpec>> {
    use loadmaster_sched::Driver;
    // Where there is no driver, the report says so.
    let gpus = match loadmaster_backends::cuda::driver() {
        Ok(_) => loadmaster_backends::cuda::probe()?,
        Err(_) => Vec::new(),
    };
    Ok(gpus.iter().map(|gpu| DeviceSpec::of(Driver::Cuda { ordinal: gpu.ordinal })).collect())
}

#[cfg(not(feature = "cuda"))]
fn all_gpus() -> anyhow::Result<Vec<DeviceSpec>> {
    Ok(Vec::new())
}

fn bytes(bytes: Option<Bytes>) -> String {
    bytes.map_or("?".to_owned(), |b| b.to_string())
}

fn as_text(found: &Found) -> String {
    let name = |id: DeviceId| found.machine.device(id).name.to_string();
    let columns =
        [(Column::Left, "device"), (Column::Left, "what"), (Column::Right, "memory"), (Column::Right, "free")];
    let mut devices = Table::new(&columns);
    for (name, what, memory) in found.devices.values() {
        devices.push([name.clone(), what.clone(), bytes(memory.total), bytes(memory.free)]);
    }
    let mut pools = Table::new(&[(Column::Left, "pool"), (Column::Left, "kind"), (Column::Right, "capacity")]);
    for pool in found.machine.pools().values() {
        pools.push([pool.name.to_string(), pool.kind.to_string(), bytes(pool.capacity)]);
    }
    let mut text = format!("driver: {}\n{}\n{}", found.driver, devices.render(2), pools.render(2));
    if !found.products.is_empty() {
        let mut products = Table::new(&[(Column::Left, "device"), (Column::Wrapped, "products by")]);
        found.products.iter().for_each(|(name, by)| products.push([name.clone(), by.clone()]));
        text += "\n";
        text += &products.render(2);
    }
    if !found.paths.is_empty() {
        let columns = [
            (Column::Left, "from"),
            (Column::Left, "to"),
            (Column::Left, "path"),
            (Column::Right, "bandwidth"),
            (Column::Wrapped, "why"),
        ];
        let mut paths = Table::new(&columns);
        for path in &found.paths {
            let speed = path.bandwidth.map_or("?".to_owned(), |b| format!("{}/s", Bytes(b as u64)));
            paths.push([name(path.from), name(path.to), path.path.to_string(), speed, path.why.clone()]);
        }
        text += "\n";
        text += &paths.render(2);
    }
    text
}

fn as_json(found: &Found) -> String {
    let device = |(name, what, memory): &(String, String, MemoryInfo)| json!({ "name": name, "what": what, "bytes": memory.total.map(Bytes::get), "free": memory.free.map(Bytes::get) });
    let pools = found.machine.pools().values().map(
        |pool| json!({ "name": *pool.name, "kind": pool.kind.to_string(), "bytes": pool.capacity.map(Bytes::get) }),
    );
    let paths = found.paths.iter().map(|path| {
        let name = |id: DeviceId| found.machine.device(id).name.to_string();
        json!({
            "from": name(path.from),
            "to": name(path.to),
            "path": path.path.to_string(),
            "why": path.why,
            "bytes_per_second": path.bandwidth,
        })
    });
    let object = json!({
        "driver": found.driver,
        "devices": found.devices.values().map(device).collect::<Vec<_>>(),
        "products": found.products.iter().map(|(name, by)| json!({ "device": name, "by": by })).collect::<Vec<_>>(),
        "pools": pools.collect::<Vec<_>>(),
        "paths": paths.collect::<Vec<_>>(),
    });
    object.to_string() + "\n"
}

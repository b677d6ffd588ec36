//! `loadmaster probe`: measures devices and links, and writes a machine file.

use super::input::MachineArgs;
use super::table::{Column, Table};
use crate::config::Config;
use anyhow::Context;
use loadmaster_graph::Bytes;
use loadmaster_sched::Machine;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

/// Measure how fast devices read, multiply and copy, and write a machine file for `plan --machine`
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    machine: MachineArgs,
    /// Write the machine file there [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// What the file calls the machine
    #[arg(long, value_name = "NAME", default_value = "this machine")]
    pub name: String,
    /// Threads of the host's processor [default: all]
    #[arg(short, long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
}

/// Runs the command: 0 measured, 2 a device cannot be opened or measured.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machine = match args.machine.machine()? {
        Some(machine) => machine,
        None => Machine::from_specs(&[])?,
    };
    let machine = loadmaster_sched::exec::measured(machine)?;
    let threads = args.threads.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN);
    let devices = loadmaster_sched::exec::open(&machine, threads)?;
    let config = crate::probe::probe(&args.name, &machine, &devices)?;
    let file = config.to_toml();
    let Some(path) = &args.output else {
        super::print(&file)?;
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::write(path, file).with_context(|| path.display().to_string())?;
    super::print(&render(&config))?;
    Ok(ExitCode::SUCCESS)
}

/// What was measured, for people.
pub fn render(config: &Config) -> String {
    let machine = &config.machine;
    let mut devices = Table::new(&[(Column::Left, "device"), (Column::Right, "reads"), (Column::Right, "multiplies")]);
    for (id, device) in machine.devices().iter() {
        let speed = config.speeds[id];
        let reads = speed.bandwidth.map_or("?".to_owned(), |b| format!("{b}/s"));
        let flops = speed.flops.map_or("?".to_owned(), |f| format!("{:.1} GFLOP/s", f / 1e9));
        devices.push([device.name.to_string(), reads, flops]);
    }
    let columns = [
        (Column::Left, "from"),
        (Column::Left, "to"),
        (Column::Left, "path"),
        (Column::Right, "bandwidth"),
        (Column::Right, "latency"),
    ];
    let mut links = Table::new(&columns);
    for link in machine.links() {
        let name = |d| machine.device(d).name.to_string();
        let bandwidth = format!("{}/s", Bytes(link.bandwidth.get()));
        let latency = format!("{:.1} µs", link.latency_ns as f64 / 1e3);
        links.push([name(link.from), name(link.to), link.path.to_string(), bandwidth, latency]);
    }
    devices.render(2) + &links.render(2)
}

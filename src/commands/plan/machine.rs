//! The machine that is planned for, and how fast its devices are.

use super::Args;
use crate::commands::table::fit;
use crate::config::{Config, FileSpeed};
use crate::plan::fit::speeds::{ASSUMED_GPU, ASSUMED_HOST, KnownGpu, Speed, SpeedSource, known_gpu, known_names};
use loadmaster_sched::{DeviceKind, DeviceSpec, Driver, Machine};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A machine and the speeds of its devices.
#[derive(Clone, Debug)]
pub struct Target {
    /// The machine.
    pub machine: Machine,
    /// Speeds, by device.
    pub speeds: Vec<Speed>,
    /// Where they come from, by device.
    pub sources: Vec<SpeedSource>,
}

impl Target {
    /// Errors: an unreadable file, a spec or a name that is none, devices that contradict each other.
    pub fn of(args: &Args) -> anyhow::Result<Self> {
        if let Some(path) = &args.machine {
            let config = Config::read_path(path)?;
            let speeds = config.speeds.values().copied().map(in_file).collect();
            return Ok(Self::new(described(config.machine), speeds));
        }
        let (specs, known) = parse(&args.device)?;
        let machine = described(Machine::from_specs(&specs)?);
        let known = known.into_iter().map(|k| k.map(|gpu| (Part::from(gpu.expected()), SpeedSource::DataSheet)));
        let speeds = known.chain(std::iter::repeat(None)).take(machine.devices().len()).collect();
        Ok(Self::new(machine, speeds))
    }

    /// A machine of whose speeds nothing is known.
    pub fn assumed(machine: Machine) -> Self {
        let told = machine.devices().values().map(|_| None).collect();
        Self::new(machine, told)
    }

    fn new(machine: Machine, told: Vec<Option<(Part, SpeedSource)>>) -> Self {
        let (speeds, sources) = machine
            .devices()
            .values()
            .zip(told)
            .map(|(device, told)| {
                let usual = assumed(device.kind);
                let Some((part, source)) = told else { return (usual, SpeedSource::Assumed) };
                let bandwidth = part.bandwidth.unwrap_or(usual.bandwidth);
                let operations = part.operations.unwrap_or(usual.operations);
                let is_whole = part.bandwidth.is_some() && part.operations.is_some();
                (Speed { bandwidth, operations }, if is_whole { source } else { SpeedSource::Assumed })
            })
            .unzip();
        Self { machine, speeds, sources }
    }

    /// For JSON.
    pub fn json(&self) -> Value {
        let one = |((device, speed), source): ((&loadmaster_sched::Device, &Speed), &SpeedSource)| {
            let (bandwidth, flops) = (speed.bandwidth, speed.operations);
            json!({ "device": device.name, "bandwidth": bandwidth, "flops": flops, "source": source.name() })
        };
        self.machine.devices().values().zip(&self.speeds).zip(&self.sources).map(one).collect()
    }
}

/// The machine with its CUDA devices as a driver describes them that is here, where nobody said what they are. Without one
/// they are assumed, which the plan then tells.
fn described(machine: Machine) -> Machine {
    let told: Vec<_> = machine.devices().values().map(|d| d.gpu).collect();
    loadmaster_sched::exec::described(machine.clone()).unwrap_or(machine).with_gpus(told)
}

/// CUDA devices whose GPU is assumed, a line each, for people.
pub fn told_assumed(machine: &Machine) -> String {
    let is_assumed = |d: &loadmaster_sched::Device| d.gpu.is_none() && matches!(d.driver, Driver::Cuda { .. });
    let assumed = machine.devices().iter().filter(|(_, d)| is_assumed(d));
    let line = |(id, d): (_, &loadmaster_sched::Device)| {
        let gpu = machine.gpu(id).map_or(String::new(), |gpu| gpu.to_string());
        format!("  workspace of {}: for {gpu}, assumed\n", fit(&d.name, 32))
    };
    assumed.map(line).collect()
}

/// How many devices' speeds come from where, for people.
pub fn told_sources(sources: &[SpeedSource]) -> String {
    let count = |source| sources.iter().filter(|&&s| s == source).count();
    let kinds = [
        (count(SpeedSource::File), "from the machine file"),
        (count(SpeedSource::DataSheet), "from data sheets"),
        (count(SpeedSource::Assumed), "assumed"),
    ];
    let told: Vec<String> = kinds.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
    told.join(", ")
}

/// What is known of a speed.
#[derive(Clone, Copy)]
struct Part {
    bandwidth: Option<f64>,
    operations: Option<f64>,
}

impl From<Speed> for Part {
    fn from(speed: Speed) -> Self {
        Self { bandwidth: Some(speed.bandwidth), operations: Some(speed.operations) }
    }
}

fn in_file(speed: FileSpeed) -> Option<(Part, SpeedSource)> {
    let part = Part { bandwidth: speed.bandwidth.map(|b| b.get() as f64), operations: speed.flops };
    (speed != FileSpeed::default()).then_some((part, SpeedSource::File))
}

type Specs = (Vec<DeviceSpec>, Vec<Option<&'static KnownGpu>>);

/// Specs, and the card of each that is one by name. Cards of one name are numbered.
fn parse(texts: &[String]) -> anyhow::Result<Specs> {
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let one = |text: &String| {
        let Some(gpu) = known_gpu(text) else {
            return match text.parse() {
                Ok(spec) => Ok((spec, None)),
                // What looks like a name may be meant as a card's.
                Err(error) if is_word(text) => {
                    Err(anyhow::anyhow!("--device {text}: {error}; cards known by name: {}", known_names()))
                }
                Err(error) => Err(anyhow::Error::from(error).context(format!("--device {text}"))),
            };
        };
        let number = numbers.entry(gpu.name).or_default();
        let name = format!("{}_{number}", gpu.name.to_uppercase());
        *number += 1;
        let (driver, memory, gpu_target) = (Driver::Sim, Some(gpu.memory), gpu.target);
        let spec = DeviceSpec { name: Some(name), memory, gpu: gpu_target, ..DeviceSpec::of(driver) };
        Ok((spec, Some(gpu)))
    };
    let parsed: anyhow::Result<Vec<_>> = texts.iter().map(one).collect();
    Ok(parsed?.into_iter().unzip())
}

/// Whether a text is no kind of device with a size, a number or options.
fn is_word(text: &str) -> bool {
    let kind = text.split([':', ',']).next().unwrap_or_default();
    !["cpu", "sim", "cuda"].contains(&kind)
}

fn assumed(kind: DeviceKind) -> Speed {
    match kind {
        DeviceKind::Gpu => ASSUMED_GPU,
        DeviceKind::Cpu => ASSUMED_HOST,
    }
}

//! Plans as files: written, read, compared, and refused where the model or the machine is another.

use super::{Choices, ChoicesError};
use crate::engine::{GraphSummary, Model, Peak, Prepared, Settings};
use loadmaster_alloc::Placer;
use loadmaster_graph::Bytes;
use loadmaster_sched::{DeviceSpec, Driver, Machine};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Version of the format.
pub const VERSION: u32 = 1;
/// Largest file that is read.
pub const MAX_FILE_BYTES: u64 = 16 << 20;

/// A plan.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SavedPlan {
    /// Version of the format.
    pub version: u32,
    /// The model that it is for.
    pub model: ModelIdentity,
    /// The machine that it is for.
    pub machine: Vec<MachineDevice>,
    /// What was chosen.
    pub choices: Choices,
    /// Whether it fits.
    pub fits: bool,
    /// Devices, as the machine has them.
    pub devices: Vec<DevicePlan>,
    /// Pools.
    pub pools: Vec<PoolPlan>,
    /// Splits of the graph of one token.
    pub splits: usize,
    /// Pipeline copies of inputs.
    pub copies: u32,
    /// Copies from device to device for one token of each sequence.
    pub transfers: usize,
    /// Bytes of these.
    pub bytes_per_token: u64,
    /// The graph of a full micro-batch.
    pub prefill: GraphPlan,
    /// What goes over each link.
    #[serde(default)]
    pub links: Vec<LinkPlan>,
    /// The device of each layer, the output as the last.
    pub layers: Vec<LayerPlan>,
    /// Predicted tokens a second.
    pub predicted: Option<Predicted>,
    /// The same for llama.cpp.
    pub llama_cpp_flags: String,
}

/// What tells models apart.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ModelIdentity {
    /// The architecture.
    pub architecture: String,
    /// Tensors.
    pub tensors: usize,
    /// Bytes of the tensors.
    pub bytes: u64,
    /// Hash of names, types and extents of the tensors.
    pub hash: String,
}

/// What tells devices apart.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MachineDevice {
    /// Its name.
    pub name: String,
    /// What drives it.
    pub driver: String,
    /// Its memory.
    pub memory: Option<u64>,
}

/// What a device holds, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DevicePlan {
    /// Its name.
    pub name: String,
    /// Weights.
    pub weights: u64,
    /// KV cache.
    pub kv: u64,
    /// Compute arena.
    pub compute: u64,
    /// What no arena for these graphs can be below.
    pub compute_bound: u64,
    /// Host memory for outputs and copies on their way: a GPU's is pinned, and not in its total.
    #[serde(default)]
    pub staging: u64,
    /// What its pool has left; none: not known. Negative: that much is missing.
    pub free: Option<i64>,
    /// The sum in the device's own memory.
    pub total: u64,
    /// What the compute arena holds when most is alive.
    #[serde(default)]
    pub peak: PeakPlan,
}

/// What is alive in an arena when most is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PeakPlan {
    /// The node that runs then.
    pub node: String,
    /// Tokens of its graph.
    pub tokens: u32,
    /// Bytes of all that is alive.
    pub bytes: u64,
    /// Tensors, largest first.
    pub alive: Vec<AlivePlan>,
}

/// A tensor in an arena.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AlivePlan {
    /// Its name.
    pub tensor: String,
    /// Bytes, rounded up to the alignment.
    pub bytes: u64,
}

/// What goes from one device to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LinkPlan {
    /// Where the bytes are.
    pub from: String,
    /// Where they go.
    pub to: String,
    /// Copies for one token of each sequence.
    pub transfers: usize,
    /// Bytes of these for each token.
    pub bytes_per_token: u64,
    /// Copies for a full micro-batch.
    pub prefill_transfers: usize,
    /// Bytes of these, for the whole micro-batch.
    pub prefill_bytes: u64,
}

/// What a pool holds, in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolPlan {
    /// Its name.
    pub name: String,
    /// What it has; none: not known.
    pub capacity: Option<u64>,
    /// What is kept free.
    pub reserved: u64,
    /// What is taken.
    pub used: u64,
    /// What is missing.
    pub short: u64,
}

/// A graph.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GraphPlan {
    /// Tokens.
    pub tokens: u32,
    /// Splits.
    pub splits: usize,
    /// Copies from device to device.
    pub transfers: usize,
    /// Bytes of these.
    pub bytes: u64,
}

/// A layer.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LayerPlan {
    /// Its number, or `output`.
    pub layer: String,
    /// Its device.
    pub device: String,
}

/// Predicted speed, in tokens a second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Predicted {
    /// One token after another.
    pub decode: f64,
    /// Prompts.
    pub prefill: f64,
    /// By how much the best placement could be better at most; none: nothing was chosen.
    pub gap: Option<f64>,
}

/// Why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SavedError {
    /// The file system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The refusal.
        source: std::io::Error,
    },
    /// No plan.
    #[error("{path}: no plan: {why}", path = path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// What was chosen makes no sense.
    #[error(transparent)]
    Choices(#[from] ChoicesError),
    /// Another model.
    #[error("the plan is for another model: its {what} is {planned}, but here it is {found}; plan again for this one")]
    OtherModel {
        /// What differs.
        what: &'static str,
        /// In the plan.
        planned: String,
        /// In the model.
        found: String,
    },
    /// Another machine.
    #[error("the plan is for another machine: {what} is {planned}, but here it is {found}; plan again for this one")]
    OtherMachine {
        /// What differs.
        what: String,
        /// In the plan.
        planned: String,
        /// In the machine.
        found: String,
    },
}

impl SavedPlan {
    /// A plan of what was prepared, with `reserved` bytes kept free in every pool of a device.
    #[must_use]
    pub fn new(model: &Model, machine: &Machine, choices: &Choices, prepared: &Prepared, reserved: Bytes) -> Self {
        let pools = pools(machine, prepared, reserved);
        let devices = prepared.devices.iter().map(|(id, need)| {
            let pool = &pools[machine.compute_type(id).pool.index()];
            let free = pool
                .capacity
                .map(|c| signed(c).saturating_sub(signed(pool.reserved)).saturating_sub(signed(pool.used)));
            DevicePlan {
                name: machine.device(id).name.to_string(),
                weights: need.weights.get(),
                kv: need.cache.get(),
                compute: need.compute.get(),
                compute_bound: need.bound.get(),
                staging: need.staging.get(),
                free,
                total: need.total().get(),
                peak: peak(&prepared.peaks[id]),
            }
        });
        let name = |d| machine.device(d).name.to_string();
        let layers = prepared.layers.layers.iter().enumerate();
        let layers = layers.map(|(i, &d)| LayerPlan { layer: i.to_string(), device: name(d) });
        let output = LayerPlan { layer: "output".to_owned(), device: name(prepared.layers.output) };
        Self {
            version: VERSION,
            model: ModelIdentity::of(model),
            machine: machine_devices(machine),
            choices: choices.clone(),
            fits: pools.iter().all(|p| p.short == 0),
            devices: devices.collect(),
            splits: prepared.one.splits,
            copies: choices.copies,
            transfers: prepared.one.copies,
            bytes_per_token: prepared.one.copied.get() / u64::from(prepared.one.tokens.max(1)),
            prefill: graph(&prepared.full),
            links: links(machine, prepared),
            layers: layers.chain([output]).collect(),
            predicted: None,
            llama_cpp_flags: choices.llama_cpp_flags(),
            pools,
        }
    }

    /// Reads a plan. Errors: those of the file system, a file that is none.
    pub fn read(path: &Path) -> Result<Self, SavedError> {
        let io = |source| SavedError::Io { path: path.to_owned(), source };
        let format = |why: String| SavedError::Format { path: path.to_owned(), why };
        let length = std::fs::metadata(path).map_err(io)?.len();
        if length > MAX_FILE_BYTES {
            return Err(format(format!("{length} bytes exceed the limit of {MAX_FILE_BYTES}")));
        }
        let text = std::fs::read_to_string(path).map_err(io)?;
        let plan: Self = serde_json::from_str(&text).map_err(|e| format(e.to_string()))?;
        if plan.version != VERSION {
            return Err(format(format!("version {} is not supported; plan again", plan.version)));
        }
        Ok(plan)
    }

    /// Writes it. Errors: those of the file system.
    pub fn write(&self, path: &Path) -> Result<(), SavedError> {
        let text = self.json().map_err(|e| SavedError::Format { path: path.to_owned(), why: e.to_string() })?;
        std::fs::write(path, text).map_err(|source| SavedError::Io { path: path.to_owned(), source })
    }

    /// As text.
    pub fn json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// The settings that `run` carries the plan out with. Errors: the model or the machine is another than the plan's.
    pub fn settings(&self, model: &Model, machine: &Machine, placer: Placer) -> Result<Settings, SavedError> {
        self.check(model, machine)?;
        Ok(self.choices.settings(&model.params, machine, placer)?)
    }

    /// The devices of the machine that it is for; `None`: a driver that is not known.
    #[must_use]
    pub fn device_specs(&self) -> Option<Vec<DeviceSpec>> {
        let driver = |text: &str| match text.split_once(':') {
            None if text == "host" => Some(Driver::Host),
            None if text == "sim" => Some(Driver::Sim),
            Some(("cuda", n)) => n.parse().ok().map(|ordinal| Driver::Cuda { ordinal }),
            _ => None,
        };
        let spec = |d: &MachineDevice| {
            let (driver, memory) = (driver(&d.driver)?, d.memory.map(Bytes));
            Some(DeviceSpec { driver, name: Some(d.name.clone()), memory, chunk: None, align: None })
        };
        self.machine.iter().map(spec).collect()
    }

    /// Errors: a device takes other bytes than the plan says, so that its memory has other rules.
    pub fn check_prepared(&self, machine: &Machine, prepared: &Prepared) -> Result<(), SavedError> {
        let bytes = |need: [u64; 3]| need.map(|b| Bytes(b).to_string()).join(" + ");
        for ((id, need), planned) in prepared.devices.iter().zip(&self.devices) {
            let found = [need.weights, need.cache, need.compute].map(Bytes::get);
            let planned = [planned.weights, planned.kv, planned.compute];
            if found != planned {
                let what = format!("what {} takes (weights, KV cache, compute)", machine.device(id).name);
                return Err(SavedError::OtherMachine { what, planned: bytes(planned), found: bytes(found) });
            }
        }
        Ok(())
    }

    /// Errors: the model or the machine is another than the plan's.
    pub fn check(&self, model: &Model, machine: &Machine) -> Result<(), SavedError> {
        let found = ModelIdentity::of(model);
        let planned = &self.model;
        let parts = [
            ("architecture", planned.architecture.clone(), found.architecture),
            ("number of tensors", planned.tensors.to_string(), found.tensors.to_string()),
            ("size", planned.bytes.to_string(), found.bytes.to_string()),
            ("hash of tensors", planned.hash.clone(), found.hash),
        ];
        if let Some((what, planned, found)) = parts.into_iter().find(|(_, a, b)| a != b) {
            return Err(SavedError::OtherModel { what, planned, found });
        }
        let here = machine_devices(machine);
        let count = |n: usize| n.to_string();
        if here.len() != self.machine.len() {
            let what = "the number of devices".to_owned();
            let (planned, found) = (count(self.machine.len()), count(here.len()));
            return Err(SavedError::OtherMachine { what, planned, found });
        }
        match self.machine.iter().zip(&here).enumerate().find(|(_, (a, b))| a != b) {
            Some((i, (planned, found))) => Err(SavedError::OtherMachine {
                what: format!("device {i}"),
                planned: planned.to_string(),
                found: found.to_string(),
            }),
            None => Ok(()),
        }
    }
}

impl std::fmt::Display for MachineDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.memory {
            Some(bytes) => write!(f, "{} ({}, {})", self.name, self.driver, Bytes(bytes)),
            None => write!(f, "{} ({})", self.name, self.driver),
        }
    }
}

impl ModelIdentity {
    /// Of a model.
    #[must_use]
    pub fn of(model: &Model) -> Self {
        // FNV-1a: stable from build to build.
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut add = |bytes: &[u8]| {
            for &byte in bytes {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        let mut bytes = 0u64;
        for tensor in model.file.tensors() {
            add(tensor.name.as_bytes());
            add(&[0]);
            add(&tensor.type_number.to_le_bytes());
            tensor.ne.iter().for_each(|n| add(&n.to_le_bytes()));
            bytes = bytes.saturating_add(tensor.size.map_or(0, Bytes::get));
        }
        let tensors = model.file.tensors().len();
        Self { architecture: model.params.arch.to_string(), tensors, bytes, hash: format!("{hash:016x}") }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn machine_devices(machine: &Machine) -> Vec<MachineDevice> {
    let device = |(id, d): (_, &loadmaster_sched::Device)| MachineDevice {
        name: d.name.to_string(),
        driver: d.driver.to_string(),
        memory: machine.pools()[machine.compute_type(id).pool].capacity.map(Bytes::get),
    };
    machine.devices().iter().map(device).collect()
}

fn graph(summary: &GraphSummary) -> GraphPlan {
    let bytes = summary.copied.get();
    GraphPlan { tokens: summary.tokens, splits: summary.splits, transfers: summary.copies, bytes }
}

fn peak(peak: &Peak) -> PeakPlan {
    let alive = peak.alive.iter().map(|(tensor, bytes)| AlivePlan { tensor: tensor.clone(), bytes: bytes.get() });
    PeakPlan { node: peak.node.clone(), tokens: peak.tokens, bytes: peak.bytes().get(), alive: alive.collect() }
}

/// Links that either graph uses, in the order of the devices.
fn links(machine: &Machine, prepared: &Prepared) -> Vec<LinkPlan> {
    let (one, full) = (&prepared.one, &prepared.full);
    let ends: BTreeSet<_> = one.links.iter().chain(&full.links).map(|l| (l.from, l.to)).collect();
    let name = |d| machine.device(d).name.to_string();
    let link = |(from, to)| {
        let of = |graph: &GraphSummary| {
            let found = graph.links.iter().find(|l| (l.from, l.to) == (from, to));
            found.map_or((0, 0), |l| (l.copies, l.bytes.get()))
        };
        let ((transfers, bytes), (prefill_transfers, prefill_bytes)) = (of(one), of(full));
        let bytes_per_token = bytes / u64::from(one.tokens.max(1));
        LinkPlan { from: name(from), to: name(to), transfers, bytes_per_token, prefill_transfers, prefill_bytes }
    };
    ends.into_iter().map(link).collect()
}

/// Pools with what the devices take of them; every byte once in each pool that it is in.
fn pools(machine: &Machine, prepared: &Prepared, reserved: Bytes) -> Vec<PoolPlan> {
    let all = prepared.pools(machine);
    let pool = |(pool, &used): (&loadmaster_sched::machine::Pool, &Bytes)| {
        let capacity = pool.capacity.map(Bytes::get);
        let reserved = reserved.get();
        let short = capacity.map_or(0, |c| used.get().saturating_add(reserved).saturating_sub(c));
        PoolPlan { name: pool.name.to_string(), capacity, reserved, used: used.get(), short }
    };
    machine.pools().values().zip(all.values()).map(pool).collect()
}

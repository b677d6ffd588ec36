//! Plans as files: written, read, compared, and refused where the model or the machine is another.

mod error;
mod identity;
mod made;
mod parts;
mod sound;

pub use error::SavedError;
pub use parts::{
    AlivePlan, DevicePlan, GpuPlan, GraphPlan, LayerPlan, LinkPlan, MachineDevice, ModelIdentity, PeakPlan, Policy,
    PoolPlan, Predicted,
};

use super::Choices;
use crate::engine::{Model, Settings};
use crate::files::{ReadError, read_text};
use loadmaster_alloc::Placer;
use loadmaster_graph::Bytes;
use loadmaster_sched::{DeviceSpec, Driver, Machine};
use serde::{Deserialize, Serialize};
use std::path::Path;

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
    /// Whose rules placed tensors.
    #[serde(default)]
    pub policy: Policy,
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

impl SavedPlan {
    /// Reads a plan. Errors: those of the file system, a file that is none, one that contradicts itself.
    pub fn read(path: &Path) -> Result<Self, SavedError> {
        let io = |source| SavedError::Io { path: path.to_owned(), source };
        let format = |why: String| SavedError::Format { path: path.to_owned(), why };
        let text = read_text(path, MAX_FILE_BYTES).map_err(|error| match error {
            ReadError::Io(source) => io(source),
            too_long @ ReadError::TooLong { .. } => format(too_long.to_string()),
        })?;
        let plan: Self = serde_json::from_str(&text).map_err(|e| format(e.to_string()))?;
        if plan.version != VERSION {
            return Err(format(format!("version {} is not supported; plan again", plan.version)));
        }
        if let Some(why) = plan.contradiction() {
            return Err(format(format!("it contradicts itself: {why}; plan again")));
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
            let gpu = d.gpu.map(GpuPlan::target);
            Some(DeviceSpec { name: Some(d.name.clone()), memory, gpu, ..DeviceSpec::of(driver) })
        };
        self.machine.iter().map(spec).collect()
    }
}

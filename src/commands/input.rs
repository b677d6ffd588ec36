//! What several commands read: graph files, machines, policies.

use crate::config::Config;
use crate::plan::saved::Policy;
use anyhow::Context;
use clap::ValueEnum;
use loadmaster_alloc::{BestOptions, InPlaceTable, InPlaceTables, Placer, Reorder, UnusedInputs};
use loadmaster_graph::file::GraphFile;
use loadmaster_sched::{DeviceSpec, Machine};
use std::path::{Path, PathBuf};

/// Whose rules place tensors.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum PolicyArg {
    /// ggml's, to the byte: what llama.cpp will take.
    Ggml,
    /// Ours: never more than ggml's.
    #[default]
    Best,
}

impl PolicyArg {
    /// Which operations may write over which operands.
    #[must_use]
    pub fn in_place(self) -> InPlaceTables {
        match self {
            Self::Ggml => InPlaceTable::ggml().into(),
            Self::Best => InPlaceTable::loadmaster().into(),
        }
    }

    /// The placer that the policy stands for.
    #[must_use]
    pub fn placer(self) -> Placer {
        match self {
            Self::Ggml => Placer::Ggml,
            Self::Best => Placer::Best(BestOptions {
                in_place: self.in_place(),
                order: Reorder::WithinGroups,
                unused_inputs: UnusedInputs::Drop,
                ..BestOptions::default()
            }),
        }
    }

    /// Its name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ggml => "ggml",
            Self::Best => "best",
        }
    }
}

impl From<PolicyArg> for Policy {
    fn from(arg: PolicyArg) -> Self {
        match arg {
            PolicyArg::Ggml => Self::Ggml,
            PolicyArg::Best => Self::Best,
        }
    }
}

impl From<Policy> for PolicyArg {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Ggml => Self::Ggml,
            Policy::Best => Self::Best,
        }
    }
}

/// Which machine to plan for.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct MachineArgs {
    /// A machine file, as in configs/
    #[arg(long, value_name = "FILE", conflicts_with = "device")]
    pub machine: Option<PathBuf>,
    /// A device, highest priority first: cpu, sim:24GiB, sim:24GiB,chunk=256MiB, cuda:0; the host is always the last
    #[arg(long, value_name = "SPEC")]
    pub device: Vec<DeviceSpec>,
}

impl MachineArgs {
    /// The machine that was asked for, if any. Errors: an unreadable file, devices that contradict each other.
    pub fn machine(&self) -> anyhow::Result<Option<Machine>> {
        if let Some(path) = &self.machine {
            return Ok(Some(Config::read_path(path)?.machine));
        }
        if self.device.is_empty() {
            return Ok(None);
        }
        Ok(Some(Machine::from_specs(&self.device)?))
    }
}

/// Reads a graph file. Errors: with the path.
pub fn read_graph(path: &Path) -> anyhow::Result<GraphFile> {
    GraphFile::read_path(path).with_context(|| path.display().to_string())
}

//! The options of `loadmaster plan`, and what they mean.

use crate::commands::input::PolicyArg;
use crate::commands::run::Switch;
use crate::plan::Choices;
use crate::plan::fit::Purpose;
use clap::ValueEnum;
use loadmaster_graph::Bytes;
use loadmaster_models::hparams::HParams;
use loadmaster_sched::machine::{PoolKind, parse_size};
use loadmaster_sched::{DeviceKind, Machine};
use std::num::NonZeroU32;
use std::path::PathBuf;

/// Tell what a model takes on a machine, and where it fits best, from its header alone
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A GGUF file, or its header alone; or a plan that was saved, to show it again; none: the model in the program
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Several models on the same devices, such as a draft and its target; each with the options given
    #[arg(long, value_delimiter = ',', value_name = "A,B", conflicts_with_all = ["model", "engine"])]
    pub models: Vec<PathBuf>,
    /// A machine file, as in configs/
    #[arg(long, value_name = "FILE", conflicts_with = "device")]
    pub machine: Option<PathBuf>,
    /// A device, highest priority first: rtx4090 and other names, sim:24GiB, cuda:0, cpu:64GiB; the host is the last
    #[arg(long, value_name = "SPEC")]
    pub device: Vec<String>,
    /// Tokens of context, all sequences together [default: the model's, at most 4096]
    #[arg(long, value_name = "N")]
    pub ctx: Option<NonZeroU32>,
    /// Most tokens given at once
    #[arg(long, value_name = "N", default_value = "2048")]
    pub batch: NonZeroU32,
    /// Most tokens of one run of a graph
    #[arg(long, value_name = "N", default_value = "512")]
    pub ubatch: NonZeroU32,
    /// Sequences, each with its share of the context
    #[arg(long, value_name = "N", default_value = "1")]
    pub parallel: NonZeroU32,
    /// Attention as one operation
    #[arg(long, value_enum, value_name = "on|off", default_value_t)]
    pub flash_attn: Switch,
    /// Type of the KV cache: f16, f32, bf16, q8_0, … (quantized: with --flash-attn on)
    #[arg(long, value_name = "T", default_value = "f16")]
    pub kv_type: String,
    /// Pipeline copies of every input, or `auto`: as many as make a prompt faster, and fit
    #[arg(long, value_name = "N|auto", default_value = "1", value_parser = depth)]
    pub copies: Depth,
    /// Layers on GPUs, counted from the last; the output counts as one
    #[arg(long, visible_alias = "ngl", value_name = "N")]
    pub n_gpu_layers: Option<u32>,
    /// Shares of the GPUs [default: their memory]
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub tensor_split: Option<Vec<f32>>,
    /// Put the weights whose names match on a device; the first that matches counts
    #[arg(long, value_name = "REGEX=DEVICE")]
    pub override_tensor: Vec<String>,
    /// Keep the KV cache on the host
    #[arg(long)]
    pub no_kv_offload: bool,
    /// Bytes kept free in every pool
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size)]
    pub reserve: Bytes,
    /// Choose the placement; the default where no option says where anything goes
    #[arg(long)]
    pub fit: bool,
    /// What a chosen placement is to be best for
    #[arg(long = "for", value_enum, value_name = "PURPOSE", default_value_t)]
    pub purpose: PurposeArg,
    /// Whose memory is told
    #[arg(long, value_enum, default_value_t)]
    pub engine: EngineArg,
    /// Whose rules place tensors
    #[arg(long, value_enum, default_value_t)]
    pub policy: PolicyArg,
    /// As text or as JSON
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Write the plan to a file, for `run --plan` and `diff`
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Do not look for the longest context
    #[arg(long)]
    pub no_longest: bool,
}

/// Pipeline copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Depth {
    /// So many.
    Exactly(NonZeroU32),
    /// As many as help.
    Auto,
}

/// What a placement is best for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum PurposeArg {
    /// Prompts
    Prefill,
    /// One token after another
    #[default]
    Decode,
    /// Room in the fullest device
    Memory,
}

/// Whose memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum EngineArg {
    /// What `loadmaster run` takes
    #[default]
    Loadmaster,
    /// What llama.cpp takes
    #[value(name = "llama.cpp")]
    LlamaCpp,
}

/// How it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Format {
    /// Tables
    #[default]
    Text,
    /// One object
    Json,
}

fn depth(text: &str) -> Result<Depth, String> {
    if text == "auto" {
        return Ok(Depth::Auto);
    }
    text.parse().map(Depth::Exactly).map_err(|_| format!("`{text}` is no count; write 1 or more, or auto"))
}

fn size(text: &str) -> Result<Bytes, String> {
    if text == "0" {
        return Ok(Bytes::ZERO);
    }
    parse_size(text).map_err(|e| e.to_string())
}

impl From<PurposeArg> for Purpose {
    fn from(arg: PurposeArg) -> Self {
        match arg {
            PurposeArg::Prefill => Self::Prefill,
            PurposeArg::Decode => Self::Decode,
            PurposeArg::Memory => Self::Memory,
        }
    }
}

impl Args {
    /// What was chosen.
    #[must_use]
    pub fn choices(&self, params: &HParams) -> Choices {
        Choices {
            ctx: self.ctx.map_or(crate::engine::Settings::new(params).context, NonZeroU32::get),
            batch: self.batch.get(),
            ubatch: self.ubatch.get(),
            parallel: self.parallel.get(),
            flash_attn: self.flash_attn == Switch::On,
            kv_type: self.kv_type.clone(),
            copies: match self.copies {
                Depth::Exactly(n) => n.get(),
                Depth::Auto => 1,
            },
            n_gpu_layers: self.n_gpu_layers,
            tensor_split: self.tensor_split.clone(),
            override_tensor: self.override_tensor.clone(),
            kv_offload: !self.no_kv_offload,
        }
    }

    /// Whether the placement is to be chosen: no option says where anything goes, and there is a choice.
    #[must_use]
    pub fn chooses(&self, machine: &Machine) -> bool {
        let placed = self.n_gpu_layers.is_some()
            || self.tensor_split.is_some()
            || !self.override_tensor.is_empty()
            || self.no_kv_offload;
        let has_gpus = machine.devices().values().any(|d| d.kind == DeviceKind::Gpu);
        has_gpus && (self.fit || !placed) && machine.pools().values().any(|p| p.kind != PoolKind::Host)
    }
}

//! The options, and what they mean.

use crate::commands::input::{MachineArgs, PolicyArg};
use crate::engine::{EngineError, Model, Settings};
use crate::placement::{CacheHome, GpuLayers, Override};
use crate::plan::saved::{SavedError, SavedPlan};
use clap::ValueEnum;
use loadmaster_graph::{Bytes, DType};
use loadmaster_models::families::Attention;
use loadmaster_models::hparams::HParams;
use loadmaster_models::sampling::SamplingConfig;
use loadmaster_sched::{DeviceSpec, Driver, Machine};
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

/// Memory of each of the two virtual GPUs that run the embedded model if nothing else is asked for.
const DEFAULT_SIM: Bytes = Bytes::mib(256);

/// Load a model, place it over the devices, and generate text
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A GGUF file (any file of a split model); none: the small model in the program
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// The text to continue
    #[arg(short, long, conflicts_with = "tokens")]
    pub prompt: Option<String>,
    /// The tokens to continue, in place of a text
    #[arg(long, value_delimiter = ',', value_name = "1,2,3")]
    pub tokens: Vec<u32>,
    /// Tokens fed one at a time after the prompt, whatever the model would say
    #[arg(long, value_delimiter = ',', value_name = "1,2,3")]
    pub force: Vec<u32>,
    /// Talk: the prompt, then every line of standard input, is a message
    #[arg(long, conflicts_with_all = ["tokens", "force", "parallel"])]
    pub chat: bool,
    /// Most tokens to generate [default: 128, or 0 with --force]
    #[arg(short, value_name = "N")]
    pub n: Option<u32>,
    #[allow(missing_docs)]
    #[command(flatten)]
    pub devices: MachineArgs,
    /// Run as a plan says that `loadmaster plan -o FILE` saved; refused if the model or the machine is another
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "n_gpu_layers", "tensor_split", "override_tensor", "ctx", "batch", "ubatch", "parallel", "flash_attn",
        "kv_type", "no_kv_offload", "copies", "policy",
    ])]
    pub plan: Option<PathBuf>,
    /// Layers on GPUs, counted from the last; the output counts as one [default: all]
    #[arg(long, visible_alias = "ngl", value_name = "N")]
    pub n_gpu_layers: Option<u32>,
    /// Shares of the GPUs [default: their memory]
    #[arg(long, value_delimiter = ',', value_name = "A,B")]
    pub tensor_split: Option<Vec<f32>>,
    /// Put the weights whose names match on a device; the first that matches counts
    #[arg(long, value_name = "REGEX=DEVICE")]
    pub override_tensor: Vec<String>,
    /// Tokens of context, all sequences together [default: the model's, at most 4096]
    #[arg(long, value_name = "N")]
    pub ctx: Option<NonZeroU32>,
    /// Most tokens given at once
    #[arg(long, value_name = "N", default_value = "2048")]
    pub batch: NonZeroU32,
    /// Most tokens of one run of a graph
    #[arg(long, value_name = "N", default_value = "512")]
    pub ubatch: NonZeroU32,
    /// Sequences that continue the prompt side by side, each with its share of the context
    #[arg(long, value_name = "N", default_value = "1")]
    pub parallel: NonZeroU32,
    /// Attention as one operation
    #[arg(long, value_enum, value_name = "on|off", default_value_t)]
    pub flash_attn: Switch,
    /// Type of the KV cache: f16, f32, bf16, q8_0, … (quantized: with --flash-attn on)
    #[arg(long, value_name = "T", default_value = "f16", value_parser = cache_type)]
    pub kv_type: DType,
    /// Keep the KV cache on the host
    #[arg(long)]
    pub no_kv_offload: bool,
    /// Pipeline copies of every input: so many micro-batches of a prompt overlap
    #[arg(long, value_name = "N", default_value = "1")]
    pub copies: NonZeroU32,
    /// Whose rules place tensors
    #[arg(long, value_enum, default_value_t)]
    pub policy: PolicyArg,
    /// Temperature; 0: always the most probable token
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub temp: f32,
    /// Only this many of the most probable tokens are drawn from (0: all)
    #[arg(long, value_name = "N", default_value_t = 40)]
    pub top_k: u32,
    /// Only the most probable tokens are drawn from that reach this probability together (1: all)
    #[arg(long, value_name = "P", default_value_t = 0.95)]
    pub top_p: f32,
    /// Tokens below this share of the largest probability are not drawn (0: all are)
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    pub min_p: f32,
    /// Makes recent tokens less probable (1: not)
    #[arg(long, value_name = "X", default_value_t = 1.0)]
    pub repeat_penalty: f32,
    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Write a line of JSON for each step: the largest logits, and all of them where the vocabulary is small
    #[arg(long, value_name = "FILE")]
    pub logits_out: Option<PathBuf>,
    /// What is told while it runs, and where.
    #[command(flatten)]
    pub telemetry: crate::telemetry::Options,
    /// Threads of the kernels [default: all cores]
    #[arg(long, value_name = "N")]
    pub threads: Option<NonZeroUsize>,
    /// Print one JSON object at the end, and nothing else
    #[arg(long)]
    pub json: bool,
}

/// On or off.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Switch {
    /// It is.
    On,
    /// It is not.
    #[default]
    Off,
}

fn cache_type(name: &str) -> Result<DType, String> {
    DType::from_name(&name.to_lowercase()).ok_or_else(|| format!("`{name}` is no type; write f16, f32, bf16 or q8_0"))
}

impl Args {
    /// The plan, if one is given. Errors: an unreadable file, one that is no plan.
    pub fn saved_plan(&self) -> Result<Option<SavedPlan>, SavedError> {
        self.plan.as_deref().map(SavedPlan::read).transpose()
    }

    /// The machine: what was asked for, else the plan's, else two virtual GPUs for the embedded model and the CPU alone
    /// for others.
    pub fn machine(&self, plan: Option<&SavedPlan>) -> anyhow::Result<Machine> {
        if let Some(machine) = self.devices.machine()? {
            return Ok(machine);
        }
        if let Some(specs) = plan.and_then(SavedPlan::device_specs) {
            return Ok(Machine::from_specs(&specs)?);
        }
        let sim = DeviceSpec { memory: Some(DEFAULT_SIM), ..DeviceSpec::of(Driver::Sim) };
        let gpus = if self.model.is_none() { vec![sim.clone(), sim] } else { Vec::new() };
        Ok(Machine::from_specs(&gpus)?)
    }

    /// How the model is placed and run: as the plan says, or else by the options. Errors: a plan for another model or
    /// machine, options that make no sense.
    pub fn settings(&self, model: &Model, machine: &Machine, plan: Option<&SavedPlan>) -> anyhow::Result<Settings> {
        match plan {
            Some(plan) => Ok(plan.settings(model, machine, PolicyArg::from(plan.policy).placer())?),
            None => self.chosen_settings(&model.params, machine),
        }
    }

    fn chosen_settings(&self, params: &HParams, machine: &Machine) -> anyhow::Result<Settings> {
        let usual = Settings::new(params);
        let overrides = self.override_tensor.iter().map(|text| Override::parse(text, machine));
        let settings = Settings {
            context: self.ctx.map_or(usual.context, NonZeroU32::get),
            batch: self.batch.get(),
            micro_batch: self.ubatch.get(),
            sequences: self.parallel.get(),
            attention: if self.flash_attn == Switch::On { Attention::Flash } else { Attention::Plain },
            key_type: self.kv_type,
            value_type: self.kv_type,
            cache: if self.no_kv_offload { CacheHome::Host } else { CacheHome::WithLayer },
            gpu_layers: self.n_gpu_layers.map_or(GpuLayers::All, GpuLayers::Count),
            tensor_split: self.tensor_split.clone(),
            overrides: overrides.collect::<Result<_, _>>()?,
            copies: self.copies,
            placer: self.policy.placer(),
            ..usual
        };
        if let Some(long) = self.ctx.filter(|c| c.get() > loadmaster_models::hparams::MAX_CONTEXT) {
            return Err(EngineError::Settings(format!("--ctx {long} is too long")).into());
        }
        Ok(settings)
    }

    /// How tokens are chosen.
    pub fn sampling(&self) -> anyhow::Result<SamplingConfig> {
        let config = SamplingConfig {
            temperature: self.temp,
            top_k: Some(self.top_k).filter(|&k| k > 0),
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            seed: self.seed,
            ..SamplingConfig::greedy()
        };
        // The sampler checks the ranges.
        loadmaster_models::sampling::Sampler::new(config)?;
        Ok(config)
    }

    /// Threads of the kernels.
    pub fn threads(&self) -> NonZeroUsize {
        self.threads.or_else(|| std::thread::available_parallelism().ok()).unwrap_or(NonZeroUsize::MIN)
    }
}

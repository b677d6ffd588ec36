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
use std::path::{Path, PathBuf};

/// Options that llama.cpp's own rules leave nothing to do, and why.
const NOT_OF_LLAMA_CPP: [(&str, &str); 5] = [
    ("--fit", "chooses a placement for `run`, but llama.cpp has rules of its own"),
    ("--for", "chooses a placement for `run`, but llama.cpp has rules of its own"),
    ("--copies", "is for `run`, but llama.cpp decides itself whether it pipelines"),
    ("--policy", "is for `run`, but llama.cpp's tensors are placed by ggml's rules"),
    ("--output", "writes a plan for `run` (--format json prints what is told here)"),
];

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
    /// A device, highest priority first: rtx4090 and other names, sim:24GiB, cuda:0, cpu:64GiB; the host comes
    /// last. Sizes are binary however they are written: 24G, 24GB and 24GiB are one
    #[arg(long, value_name = "SPEC")]
    pub device: Vec<String>,
    /// Tokens of context, all sequences together [default: the model's, at most 4096]
    #[arg(long, value_name = "N")]
    pub ctx: Option<NonZeroU32>,
    /// Most tokens given at once [default: 2048]
    #[arg(long, value_name = "N")]
    pub batch: Option<NonZeroU32>,
    /// Most tokens of one run of a graph [default: 512]
    #[arg(long, value_name = "N")]
    pub ubatch: Option<NonZeroU32>,
    /// Sequences, each with its share of the context [default: 1]
    #[arg(long, value_name = "N")]
    pub parallel: Option<NonZeroU32>,
    /// Attention as one operation [default: off]
    #[arg(long, value_enum, value_name = "on|off")]
    pub flash_attn: Option<Switch>,
    /// Type of the KV cache: f16, f32, bf16, q8_0, … (quantized: with --flash-attn on) [default: f16]
    #[arg(long, value_name = "T")]
    pub kv_type: Option<String>,
    /// Pipeline copies of every input, or `auto`: as many as make a prompt faster, and fit [default: 1]
    #[arg(long, value_name = "N|auto", value_parser = depth)]
    pub copies: Option<Depth>,
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
    /// What is kept free in every pool, such as 500M, for what no plan knows: contexts and kernels of a driver
    /// [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub reserve: Option<Bytes>,
    /// Choose the placement; the default where no option says where anything goes
    #[arg(long, conflicts_with_all = ["n_gpu_layers", "tensor_split", "override_tensor"])]
    pub fit: bool,
    /// What a chosen placement is to be best for [default: decode]
    #[arg(long = "for", value_enum, value_name = "PURPOSE")]
    pub purpose: Option<PurposeArg>,
    /// Whose memory is told
    #[arg(long, value_enum, default_value_t)]
    pub engine: EngineArg,
    /// Whose rules place tensors [default: best]
    #[arg(long, value_enum)]
    pub policy: Option<PolicyArg>,
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
        let number = |given: Option<NonZeroU32>, usual: u32| given.map_or(usual, NonZeroU32::get);
        let usual = Choices::of_context(number(self.ctx, crate::engine::Settings::new(params).context));
        Choices {
            batch: number(self.batch, usual.batch),
            ubatch: number(self.ubatch, usual.ubatch),
            parallel: number(self.parallel, usual.parallel),
            flash_attn: self.flash_attn == Some(Switch::On),
            kv_type: self.kv_type.clone().unwrap_or(usual.kv_type),
            copies: match self.copies {
                Some(Depth::Exactly(n)) => n.get(),
                Some(Depth::Auto) | None => 1,
            },
            n_gpu_layers: self.n_gpu_layers,
            tensor_split: self.tensor_split.clone(),
            override_tensor: self.override_tensor.clone(),
            kv_offload: !self.no_kv_offload,
            ..usual
        }
    }

    /// What a chosen placement is to be best for.
    #[must_use]
    pub fn purpose(&self) -> Purpose {
        self.purpose.unwrap_or_default().into()
    }

    /// Whose rules place tensors.
    #[must_use]
    pub fn policy(&self) -> PolicyArg {
        self.policy.unwrap_or_default()
    }

    /// What is kept free.
    #[must_use]
    pub fn reserve(&self) -> Bytes {
        self.reserve.unwrap_or_default()
    }

    /// Options that say where something goes, of those that were given.
    fn placing(&self) -> Vec<&'static str> {
        let all = ["--n-gpu-layers", "--tensor-split", "--override-tensor", "--no-kv-offload"];
        self.given().into_iter().filter(|name| all.contains(name)).collect()
    }

    /// Whether the placement is to be chosen: no option says where anything goes, and there is a choice.
    #[must_use]
    pub fn chooses(&self, machine: &Machine) -> bool {
        let has_gpus = machine.devices().values().any(|d| d.kind == DeviceKind::Gpu);
        let may = self.fit || self.placing().is_empty();
        has_gpus && may && machine.pools().values().any(|p| p.kind != PoolKind::Host)
    }

    /// The options that were given, but for how the answer is written.
    fn given(&self) -> Vec<&'static str> {
        let all = [
            ("--models", !self.models.is_empty()),
            ("--machine", self.machine.is_some()),
            ("--device", !self.device.is_empty()),
            ("--ctx", self.ctx.is_some()),
            ("--batch", self.batch.is_some()),
            ("--ubatch", self.ubatch.is_some()),
            ("--parallel", self.parallel.is_some()),
            ("--flash-attn", self.flash_attn.is_some()),
            ("--kv-type", self.kv_type.is_some()),
            ("--copies", self.copies.is_some()),
            ("--n-gpu-layers", self.n_gpu_layers.is_some()),
            ("--tensor-split", self.tensor_split.is_some()),
            ("--override-tensor", !self.override_tensor.is_empty()),
            ("--no-kv-offload", self.no_kv_offload),
            ("--reserve", self.reserve.is_some()),
            ("--fit", self.fit),
            ("--for", self.purpose.is_some()),
            ("--engine", self.engine != EngineArg::default()),
            ("--policy", self.policy.is_some()),
            ("--output", self.output.is_some()),
        ];
        all.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect()
    }

    /// Errors: an option that would change nothing. Nothing that is asked for is passed over.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.engine == EngineArg::LlamaCpp {
            let given = self.given();
            if let Some((option, why)) = NOT_OF_LLAMA_CPP.iter().find(|(option, _)| given.contains(option)) {
                anyhow::bail!("{option} {why}: leave it out with --engine llama.cpp");
            }
        }
        let placing = self.placing();
        if let (Some(_), false, Some(option)) = (self.purpose, self.fit, placing.first()) {
            anyhow::bail!("--for says what a chosen placement is to be best for, but {option} says where things go");
        }
        Ok(())
    }

    /// Errors: any option, since a plan that was made is shown as it is.
    pub(super) fn check_nothing_asked(&self, plan: &Path) -> anyhow::Result<()> {
        let Some(option) = self.given().first().copied() else { return Ok(()) };
        anyhow::bail!(
            "{} is a plan that was made, which {option} does not change: give the model to plan again",
            plan.display()
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use clap::{CommandFactory, Parser};

    #[derive(Parser, Debug)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn every_option_but_those_of_writing_counts_as_given() {
        let writing = ["format", "no-longest", "help"];
        let usual = [("engine", "llama.cpp"), ("for", "memory"), ("flash-attn", "off"), ("policy", "ggml")];
        let command = Line::command();
        let mut options: Vec<&clap::Arg> = command.get_arguments().filter(|a| a.get_long().is_some()).collect();
        options.retain(|a| a.get_long().is_some_and(|long| !writing.contains(&long)));
        assert!(options.len() >= 20, "{}", options.len());
        for option in options {
            let long = option.get_long().unwrap();
            let value = usual.iter().find(|(name, _)| *name == long).map_or("1", |(_, value)| value);
            let word =
                if option.get_action().takes_values() { format!("--{long}={value}") } else { format!("--{long}") };
            let args = Line::try_parse_from(["plan".to_owned(), word]).unwrap().args;
            assert_eq!(args.given(), [format!("--{long}")]);
        }
    }
}

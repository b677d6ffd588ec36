//! What somebody chose: as text, so that it can be saved, shown as llama.cpp's flags, and carried out.

use super::llama_cpp::LlamaCppOptions;
use crate::engine::Settings;
use crate::engine::settings::{DEFAULT_BATCH, DEFAULT_MICRO_BATCH};
use crate::placement::{CacheHome, GpuLayers, Override, OverrideError};
use loadmaster_alloc::Placer;
use loadmaster_graph::DType;
use loadmaster_models::families::Attention;
use loadmaster_models::hparams::HParams;
use loadmaster_sched::Machine;
use serde::{Deserialize, Serialize};
use std::num::NonZeroU32;

/// Most pipeline copies: more than any number of devices that a graph is cut over has use for.
pub const MAX_COPIES: u32 = 64;
/// Type of the KV cache, unless another is asked for.
pub const DEFAULT_KV_TYPE: &str = "f16";
/// Most placements by name: each is a compiled pattern.
pub const MAX_OVERRIDES: usize = 256;

/// How a model is placed and run, as it is written down.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Choices {
    /// Tokens of context, all sequences together.
    pub ctx: u32,
    /// Most tokens given at once.
    pub batch: u32,
    /// Most tokens of one run of a graph.
    pub ubatch: u32,
    /// Sequences.
    pub parallel: u32,
    /// Whether attention is one operation.
    pub flash_attn: bool,
    /// Type of the KV cache.
    pub kv_type: String,
    /// Pipeline copies.
    pub copies: u32,
    /// Layers on GPUs; none: all.
    pub n_gpu_layers: Option<u32>,
    /// Shares of the GPUs; none: by memory.
    pub tensor_split: Option<Vec<f32>>,
    /// Weights by name.
    pub override_tensor: Vec<String>,
    /// Whether the KV cache is with its layers.
    pub kv_offload: bool,
}

/// What is wrong with choices.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChoicesError {
    /// A placement by name.
    #[error(transparent)]
    Override(#[from] OverrideError),
    /// No such type.
    #[error("`{name}` is no type of a KV cache; write f16, f32, bf16 or q8_0")]
    Type {
        /// The name.
        name: String,
    },
    /// More placements by name than may be.
    #[error("{found} placements by name are given, the limit is {MAX_OVERRIDES}")]
    Overrides {
        /// How many.
        found: usize,
    },
    /// A count that must not be 0, or is too large.
    #[error("{what} is {found}: it must be from 1 to {limit}")]
    Count {
        /// What was counted.
        what: &'static str,
        /// The number.
        found: u32,
        /// The largest allowed.
        limit: u32,
    },
}

impl Choices {
    /// All as usual, with a context of so many tokens: one sequence, the KV cache in 16 bits, nothing placed by hand.
    #[must_use]
    pub fn of_context(ctx: u32) -> Self {
        Self {
            ctx,
            batch: DEFAULT_BATCH,
            ubatch: DEFAULT_MICRO_BATCH,
            parallel: 1,
            flash_attn: false,
            kv_type: DEFAULT_KV_TYPE.to_owned(),
            copies: 1,
            n_gpu_layers: None,
            tensor_split: None,
            override_tensor: Vec::new(),
            kv_offload: true,
        }
    }

    /// Errors: a number that makes no sense.
    pub fn check(&self) -> Result<(), ChoicesError> {
        let found = self.override_tensor.len();
        if found > MAX_OVERRIDES {
            return Err(ChoicesError::Overrides { found });
        }
        let context = loadmaster_models::hparams::MAX_CONTEXT;
        let counts = [
            ("the context", self.ctx, context),
            ("the batch", self.batch, u32::MAX),
            ("the micro-batch", self.ubatch, u32::MAX),
            ("the number of sequences", self.parallel, u32::MAX),
            ("the number of copies", self.copies, MAX_COPIES),
        ];
        match counts.into_iter().find(|&(_, n, limit)| n == 0 || n > limit) {
            Some((what, found, limit)) => Err(ChoicesError::Count { what, found, limit }),
            None => Ok(()),
        }
    }

    fn kv_dtype(&self) -> Result<DType, ChoicesError> {
        DType::from_name(&self.kv_type.to_lowercase()).ok_or_else(|| ChoicesError::Type { name: self.kv_type.clone() })
    }

    pub(super) fn overrides(&self, machine: &Machine) -> Result<Vec<Override>, OverrideError> {
        self.override_tensor.iter().map(|text| Override::parse(text, machine)).collect()
    }

    fn gpu_layers(&self) -> GpuLayers {
        self.n_gpu_layers.map_or(GpuLayers::All, GpuLayers::Count)
    }

    fn attention(&self) -> Attention {
        if self.flash_attn { Attention::Flash } else { Attention::Plain }
    }

    fn cache(&self) -> CacheHome {
        if self.kv_offload { CacheHome::WithLayer } else { CacheHome::Host }
    }

    /// For our engine.
    pub fn settings(&self, params: &HParams, machine: &Machine, placer: Placer) -> Result<Settings, ChoicesError> {
        self.check()?;
        let kv_type = self.kv_dtype()?;
        Ok(Settings {
            context: self.ctx,
            batch: self.batch,
            micro_batch: self.ubatch,
            sequences: self.parallel,
            attention: self.attention(),
            key_type: kv_type,
            value_type: kv_type,
            cache: self.cache(),
            gpu_layers: self.gpu_layers(),
            tensor_split: self.tensor_split.clone(),
            overrides: self.overrides(machine)?,
            copies: NonZeroU32::new(self.copies).unwrap_or(NonZeroU32::MIN),
            placer,
            ..Settings::new(params)
        })
    }

    /// For llama.cpp.
    pub fn llama_cpp(&self, machine: &Machine) -> Result<LlamaCppOptions, ChoicesError> {
        self.check()?;
        let kv_type = self.kv_dtype()?;
        Ok(LlamaCppOptions {
            gpu_layers: self.gpu_layers(),
            tensor_split: self.tensor_split.clone().unwrap_or_default(),
            overrides: self.overrides(machine)?,
            context: self.ctx,
            batch: self.batch,
            micro_batch: self.ubatch,
            sequences: self.parallel,
            attention: self.attention(),
            cache: self.cache(),
            key_type: kv_type,
            value_type: kv_type,
        })
    }

    /// The same for llama.cpp's command line. Patterns are quoted for a shell.
    #[must_use]
    pub fn llama_cpp_flags(&self) -> String {
        let mut flags = vec![format!("-c {} -b {} -ub {} -np {}", self.ctx, self.batch, self.ubatch, self.parallel)];
        flags.push(format!("-ngl {}", self.n_gpu_layers.map_or("all".to_owned(), |n| n.to_string())));
        if let Some(split) = &self.tensor_split {
            let shares: Vec<String> = split.iter().map(ToString::to_string).collect();
            flags.push(format!("-ts {}", shares.join(",")));
        }
        flags.extend(self.override_tensor.iter().map(|o| format!("-ot '{}'", o.replace('\'', "'\\''"))));
        flags.push(format!("-fa {}", if self.flash_attn { "on" } else { "off" }));
        flags.push(format!("-ctk {0} -ctv {0}", self.kv_type));
        if !self.kv_offload {
            flags.push("-nkvo".to_owned());
        }
        flags.join(" ")
    }
}

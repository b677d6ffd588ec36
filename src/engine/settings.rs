//! How a model is placed and run.

use crate::placement::{CacheHome, GpuLayers, Override, Repack};
use loadmaster_alloc::{InPlaceTable, Placer, place::BestOptions};
use loadmaster_graph::DType;
use loadmaster_models::families::{Attention, CacheRequest, SlidingCells};
use loadmaster_models::hparams::HParams;
use loadmaster_models::kv::Sharing;
use loadmaster_sched::AssignOptions;
use loadmaster_sched::exec::Outputs;
use std::num::NonZeroU32;

/// Longest context that is taken unasked.
pub const DEFAULT_CONTEXT: u32 = 4096;
/// Most tokens of a batch, unless asked for.
pub const DEFAULT_BATCH: u32 = 2048;
/// Most tokens of a micro-batch, unless asked for.
pub const DEFAULT_MICRO_BATCH: u32 = 512;

/// What memory is reserved for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReserveFor {
    /// All that runs may need.
    Runs,
    /// A full micro-batch, with nothing fixed to a device: what llama.cpp counts where it measures without allocating,
    /// as before it fits a model to devices.
    Measured,
}

/// How a model is placed and run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Tokens of all sequences together.
    pub context: u32,
    /// Most tokens that are given at once.
    pub batch: u32,
    /// Most tokens of one run of a graph.
    pub micro_batch: u32,
    /// Sequences, each with cells of its own.
    pub sequences: u32,
    /// How attention is computed.
    pub attention: Attention,
    /// Type of the cached keys.
    pub key_type: DType,
    /// Type of the cached values.
    pub value_type: DType,
    /// Cells of layers with a sliding window.
    pub sliding: SlidingCells,
    /// Where the KV cache is.
    pub cache: CacheHome,
    /// Layers on GPUs.
    pub gpu_layers: GpuLayers,
    /// Shares of the GPUs; `None`: their memory.
    pub tensor_split: Option<Vec<f32>>,
    /// Weights by name.
    pub overrides: Vec<Override>,
    /// Whether host memory for re-laid out weights is counted.
    pub repack: Repack,
    /// Pipeline copies of every input.
    pub copies: NonZeroU32,
    /// How devices are chosen.
    pub assign: AssignOptions,
    /// How lifetimes become offsets.
    pub placer: Placer,
    /// What memory is reserved for.
    pub reserve: ReserveFor,
}

impl Settings {
    /// The usual settings for a model: all layers on GPUs, up to 4,096 tokens of context, one sequence, F16 cache.
    #[must_use]
    pub fn new(params: &HParams) -> Self {
        Self {
            context: params.trained_context.min(DEFAULT_CONTEXT),
            batch: DEFAULT_BATCH,
            micro_batch: DEFAULT_MICRO_BATCH,
            sequences: 1,
            attention: Attention::Plain,
            key_type: DType::F16,
            value_type: DType::F16,
            sliding: SlidingCells::Full,
            cache: CacheHome::WithLayer,
            gpu_layers: GpuLayers::All,
            tensor_split: None,
            overrides: Vec::new(),
            repack: Repack::Never,
            copies: NonZeroU32::MIN,
            assign: AssignOptions::default(),
            placer: Placer::Best(BestOptions { in_place: InPlaceTable::loadmaster().into(), ..BestOptions::default() }),
            reserve: ReserveFor::Runs,
        }
    }

    /// Tokens of a micro-batch: no more than a batch or a sequence has.
    #[must_use]
    pub fn largest_micro_batch(&self) -> u32 {
        self.micro_batch.min(self.batch).min(self.context).max(1)
    }

    /// Tokens of a step in which every sequence takes one.
    #[must_use]
    pub fn decode_tokens(&self) -> u32 {
        self.sequences.clamp(1, self.largest_micro_batch())
    }

    /// What becomes of logits: where runs overlap, they are fetched to host memory.
    #[must_use]
    pub fn outputs(&self) -> Outputs {
        if self.copies.get() > 1 { Outputs::Fetched } else { Outputs::InPlace }
    }

    /// What the caches are to hold.
    #[must_use]
    pub fn cache_request(&self) -> CacheRequest {
        CacheRequest {
            context: self.context,
            sequences: self.sequences,
            sharing: Sharing::PerSequence,
            micro_batch: self.largest_micro_batch(),
            sliding: self.sliding,
            key_type: self.key_type,
            value_type: self.value_type,
        }
    }
}

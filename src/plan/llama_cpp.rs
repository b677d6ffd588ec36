//! What llama.cpp takes: its placement, its kinds of memory, its reserve, its allocator.

use crate::engine::placed::{Placed, REPACKED_MEMORY};
use crate::engine::{EngineError, Model, Prepared, ReserveFor, Settings, prepare};
use crate::placement::{CacheHome, GpuLayers, LayerDevices, Override, Repack};
use loadmaster_alloc::Placer;
use loadmaster_graph::{BufferTypeId, Bytes, DType};
use loadmaster_models::families::{Attention, SlidingCells};
use loadmaster_models::gguf::Gguf;
use loadmaster_sched::machine::MachineError;
use loadmaster_sched::{DeviceSet, Machine};
use std::num::NonZeroU32;

/// Devices that llama.cpp's scheduler has room for, the host among them.
const MOST_DEVICES: usize = 16;
/// Pipeline copies that llama.cpp makes where it pipelines.
const PIPELINE_COPIES: u32 = 4;

/// llama.cpp's options, as far as they move bytes.
#[derive(Clone, Debug)]
pub struct LlamaCppOptions {
    /// `-ngl`.
    pub gpu_layers: GpuLayers,
    /// `-ts`: shares by GPU; empty: by free memory.
    pub tensor_split: Vec<f32>,
    /// `-ot`.
    pub overrides: Vec<Override>,
    /// `-c`.
    pub context: u32,
    /// `-b`.
    pub batch: u32,
    /// `-ub`.
    pub micro_batch: u32,
    /// `-np`.
    pub sequences: u32,
    /// `-fa`.
    pub attention: Attention,
    /// `-nkvo` turned it off.
    pub cache: CacheHome,
    /// `-ctk`.
    pub key_type: DType,
    /// `-ctv`.
    pub value_type: DType,
}

/// Bytes of one kind of memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemoryUse {
    /// Its name.
    pub name: String,
    /// Weights.
    pub weights: Bytes,
    /// KV cache.
    pub kv: Bytes,
    /// Compute buffers.
    pub compute: Bytes,
    /// What no placement of the tensors in compute buffers could be below.
    pub compute_bound: Bytes,
}

/// What llama.cpp takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prediction {
    /// By kind of memory: the devices in order, then memory for re-laid out weights if any is used.
    pub memory: Vec<MemoryUse>,
    /// Pipeline copies.
    pub copies: u32,
    /// Splits of the graph of a full micro-batch.
    pub splits_prefill: u32,
    /// Splits of the graph of one token.
    pub splits_decode: u32,
    /// The device of each layer.
    pub layers: LayerDevices,
}

/// Why there is no prediction.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PredictError {
    /// The model is not understood, or cannot be planned.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The machine contradicts itself.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// More shares than GPUs.
    #[error("tensor split has {found} shares, but there are {gpus} GPUs")]
    Shares {
        /// Shares given.
        found: usize,
        /// GPUs.
        gpus: usize,
    },
    /// More devices than llama.cpp's scheduler has room for: it ends with a failed assertion.
    #[error("llama.cpp takes at most {MOST_DEVICES} devices with the host, not {found}; give fewer --device")]
    Devices {
        /// Devices, the host among them.
        found: usize,
    },
    /// More sequences than tokens of a batch: llama.cpp ends with a failed assertion.
    #[error(
        "{sequences} sequences do not fit a batch of {batch} tokens; give a larger --batch or --ctx, or fewer --parallel"
    )]
    Sequences {
        /// Sequences.
        sequences: u32,
        /// Tokens of a batch.
        batch: u32,
    },
}

/// Predicts from a header alone, by the preparation that our own engine runs by, under the reference's rules. Pure;
/// O(tensors of two graphs).
pub fn predict(file: &Gguf, machine: &Machine, options: &LlamaCppOptions) -> Result<Prediction, PredictError> {
    let (found, gpus) = (options.tensor_split.len(), machine.devices().len() - 1);
    if found > gpus {
        return Err(PredictError::Shares { found, gpus });
    }
    if gpus >= MOST_DEVICES {
        return Err(PredictError::Devices { found: gpus + 1 });
    }
    let (sequences, batch) = (options.sequences, options.batch.min(options.context));
    if sequences > batch {
        return Err(PredictError::Sequences { sequences, batch });
    }
    let model = Model::of(String::new(), file.clone())?;
    let (machine, repacked) = with_repacked_memory(machine)?;
    let settings = options.settings(&model);
    let layers = Placed::new(&model, &machine, &settings)?.layers;
    let settings = Settings { copies: options.copies(&machine, &layers), ..settings };
    let prepared = prepare(&model, &machine, &settings)?;
    Ok(Prediction {
        memory: memory(&machine, &prepared, repacked),
        copies: settings.copies.get(),
        splits_prefill: prepared.full.splits as u32,
        splits_decode: prepared.one.splits as u32,
        layers,
    })
}

impl LlamaCppOptions {
    fn settings(&self, model: &Model) -> Settings {
        Settings {
            context: self.context,
            batch: self.batch,
            micro_batch: self.micro_batch,
            sequences: self.sequences,
            attention: self.attention,
            key_type: self.key_type,
            value_type: self.value_type,
            // Every layer keeps the whole context, those with a window too: llama.cpp's default.
            sliding: SlidingCells::Full,
            cache: self.cache,
            gpu_layers: self.gpu_layers,
            // Shares that are all 0 are none.
            tensor_split: self.tensor_split.iter().any(|&share| share != 0.0).then(|| self.tensor_split.clone()),
            overrides: self.overrides.clone(),
            repack: Repack::Avx512,
            placer: Placer::Ggml,
            reserve: ReserveFor::Measured,
            ..Settings::new(&model.params)
        }
    }

    fn copies(&self, machine: &Machine, layers: &LayerDevices) -> NonZeroU32 {
        let pipelines = machine.devices().len() > 2
            && layers.all_off(machine.fallback())
            && self.cache == CacheHome::WithLayer
            && self.overrides.is_empty();
        NonZeroU32::new(if pipelines { PIPELINE_COPIES } else { 1 }).unwrap_or(NonZeroU32::MIN)
    }
}

/// By device, then what is re-laid out, if anything is.
fn memory(machine: &Machine, prepared: &Prepared, repacked: BufferTypeId) -> Vec<MemoryUse> {
    let of_device = |(id, need): (_, &crate::engine::DeviceNeed)| MemoryUse {
        name: machine.device(id).name.to_string(),
        weights: need.weights,
        kv: need.cache,
        compute: need.compute,
        compute_bound: need.bound,
    };
    let mut memory: Vec<MemoryUse> = prepared.devices.iter().map(of_device).collect();
    if let Some(&weights) = prepared.weights.get(&repacked) {
        memory.push(MemoryUse { name: REPACKED_MEMORY.to_owned(), weights, ..MemoryUse::default() });
    }
    memory
}

/// The machine, with host memory that only the CPU's products read.
fn with_repacked_memory(machine: &Machine) -> Result<(Machine, BufferTypeId), MachineError> {
    let mut parts = machine.parts().clone();
    parts.fallback = Some(machine.fallback());
    let mut repacked = machine.compute_type(machine.fallback()).clone();
    repacked.name = REPACKED_MEMORY.into();
    repacked.host = false;
    repacked.usable_by = DeviceSet::new();
    repacked.usable_by.insert(machine.fallback());
    let id = parts.buffer_types.push(repacked);
    Ok((Machine::new(parts)?, id))
}

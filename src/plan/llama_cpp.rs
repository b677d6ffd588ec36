//! What llama.cpp takes: its placement, its kinds of memory, its reserve, its allocator.

use crate::placement::{
    CacheHome, GpuLayers, LayerDevices, ModelHomes, NormPins, Override, Repack, WeightHome, weight_home,
};
use loadmaster_alloc::{Arenas, Placer};
use loadmaster_graph::{Bytes, DType, DeviceId, Tensor};
use loadmaster_models::families::{
    self, Attention, BatchShape, CacheRequest, FamilyError, GraphSpec, KvLayout, ModelGraph, SlidingCells, WeightUse,
};
use loadmaster_models::gguf::{Gguf, GgufError};
use loadmaster_models::hparams::HParams;
use loadmaster_models::kv::Sharing;
use loadmaster_sched::machine::MachineError;
use loadmaster_sched::plan::{PlanOptions, plan};
use loadmaster_sched::{DeviceSet, LowerOptions, Machine, SchedError, compute_types};
use std::collections::BTreeSet;
use std::num::NonZeroU32;

/// Pipeline copies that llama.cpp makes where it pipelines.
const PIPELINE_COPIES: u32 = 4;
/// Name of the memory for re-laid out weights.
pub const REPACKED: &str = "CPU_REPACK";

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
    /// The file lacks something, or is not understood.
    #[error(transparent)]
    File(#[from] GgufError),
    /// No graph can be built.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// The machine contradicts itself.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// No plan can be made.
    #[error(transparent)]
    Sched(#[from] SchedError),
    /// More or fewer shares than GPUs.
    #[error("tensor split has {found} shares, but there are {gpus} GPUs")]
    Shares {
        /// Shares given.
        found: usize,
        /// GPUs.
        gpus: usize,
    },
}

/// Predicts from a header alone. Pure; O(tensors of two graphs).
pub fn predict(file: &Gguf, machine: &Machine, options: &LlamaCppOptions) -> Result<Prediction, PredictError> {
    let params = HParams::from_gguf(file)?;
    let layers = place_layers(machine, params.layers.len() as u32, options)?;
    let (machine, repacked) = with_repacked_memory(machine)?;
    let norms = NormPins::of_llama_cpp(options.gpu_layers, &layers);
    let (repacked, cache) = (Some(repacked), options.cache);
    let homes = ModelHomes { machine: &machine, layers: &layers, repacked, cache, norms };
    let run = Predictor { file, params: &params, homes: &homes, options };
    run.predict()
}

fn place_layers(machine: &Machine, count: u32, options: &LlamaCppOptions) -> Result<LayerDevices, PredictError> {
    let host = machine.fallback();
    let gpus: Vec<DeviceId> = machine.devices().ids().filter(|&d| d != host).collect();
    let shares = if options.tensor_split.is_empty() {
        let free = |&g: &DeviceId| machine.pools()[machine.compute_type(g).pool].capacity.unwrap_or(Bytes::gib(1));
        LayerDevices::shares_of_memory(&gpus.iter().map(free).collect::<Vec<_>>())
    } else if options.tensor_split.len() == gpus.len() {
        options.tensor_split.clone()
    } else {
        return Err(PredictError::Shares { found: options.tensor_split.len(), gpus: gpus.len() });
    };
    let pairs: Vec<_> = gpus.into_iter().zip(shares).collect();
    Ok(LayerDevices::by_share(count, options.gpu_layers, &pairs, host))
}

/// The machine, with host memory that only the CPU's products read.
fn with_repacked_memory(machine: &Machine) -> Result<(Machine, loadmaster_graph::BufferTypeId), MachineError> {
    let mut parts = machine.parts().clone();
    parts.fallback = Some(machine.fallback());
    let mut repacked = machine.compute_type(machine.fallback()).clone();
    repacked.name = REPACKED.into();
    repacked.host = false;
    repacked.usable_by = DeviceSet::new();
    repacked.usable_by.insert(machine.fallback());
    let id = parts.buffer_types.push(repacked);
    Ok((Machine::new(parts)?, id))
}

struct Predictor<'a> {
    file: &'a Gguf,
    params: &'a HParams,
    homes: &'a ModelHomes<'a>,
    options: &'a LlamaCppOptions,
}

impl Predictor<'_> {
    fn predict(&self) -> Result<Prediction, PredictError> {
        let copies = self.copies();
        let layout = self.layout()?;
        let micro_batch = self.options.micro_batch.min(self.options.batch).min(self.options.context);
        let prefill = self.graph(&layout, BatchShape::largest(&layout, micro_batch))?;
        let decode = self.graph(&layout, BatchShape::largest(&layout, self.options.sequences))?;
        let machine = self.homes.machine;
        let mut memory: Vec<MemoryUse> = machine
            .devices()
            .values()
            .map(|d| d.name.to_string())
            .chain([REPACKED.to_owned()])
            .map(|name| MemoryUse { name, ..MemoryUse::default() })
            .collect();
        self.add_weights(&prefill, &mut memory);
        self.add_caches(&prefill, &mut memory);
        let splits_prefill = self.add_compute(&prefill, micro_batch, copies, &mut memory)?;
        let splits_decode = self.add_compute(&decode, self.options.sequences, copies, &mut memory)?;
        if memory.last().is_some_and(|m| m.weights == Bytes::ZERO) {
            memory.pop();
        }
        let layers = self.homes.layers.clone();
        Ok(Prediction { memory, copies: copies.get(), splits_prefill, splits_decode, layers })
    }

    fn copies(&self) -> NonZeroU32 {
        let host = self.homes.layers.input;
        let gpus = self.homes.machine.devices().len() - 1;
        let pipelines = gpus > 1
            && self.homes.layers.all_off(host)
            && self.options.cache == CacheHome::WithLayer
            && self.options.overrides.is_empty();
        NonZeroU32::new(if pipelines { PIPELINE_COPIES } else { 1 }).unwrap_or(NonZeroU32::MIN)
    }

    /// Every layer keeps the whole context, those with a window too: llama.cpp's default.
    fn layout(&self) -> Result<KvLayout, FamilyError> {
        let layout = KvLayout::new(
            self.params,
            &CacheRequest {
                context: self.options.context,
                sequences: self.options.sequences,
                sharing: Sharing::PerSequence,
                micro_batch: self.options.micro_batch,
                key_type: self.options.key_type,
                value_type: self.options.value_type,
                sliding: SlidingCells::Full,
            },
        )?;
        Ok(layout)
    }

    fn graph(&self, layout: &KvLayout, shape: BatchShape) -> Result<ModelGraph, FamilyError> {
        let output = self.output_home();
        let spec = GraphSpec {
            shape,
            layout: *layout,
            attention: self.options.attention,
            homes: self.homes.graph_homes(output),
        };
        families::build(self.file, self.params, &spec)
    }

    /// Where the output projection is, which is the token embedding once more where the file has none.
    fn output_home(&self) -> WeightHome {
        let id = self.file.find("output.weight").or_else(|| self.file.find("token_embd.weight"));
        let Some((dtype, ne)) = id.map(|id| self.file.tensor(id)).and_then(|t| Some((t.dtype?, t.ne))) else {
            return WeightHome::Device(self.homes.layers.output);
        };
        self.home("output.weight", dtype, &ne)
    }

    fn home(&self, name: &str, dtype: DType, ne: &loadmaster_graph::Dims) -> WeightHome {
        weight_home(name, dtype, ne, self.homes.layers, &self.options.overrides, Repack::Avx512)
    }

    fn home_of(&self, weight: &WeightUse, tensor: &Tensor) -> WeightHome {
        let is_output = weight.part == families::Part::Output && &*tensor.name == "token_embd.weight";
        let name = if is_output { "output.weight" } else { &tensor.name };
        self.home(name, tensor.dtype, &tensor.ne)
    }

    fn add_weights(&self, model: &ModelGraph, memory: &mut [MemoryUse]) {
        let mut seen = BTreeSet::new();
        for weight in &model.weights {
            let tensor = model.graph.tensor(weight.tensor);
            let home = self.home_of(weight, tensor);
            if seen.insert((weight.weight, home)) {
                let at = self.memory_index(home);
                memory[at].weights = memory[at].weights.saturating_add(self.padded(home, tensor));
            }
        }
    }

    fn add_caches(&self, model: &ModelGraph, memory: &mut [MemoryUse]) {
        for cache in &model.caches {
            let home = WeightHome::Device(self.homes.cache_device(cache.layer));
            let at = self.memory_index(home);
            let size = self.padded(home, model.graph.tensor(cache.tensor));
            memory[at].kv = memory[at].kv.saturating_add(size);
        }
    }

    fn add_compute(
        &self,
        model: &ModelGraph,
        tokens: u32,
        copies: NonZeroU32,
        memory: &mut [MemoryUse],
    ) -> Result<u32, PredictError> {
        let machine = self.homes.machine;
        let residency = self.homes.residency(model, tokens, |w, t| self.home_of(w, t));
        let arenas = Arenas::new(compute_types(machine, &Default::default()));
        let lower = LowerOptions { n_copies: copies, ..LowerOptions::default() };
        let options = PlanOptions { lower, placer: Placer::Ggml, ..PlanOptions::default() };
        let plan = plan(&model.graph, machine, &residency, arenas, &options)?;
        for ((_, size), used) in plan.memory.buffer_sizes().iter().zip(memory) {
            used.compute = used.compute.max(*size);
        }
        Ok(plan.splits.splits().len() as u32)
    }

    fn memory_index(&self, home: WeightHome) -> usize {
        match home {
            WeightHome::Device(d) => d.index(),
            WeightHome::Repacked => self.homes.machine.devices().len(),
        }
    }

    fn padded(&self, home: WeightHome, tensor: &Tensor) -> Bytes {
        let kind = &self.homes.machine.buffer_types()[self.homes.buffer_type(home)];
        kind.alloc_size(tensor).checked_align_up(kind.alignment).unwrap_or(Bytes::MAX)
    }
}

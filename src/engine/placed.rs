//! Where the parts of a model go on a machine: decided once, read by the planner and by the loader.

use super::error::EngineError;
use super::model::Model;
use super::settings::Settings;
use crate::placement::{LayerDevices, ModelHomes, NormPins, Override, Repack, WeightHome, home_on};
use loadmaster_alloc::Placer;
use loadmaster_graph::{BufferTypeId, Bytes, DType, DeviceId, Dims, Tensor};
use loadmaster_models::families::{BatchShape, GraphSpec, Homes, KvLayout, ModelGraph, Part, WeightUse};
use loadmaster_sched::{DeviceKind, Machine, Residency};
use std::sync::Arc;

/// Share of a GPU whose memory is not known, if no share is given: as much as this.
const UNKNOWN_MEMORY: Bytes = Bytes::gib(1);
/// Names of weights.
const OUTPUT: &str = "output.weight";
const TOKEN_EMBEDDING: &str = "token_embd.weight";
/// Name of the memory for re-laid out weights, on machines that have it.
pub const REPACKED_MEMORY: &str = "CPU_REPACK";

/// The place of every part of a model.
#[derive(Clone, Debug)]
pub struct Placed<'a> {
    /// The model.
    pub model: &'a Model,
    /// The machine.
    pub machine: &'a Machine,
    /// The settings.
    pub settings: &'a Settings,
    /// Extents and types of the caches.
    pub layout: KvLayout,
    /// The device of each layer.
    pub layers: LayerDevices,
    /// What graphs are built for.
    pub homes: Homes,
    repacked: Option<BufferTypeId>,
}

impl<'a> Placed<'a> {
    /// Decides. Errors: settings that do not fit the model or the machine.
    pub fn new(model: &'a Model, machine: &'a Machine, settings: &'a Settings) -> Result<Self, EngineError> {
        let layout = KvLayout::new(&model.params, &settings.cache_request())?;
        let layers = layer_devices(model, machine, settings)?;
        let repacked = machine.buffer_types().iter().find(|(_, t)| &*t.name == REPACKED_MEMORY).map(|(id, _)| id);
        let homes = Homes::single(&model.params);
        let mut placed = Self { model, machine, settings, layout, layers, homes, repacked };
        placed.homes = placed.model_homes().graph_homes(placed.output_home());
        Ok(placed)
    }

    /// The graph for a shape of batch.
    pub fn graph(&self, shape: BatchShape) -> Result<Arc<ModelGraph>, EngineError> {
        let homes = self.homes.clone();
        let spec = GraphSpec { shape, layout: self.layout, attention: self.settings.attention, homes };
        self.model.graph(spec)
    }

    /// The shapes whose needs together are what is reserved: a full micro-batch, one token of each sequence, and, where
    /// weights are on the host, what is below the batch from which devices take them over. The reference reserves the
    /// first two.
    #[must_use]
    pub fn reserved_shapes(&self) -> Vec<BatchShape> {
        let largest = |tokens| BatchShape::largest(&self.layout, tokens);
        let full = largest(self.settings.largest_micro_batch());
        let mut shapes = vec![full, largest(self.settings.decode_tokens())];
        let host = self.layers.input;
        let all_on_gpus = self.layers.all_off(host) && self.settings.overrides.is_empty();
        if self.settings.placer == Placer::Ggml || all_on_gpus {
            return shapes;
        }
        let minima = self.machine.devices().values().filter_map(|d| d.offload_min_batch);
        for below in minima.filter_map(|m| u32::try_from(m).ok()?.checked_sub(1)).filter(|&n| 0 < n && n < full.tokens)
        {
            let streams = self.layout.streams.min(below);
            shapes.push(largest(below - below % streams));
            // One sequence may reach what no equal number of tokens of all does.
            shapes.push(BatchShape { streams: 1, tokens: below, outputs: below, ..full });
            // Few rows of logits of a large batch: the output stays while the layers are taken over.
            shapes.push(BatchShape { outputs: below, ..full });
        }
        let mut seen = Vec::new();
        shapes.retain(|shape| {
            let is_new = !seen.contains(shape);
            seen.push(*shape);
            is_new
        });
        shapes
    }

    /// What is in memory before such a graph runs.
    #[must_use]
    pub fn residency(&self, graph: &ModelGraph, tokens: u32) -> Residency {
        self.model_homes().residency(graph, tokens, |weight, tensor| self.weight_home(weight, tensor))
    }

    /// Where a weight is kept.
    #[must_use]
    pub fn weight_home(&self, weight: &WeightUse, tensor: &Tensor) -> WeightHome {
        let by_part = match weight.part {
            Part::Input => self.layers.input,
            Part::Layer(id) => self.layers.layers.get(id.index()).copied().unwrap_or(self.layers.input),
            Part::Output => self.layers.output,
        };
        // The token embedding once more, where the file has no output of its own, is the output.
        let is_output = weight.part == Part::Output && &*tensor.name == TOKEN_EMBEDDING;
        let name = if is_output { OUTPUT } else { &tensor.name };
        self.home_of(name, tensor.dtype, &tensor.ne, by_part)
    }

    fn home_of(&self, name: &str, dtype: DType, ne: &Dims, by_part: DeviceId) -> WeightHome {
        let device = Override::find(&self.settings.overrides, name).unwrap_or(by_part);
        // A machine without memory for re-laid out weights keeps them plain.
        let repack = if self.repacked.is_some() { self.settings.repack } else { Repack::Never };
        home_on(device, name, dtype, ne, self.layers.input, repack)
    }

    /// The kind of memory of a home.
    #[must_use]
    pub fn buffer_type(&self, home: WeightHome) -> BufferTypeId {
        self.model_homes().buffer_type(home)
    }

    /// The device that keeps a layer's cache.
    #[must_use]
    pub fn cache_device(&self, layer: loadmaster_models::hparams::LayerId) -> DeviceId {
        self.model_homes().cache_device(layer)
    }

    fn model_homes(&self) -> ModelHomes<'_> {
        ModelHomes {
            machine: self.machine,
            layers: &self.layers,
            repacked: self.repacked,
            cache: self.settings.cache,
            norms: self.norm_pins(),
        }
    }

    /// The reference's policy follows the reference; ours copies less at a cut where it can.
    fn norm_pins(&self) -> NormPins {
        match self.settings.placer {
            Placer::Ggml => NormPins::of_llama_cpp(self.settings.gpu_layers, &self.layers),
            _ if self.layers.all_off(self.layers.input) => NormPins::Always,
            _ => NormPins::SmallBatches,
        }
    }

    fn output_home(&self) -> WeightHome {
        let file = &self.model.file;
        let found = file.find(OUTPUT).or_else(|| file.find(TOKEN_EMBEDDING)).map(|id| file.tensor(id));
        let Some((dtype, ne)) = found.and_then(|info| Some((info.dtype?, info.ne))) else {
            return WeightHome::Device(self.layers.output);
        };
        self.home_of(OUTPUT, dtype, &ne, self.layers.output)
    }
}

fn layer_devices(model: &Model, machine: &Machine, settings: &Settings) -> Result<LayerDevices, EngineError> {
    let gpus: Vec<DeviceId> =
        machine.devices().iter().filter(|(_, d)| d.kind == DeviceKind::Gpu).map(|(id, _)| id).collect();
    let memory = |id: &DeviceId| {
        machine.pools()[machine.compute_type(*id).pool].capacity.filter(|c| *c > Bytes::ZERO).unwrap_or(UNKNOWN_MEMORY)
    };
    let shares = match &settings.tensor_split {
        Some(split) => given_shares(split, gpus.len())?,
        None => LayerDevices::shares_of_memory(&gpus.iter().map(memory).collect::<Vec<_>>()),
    };
    let gpus: Vec<(DeviceId, f32)> = gpus.into_iter().zip(shares).collect();
    let layers = model.params.layers.len() as u32;
    Ok(LayerDevices::by_share(layers, settings.gpu_layers, &gpus, machine.fallback()))
}

/// One share per GPU; missing ones are 0.
fn given_shares(split: &[f32], gpus: usize) -> Result<Vec<f32>, EngineError> {
    if split.len() > gpus {
        let said = format!("--tensor-split gives {} shares, but there are {gpus} GPUs", split.len());
        return Err(EngineError::Settings(said));
    }
    if let Some(bad) = split.iter().find(|s| !s.is_finite() || **s < 0.0) {
        return Err(EngineError::Settings(format!("--tensor-split: {bad} is no share; write 0 or more")));
    }
    let sum: f32 = split.iter().sum();
    if gpus > 0 && sum <= 0.0 {
        return Err(EngineError::Settings("--tensor-split: all shares are 0".to_owned()));
    }
    if sum.is_infinite() {
        return Err(EngineError::Settings("--tensor-split: the shares are too large to be added up".to_owned()));
    }
    Ok(split.iter().copied().chain(std::iter::repeat(0.0)).take(gpus).collect())
}

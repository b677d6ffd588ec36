//! Where the parts of a model go on a machine: decided once, read by the planner and by the loader.

use super::error::EngineError;
use super::model::Model;
use super::settings::{ReserveFor, Settings};
use crate::placement::{LayerDevices, ModelHomes, Override, Pins, Repack, WeightHome, home_on, weight_home};
use loadmaster_alloc::Placer;
use loadmaster_graph::{BufferTypeId, Bytes, DType, DeviceId, Dims, Tensor};
use loadmaster_models::families::{BatchShape, GraphSpec, Homes, KvLayout, ModelGraph, Part, WeightUse};
use loadmaster_models::gguf::{TensorInfo, WeightId};
use loadmaster_sched::{DeviceKind, Machine, Residency};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Share of a GPU whose memory is not known, if no share is given: as much as this.
const UNKNOWN_MEMORY: Bytes = Bytes::gib(1);
/// Names of weights.
const OUTPUT: &str = "output.weight";
const TOKEN_EMBEDDING: &str = "token_embd.weight";
/// How the names of factors of rotations begin: every layer reads them.
const ROTATIONS: &str = "rope_";
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
        placed.homes = placed.model_homes().graph_homes(placed.output_home(), placed.factors_overrides());
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
    /// first two, and measures the first.
    #[must_use]
    pub fn reserved_shapes(&self) -> Vec<BatchShape> {
        let largest = |tokens| BatchShape::largest(&self.layout, tokens);
        let full = largest(self.settings.largest_micro_batch());
        let mut shapes = vec![full, self.decode_shape()];
        let host = self.layers.input;
        let all_on_gpus = self.layers.all_off(host) && self.settings.overrides.is_empty();
        if self.settings.reserve == ReserveFor::Measured {
            return vec![self.measured_shape()];
        }
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

    /// The shape that the reference measures: tokens are rounded up to the same number for each stream, outputs are not.
    fn measured_shape(&self) -> BatchShape {
        let (tokens, streams) = (self.settings.largest_micro_batch(), self.layout.streams);
        let shape = BatchShape::largest(&self.layout, tokens);
        BatchShape { tokens: tokens.next_multiple_of(streams), outputs: tokens, streams, ..shape }
    }

    /// One token of each sequence.
    #[must_use]
    pub fn decode_shape(&self) -> BatchShape {
        BatchShape::largest(&self.layout, self.settings.decode_tokens())
    }

    /// What is in memory before such a graph runs.
    #[must_use]
    pub fn residency(&self, graph: &ModelGraph, tokens: u32) -> Residency {
        let pins = match self.settings.reserve {
            ReserveFor::Runs => self.pins_of_runs(),
            ReserveFor::Measured => Pins::Nothing,
        };
        self.pinned_residency(graph, tokens, pins)
    }

    /// The same with what a run fixes to devices, whatever is reserved for.
    #[must_use]
    pub fn residency_of_runs(&self, graph: &ModelGraph, tokens: u32) -> Residency {
        self.pinned_residency(graph, tokens, self.pins_of_runs())
    }

    fn pinned_residency(&self, graph: &ModelGraph, tokens: u32, pins: Pins) -> Residency {
        let homes = ModelHomes { pins, ..self.model_homes() };
        homes.residency(graph, tokens, |weight, tensor| self.weight_home(weight, tensor))
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
        let role = if is_output { OUTPUT } else { &tensor.name };
        self.home_of(&tensor.name, role, (tensor.dtype, &tensor.ne), by_part)
    }

    /// Overrides go by the `name` in the file; what reads it, by its `role`.
    fn home_of(&self, name: &str, role: &str, (dtype, ne): (DType, &Dims), by_part: DeviceId) -> WeightHome {
        let device = Override::find(&self.settings.overrides, name).unwrap_or(by_part);
        home_on(device, role, dtype, ne, self.layers.input, self.repack())
    }

    /// Weights of the file that are not `read` by the graphs, with the memory that the reference loads them to
    /// nevertheless: with what has their name's beginning, and factors of rotations with every layer.
    pub fn unread(&self, read: &BTreeSet<WeightId>) -> Vec<(BufferTypeId, Tensor)> {
        let known = |info: &TensorInfo| Tensor::leaf(info.name.clone(), info.dtype?, info.ne);
        let ids = (0..self.model.file.tensors().len()).map(WeightId::new).filter(|id| !read.contains(id));
        let tensors = ids.filter_map(|id| known(self.model.file.tensor(id)));
        tensors.flat_map(|t| self.unread_memory(&t).into_iter().map(move |memory| (memory, t.clone()))).collect()
    }

    fn unread_memory(&self, tensor: &Tensor) -> BTreeSet<BufferTypeId> {
        let (name, overrides) = (&*tensor.name, &self.settings.overrides);
        let home = |device| self.home_of(name, name, (tensor.dtype, &tensor.ne), device);
        if name.starts_with(ROTATIONS) {
            return self.layers.layers.iter().map(|&device| self.buffer_type(home(device))).collect();
        }
        let home = weight_home(name, tensor.dtype, &tensor.ne, &self.layers, overrides, self.repack());
        BTreeSet::from([self.buffer_type(home)])
    }

    /// A machine without memory for re-laid out weights keeps them plain.
    fn repack(&self) -> Repack {
        if self.repacked.is_some() { self.settings.repack } else { Repack::Never }
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
            pins: self.pins_of_runs(),
        }
    }

    /// The reference's policy follows the reference; ours copies less at a cut where it can.
    fn pins_of_runs(&self) -> Pins {
        match self.settings.placer {
            Placer::Ggml => Pins::of_llama_cpp(self.settings.gpu_layers, &self.layers),
            _ if self.layers.all_off(self.layers.input) => Pins::Always,
            _ => Pins::SmallBatches,
        }
    }

    /// A file may have several: each context length reads its own.
    fn factors_overrides(&self) -> BTreeMap<WeightId, DeviceId> {
        let file = &self.model.file;
        let names = file.tensors().iter().map(|info| &*info.name).filter(|name| name.starts_with(ROTATIONS));
        names.filter_map(|name| Some((file.find(name)?, Override::find(&self.settings.overrides, name)?))).collect()
    }

    fn output_home(&self) -> WeightHome {
        let file = &self.model.file;
        let found = [OUTPUT, TOKEN_EMBEDDING].into_iter().find_map(|name| Some((name, file.tensor(file.find(name)?))));
        let Some((name, dtype, ne)) = found.and_then(|(name, info)| Some((name, info.dtype?, info.ne))) else {
            return WeightHome::Device(self.layers.output);
        };
        self.home_of(name, OUTPUT, (dtype, &ne), self.layers.output)
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

//! What is in memory before a model's graph is planned: each weight in the buffer of its part, each cache tensor in that
//! of its layer, and the tensors that llama.cpp fixes to a device.

use super::{GpuLayers, LayerDevices, WeightHome};
use loadmaster_graph::{BufferId, BufferTypeId, DeviceId, Tensor};
use loadmaster_models::families::{HomeId, Homes, ModelGraph, WeightUse};
use loadmaster_models::gguf::WeightId;
use loadmaster_sched::{Machine, Residency, ResidentBuffer, Usage};
use std::collections::BTreeMap;

/// Smallest batch for which llama.cpp leaves the norms of layers unpinned (where not everything is on GPUs).
const FREE_NORMS_MIN_BATCH: u32 = 32;

/// Where the parts of a model are, on one machine.
#[derive(Clone, Debug)]
pub struct ModelHomes<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The device of each layer.
    pub layers: &'a LayerDevices,
    /// Host memory for re-laid out weights, if the machine has such.
    pub repacked: Option<BufferTypeId>,
    /// Whether the KV cache is with its layer, or on the host.
    pub cache: CacheHome,
    /// What is fixed to a device beforehand.
    pub pins: Pins,
}

/// What is fixed to a device beforehand: norms to their layer's, and results of attention to the host's if the KV cache
/// is there.
///
/// A norm that is not fixed takes the device of what it reads, so that at a cut between devices its result is copied
/// beside what it read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pins {
    /// Both, norms in every batch.
    Always,
    /// Both, norms in batches of fewer than 32 tokens.
    SmallBatches,
    /// Neither: llama.cpp forgets them where it measures without allocating.
    Nothing,
}

impl Pins {
    /// llama.cpp's when it runs: norms always, if the count of layers for GPUs covers the output.
    #[must_use]
    pub fn of_llama_cpp(gpu_layers: GpuLayers, layers: &LayerDevices) -> Self {
        match gpu_layers {
            GpuLayers::Count(n) if n as usize <= layers.layers.len() => Self::SmallBatches,
            GpuLayers::Count(_) | GpuLayers::All => Self::Always,
        }
    }

    fn norms_of(self, tokens: u32) -> bool {
        match self {
            Self::Always => true,
            Self::SmallBatches => tokens < FREE_NORMS_MIN_BATCH,
            Self::Nothing => false,
        }
    }
}

/// Where a KV cache is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum CacheHome {
    /// Each layer's with its layer.
    #[default]
    WithLayer,
    /// On the host.
    Host,
}

impl ModelHomes<'_> {
    /// The homes that a graph is to be built for: ids are devices, and one more for re-laid out weights. `factors`: where
    /// overrides put rotary factors.
    #[must_use]
    pub fn graph_homes(&self, output: WeightHome, factors: BTreeMap<WeightId, DeviceId>) -> Homes {
        let plain = |d: DeviceId| HomeId::new(d.index());
        Homes {
            input: plain(self.layers.input),
            layers: self.layers.layers.iter().map(|&d| plain(d)).collect(),
            output: match output {
                WeightHome::Device(d) => plain(d),
                WeightHome::Repacked => HomeId::new(self.machine.devices().len()),
            },
            factors: factors.into_iter().map(|(weight, d)| (weight, plain(d))).collect(),
        }
    }

    /// The kind of memory of a home of a weight. A machine without memory for re-laid out weights keeps them plain.
    #[must_use]
    pub fn buffer_type(&self, home: WeightHome) -> BufferTypeId {
        let of = |d: DeviceId| self.machine.device(d).buffer_type;
        match home {
            WeightHome::Device(d) => of(d),
            WeightHome::Repacked => self.repacked.unwrap_or_else(|| of(self.layers.input)),
        }
    }

    /// The device that keeps a layer's cache.
    #[must_use]
    pub fn cache_device(&self, layer: loadmaster_models::hparams::LayerId) -> DeviceId {
        match self.cache {
            CacheHome::WithLayer => self.layers.layers[layer.index()],
            CacheHome::Host => self.layers.input,
        }
    }

    /// Residency of a graph of the model. `home` tells where a weight is; `tokens` is the batch that the graph is for.
    #[must_use]
    pub fn residency(
        &self,
        model: &ModelGraph,
        tokens: u32,
        mut home: impl FnMut(&WeightUse, &Tensor) -> WeightHome,
    ) -> Residency {
        let mut residency = Residency::nothing(&model.graph);
        let mut buffers: BTreeMap<(BufferTypeId, u8), BufferId> = BTreeMap::new();
        let mut buffer = |residency: &mut Residency, buffer_type: BufferTypeId, usage: Usage| {
            *buffers
                .entry((buffer_type, usage as u8))
                .or_insert_with(|| residency.buffers.push(ResidentBuffer { buffer_type, usage }))
        };
        for weight in &model.weights {
            let buffer_type = self.buffer_type(home(weight, model.graph.tensor(weight.tensor)));
            let id = buffer(&mut residency, buffer_type, Usage::Weights);
            residency.buffer_of[weight.tensor] = Some(id);
        }
        for cache in &model.caches {
            let device = self.cache_device(cache.layer);
            let id = buffer(&mut residency, self.machine.device(device).buffer_type, Usage::Any);
            residency.buffer_of[cache.tensor] = Some(id);
        }
        self.mark_cache_views(model, &mut residency);
        self.pin(model, tokens, &mut residency);
        residency
    }

    /// Views of what is in memory have memory of their own, though they were given no buffer.
    fn mark_cache_views(&self, model: &ModelGraph, residency: &mut Residency) {
        for (id, tensor) in model.graph.tensors().iter() {
            let root = tensor.view.map(|v| v.root);
            residency.external[id] = root.is_some_and(|r| residency.buffer_of[r].is_some());
        }
    }

    fn pin(&self, model: &ModelGraph, tokens: u32, residency: &mut Residency) {
        let host = self.layers.input;
        if self.pins.norms_of(tokens) {
            let pins = model.norms.iter().map(|&(t, layer)| (t, self.layers.layers[layer.index()]));
            residency.pinned.extend(pins);
        }
        if self.cache == CacheHome::Host && self.pins != Pins::Nothing {
            residency.pinned.extend(model.attention_outputs.iter().map(|&(t, _)| (t, host)));
        }
    }
}

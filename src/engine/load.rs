//! Weights and caches in the memory of their devices.
//!
//! A weight goes from the mapped file to its device piece by piece; on the host it stays in the map, where its address
//! is aligned as kernels need it. So no weight is in host memory twice.

use super::error::EngineError;
use super::placed::Placed;
use loadmaster_alloc::{Buffer, TensorGroup, alloc_tensors};
use loadmaster_backends::{Device, DeviceKind, HostBuffer, Region};
use loadmaster_graph::{BufferId, BufferTypeId, Bytes, DeviceId, IdVec, TensorId};
use loadmaster_models::families::{CachePart, ModelGraph, WeightUse};
use loadmaster_models::gguf::WeightId;
use loadmaster_models::hparams::LayerId;
use loadmaster_models::kv::{StreamCopy, StreamId};
use loadmaster_sched::exec::{Runtime, noted};
use loadmaster_sched::{Residency, ResidentBuffer, Usage};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tracing::{Span, debug_span, enabled};

/// Bytes that are brought to a device at once.
const PIECE: usize = 4 << 20;

/// Told how many bytes of all have been brought to their devices.
pub type Progress<'a> = dyn FnMut(Bytes, Bytes) + 'a;

type Place = (BufferId, Bytes);

/// What is in memory whatever graph runs.
#[derive(Debug, Default)]
pub struct Loaded {
    buffers: IdVec<BufferId, Arc<dyn Buffer>>,
    kinds: IdVec<BufferId, ResidentBuffer>,
    weights: BTreeMap<(WeightId, BufferTypeId), Place>,
    caches: BTreeMap<(LayerId, CachePart), Place>,
    /// The bytes of every cache tensor, with the device that keeps them.
    cache_regions: Vec<(DeviceId, Region)>,
}

/// A graph's tensors in memory.
#[derive(Debug)]
pub struct GraphMemory {
    /// Which buffer each tensor is in.
    pub residency: Residency,
    /// Its first byte there.
    pub offsets: IdVec<TensorId, Bytes>,
}

impl Loaded {
    /// Takes memory for the weights and caches of a graph, brings the weights there, and clears the caches: every byte
    /// of a cache is zero until it is written, on every device. (Plain attention multiplies cells that nobody wrote by
    /// a weight of zero, which is zero only if they hold numbers.)
    ///
    /// Errors: a device without room, or one that fails. Nothing stays taken.
    pub fn new(
        placed: &Placed<'_>,
        graph: &ModelGraph,
        runtime: &Runtime,
        progress: &mut Progress<'_>,
    ) -> Result<Self, EngineError> {
        let mut loader = Loader { placed, graph, runtime, loaded: Self::default(), uploads: Vec::new() };
        let by_device = loader.group_weights()?;
        for (device, weights) in by_device {
            loader.take_weights(device, &weights)?;
        }
        loader.take_caches()?;
        loader.bring(progress)?;
        Ok(loader.loaded)
    }

    /// The buffers.
    #[must_use]
    pub fn buffers(&self) -> &IdVec<BufferId, Arc<dyn Buffer>> {
        &self.buffers
    }

    /// Copies what a stream of the caches holds to another one; a cache has `streams` of the same size. Nothing may run.
    ///
    /// Errors: a device that fails.
    pub fn copy_stream(&self, runtime: &Runtime, copy: StreamCopy, streams: u32) -> Result<(), EngineError> {
        let mut bytes = vec![0; PIECE];
        for (device, region) in &self.cache_regions {
            let device = runtime.device(*device);
            let size = region.len.get() / u64::from(streams.max(1));
            let part = |stream: StreamId, at: u64, len: u64| {
                let start = (stream.index() as u64).saturating_mul(size).saturating_add(at);
                region.part(Bytes(start), Bytes(len))
            };
            for at in (0..size).step_by(PIECE) {
                let len = (size - at).min(PIECE as u64);
                let (Some(from), Some(to)) = (part(copy.from, at, len), part(copy.to, at, len)) else { continue };
                let piece = &mut bytes[..len as usize];
                let moved = device.download(&from, piece).and_then(|()| device.upload(&to, piece));
                let what = || "a sequence of the KV cache".into();
                moved.map_err(|error| EngineError::Upload { weight: what(), error: Box::new(error) })?;
            }
        }
        Ok(())
    }

    /// Where the tensors of a graph of the model are. Errors: one that was not loaded.
    pub fn memory_of(&self, placed: &Placed<'_>, graph: &ModelGraph, tokens: u32) -> Result<GraphMemory, EngineError> {
        let mut residency = placed.residency(graph, tokens);
        residency.buffers = self.kinds.clone();
        let mut offsets = IdVec::filled(Bytes::ZERO, graph.graph.tensors().len());
        let mut set = |tensor: TensorId, place: Option<&Place>| {
            let missing = || EngineError::NotLoaded { tensor: graph.graph.tensor(tensor).name.clone() };
            let &(buffer, offset) = place.ok_or_else(missing)?;
            residency.buffer_of[tensor] = Some(buffer);
            offsets[tensor] = offset;
            Ok::<_, EngineError>(())
        };
        for weight in &graph.weights {
            let home = placed.weight_home(weight, graph.graph.tensor(weight.tensor));
            set(weight.tensor, self.weights.get(&(weight.weight, placed.buffer_type(home))))?;
        }
        for cache in &graph.caches {
            set(cache.tensor, self.caches.get(&(cache.layer, cache.part)))?;
        }
        Ok(GraphMemory { residency, offsets })
    }
}

struct Upload {
    device: DeviceId,
    weight: WeightUse,
    to: Region,
}

struct Loader<'a> {
    placed: &'a Placed<'a>,
    graph: &'a ModelGraph,
    runtime: &'a Runtime,
    loaded: Loaded,
    uploads: Vec<Upload>,
}

impl Loader<'_> {
    /// Weights to be brought to each device; those that stay in the map are placed at once.
    fn group_weights(&mut self) -> Result<BTreeMap<DeviceId, Vec<WeightUse>>, EngineError> {
        let mut mapped = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut by_device: BTreeMap<DeviceId, Vec<WeightUse>> = BTreeMap::new();
        for &weight in &self.graph.weights {
            let tensor = self.graph.graph.tensor(weight.tensor);
            let buffer_type = self.placed.buffer_type(self.placed.weight_home(&weight, tensor));
            if !seen.insert((weight.weight, buffer_type)) {
                continue;
            }
            let device = self.device_of(buffer_type);
            if !self.stays_in_map(device, &weight)? {
                by_device.entry(device).or_default().push(weight);
                continue;
            }
            let info = self.placed.model.file.tensor(weight.weight);
            let buffer = *mapped.entry((info.shard, buffer_type)).or_insert_with(|| {
                let bytes = Arc::clone(self.placed.model.file.shard_bytes(info.shard));
                self.loaded.kinds.push(ResidentBuffer { buffer_type, usage: Usage::Weights });
                self.loaded.buffers.push(Arc::new(HostBuffer::shared(bytes)))
            });
            self.loaded.weights.insert((weight.weight, buffer_type), (buffer, info.start));
        }
        Ok(by_device)
    }

    /// The first device that computes in that kind of memory, or else the host.
    fn device_of(&self, buffer_type: BufferTypeId) -> DeviceId {
        let machine = self.placed.machine;
        let found = machine.devices().iter().find(|(_, d)| d.buffer_type == buffer_type);
        found.map_or(machine.fallback(), |(id, _)| id)
    }

    fn device(&self, id: DeviceId) -> &Arc<dyn Device> {
        self.runtime.device(id)
    }

    fn stays_in_map(&self, device: DeviceId, weight: &WeightUse) -> Result<bool, EngineError> {
        let device = self.device(device);
        let data = self.placed.model.file.data(weight.weight)?;
        let align = device.buffer_type().alignment().get();
        Ok(device.kind() == DeviceKind::Cpu && (data.as_ptr().addr() as u64).is_multiple_of(align))
    }

    fn take_weights(&mut self, device: DeviceId, weights: &[WeightUse]) -> Result<(), EngineError> {
        let tensors: BTreeSet<TensorId> = weights.iter().map(|w| w.tensor).collect();
        let places = self.take(device, &tensors, Usage::Weights)?;
        let buffer_type = self.placed.machine.device(device).buffer_type;
        for &weight in weights {
            let Some(&(buffer, offset)) = places.get(&weight.tensor) else { continue };
            self.loaded.weights.insert((weight.weight, buffer_type), (buffer, offset));
            let tensor = self.graph.graph.tensor(weight.tensor);
            let len = self.device(device).buffer_type().alloc_size(weight.tensor, tensor);
            let to = Region { buffer: Arc::clone(&self.loaded.buffers[buffer]), offset, len };
            self.uploads.push(Upload { device, weight, to });
        }
        Ok(())
    }

    fn take_caches(&mut self) -> Result<(), EngineError> {
        let mut by_device: BTreeMap<DeviceId, BTreeSet<TensorId>> = BTreeMap::new();
        for cache in &self.graph.caches {
            by_device.entry(self.placed.cache_device(cache.layer)).or_default().insert(cache.tensor);
        }
        for (device, tensors) in by_device {
            let first = self.loaded.buffers.len();
            let places = self.take(device, &tensors, Usage::Any)?;
            for cache in self.graph.caches.iter().filter(|c| tensors.contains(&c.tensor)) {
                if let Some(&place) = places.get(&cache.tensor) {
                    self.loaded.caches.insert((cache.layer, cache.part), place);
                    let (buffer, offset) = (Arc::clone(&self.loaded.buffers[place.0]), place.1);
                    let len = self.graph.graph.tensor(cache.tensor).nbytes();
                    self.loaded.cache_regions.push((device, Region { buffer, offset, len }));
                }
            }
            let taken: Vec<_> = self.loaded.buffers.values().skip(first).cloned().collect();
            taken.into_iter().try_for_each(|buffer| self.clear(device, buffer))?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        device: DeviceId,
        tensors: &BTreeSet<TensorId>,
        usage: Usage,
    ) -> Result<BTreeMap<TensorId, Place>, EngineError> {
        let buffer_type = self.device(device).buffer_type();
        let group = alloc_tensors(self.graph.graph.tensors(), |id| !tensors.contains(&id), &buffer_type);
        let what = if usage == Usage::Weights { "weights" } else { "KV cache" };
        let name = || self.placed.machine.device(device).name.clone();
        let group: TensorGroup = group.map_err(|why| EngineError::Load { device: name(), what, why: Box::new(why) })?;
        let first = self.loaded.buffers.len();
        let kind = ResidentBuffer { buffer_type: self.placed.machine.device(device).buffer_type, usage };
        for buffer in group.buffers().values() {
            self.loaded.buffers.push(Arc::clone(buffer));
            self.loaded.kinds.push(kind);
        }
        let place = |id: TensorId| Some((id, group.place(id)?));
        let global = |(id, p): (TensorId, loadmaster_alloc::group::GroupPlace)| {
            (id, (BufferId::new(first + p.buffer.index()), p.offset))
        };
        Ok(tensors.iter().filter_map(|&id| place(id)).map(global).collect())
    }

    fn clear(&self, device: DeviceId, buffer: Arc<dyn Buffer>) -> Result<(), EngineError> {
        let whole = Region { offset: Bytes::ZERO, len: buffer.size(), buffer };
        let failed = |error| EngineError::Upload { weight: "an empty KV cache".into(), error: Box::new(error) };
        self.zero(device, &whole).map_err(failed)
    }

    fn zero(&self, device: DeviceId, region: &Region) -> Result<(), loadmaster_backends::DeviceError> {
        let zeros = vec![0; PIECE.min(region.len.get() as usize)];
        let mut offset = Bytes::ZERO;
        while offset < region.len {
            let len = zeros.len().min(region.len.saturating_sub(offset).get() as usize);
            let part = Region {
                buffer: Arc::clone(&region.buffer),
                offset: region.offset.saturating_add(offset),
                len: Bytes(len as u64),
            };
            self.device(device).upload(&part, &zeros[..len])?;
            offset = offset.saturating_add(part.len);
        }
        Ok(())
    }

    /// The span of a piece on its way; none to the host's own memory.
    fn upload_span(&self, upload: &Upload, bytes: Bytes) -> Span {
        let machine = self.placed.machine;
        let device = &*machine.device(upload.device).name;
        if self.device(upload.device).kind() == DeviceKind::Cpu || !enabled!(target: noted::TARGET, noted::LEVEL) {
            return Span::none();
        }
        let link = format!("{}→{device}", machine.device(machine.fallback()).name);
        let tensor = &*self.placed.model.file.tensor(upload.weight.weight).name;
        let (queue, path, hop, bytes) = ("host", "direct", "whole", bytes.get());
        debug_span!(target: noted::TARGET, "copy", device, queue, link, path, hop, bytes, tensor)
    }

    /// Brings the weights to their devices, in the order of the file.
    fn bring(&mut self, progress: &mut Progress<'_>) -> Result<(), EngineError> {
        let file = &self.placed.model.file;
        let mut uploads = std::mem::take(&mut self.uploads);
        uploads.sort_by_key(|u| (file.tensor(u.weight.weight).shard, file.tensor(u.weight.weight).start));
        let size = |u: &Upload| file.tensor(u.weight.weight).size.unwrap_or_default();
        let total: Bytes = uploads.iter().map(size).sum();
        let mut done = Bytes::ZERO;
        progress(done, total);
        for upload in &uploads {
            let data = file.data(upload.weight.weight)?;
            let failed = |error| EngineError::Upload {
                weight: file.tensor(upload.weight.weight).name.clone(),
                error: Box::new(error),
            };
            let mut offset = Bytes::ZERO;
            for piece in data.chunks(PIECE) {
                let len = Bytes(piece.len() as u64);
                let to = Region {
                    buffer: Arc::clone(&upload.to.buffer),
                    offset: upload.to.offset.saturating_add(offset),
                    len,
                };
                let span = self.upload_span(upload, len);
                self.device(upload.device).upload(&to, piece).map_err(failed)?;
                drop(span);
                offset = offset.saturating_add(len);
                done = done.saturating_add(len);
                progress(done, total);
            }
            // Kernels may read to the end of a padded row.
            let padding = upload.to.part(offset, upload.to.len.saturating_sub(offset));
            if let Some(padding) = padding.filter(|p| p.len > Bytes::ZERO) {
                self.zero(upload.device, &padding).map_err(failed)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::engine::{Model, Settings};
    use loadmaster_sched::Machine;
    use std::num::NonZeroUsize;

    /// Fresh memory of virtual GPUs is poison, so that what is zero was cleared.
    #[test]
    fn every_byte_of_a_fresh_cache_is_zero_on_every_device() {
        let model = Model::embedded().unwrap();
        let machine = Machine::from_specs(&["sim:64MiB,chunk=1MiB".parse().unwrap(), "sim:64MiB".parse().unwrap()]);
        let machine = machine.unwrap();
        let layers = crate::placement::GpuLayers::Count(5);
        let settings = Settings { context: 2048, gpu_layers: layers, sequences: 2, ..Settings::new(&model.params) };
        let devices = loadmaster_sched::exec::open(&machine, NonZeroUsize::MIN).unwrap();
        let runtime = Runtime::new(machine.clone(), devices).unwrap();
        let placed = Placed::new(&model, &machine, &settings).unwrap();
        let graph = placed.graph(loadmaster_models::families::BatchShape::largest(&placed.layout, 1)).unwrap();
        let loaded = Loaded::new(&placed, &graph, &runtime, &mut |_, _| {}).unwrap();
        let mut seen = BTreeSet::new();
        for (device, region) in &loaded.cache_regions {
            let mut bytes = vec![1; region.len.get() as usize];
            runtime.device(*device).download(region, &mut bytes).unwrap();
            assert!(bytes.iter().all(|&b| b == 0), "{device}");
            seen.insert(*device);
        }
        assert_eq!(seen.len(), 3, "{seen:?}");
    }
}

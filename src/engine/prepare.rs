//! What a model needs on a machine, and how its graphs are cut: pure, without devices and without weights.

use super::error::EngineError;
use super::model::Model;
use super::placed::Placed;
use super::room::rooms;
use super::settings::{ReserveFor, Settings};
use crate::placement::LayerDevices;
use loadmaster_alloc::{AllocPlan, ArenaId, ArenaReport, BufferIds, GraphAllocator, report};
use loadmaster_graph::{BufferTypeId, Bytes, DeviceId, IdVec, PoolId, Tensor};
use loadmaster_models::families::{BatchShape, KvLayout, ModelGraph};
use loadmaster_sched::exec::{PathTable, Planned, ScheduleOptions, ScratchNeeds, SessionNeeds};
use loadmaster_sched::machine::PoolKind;
use loadmaster_sched::{Cut, LowerOptions, Lowered, Machine, SchedError, SplitPlan, cut, paper_types, place_in};
use std::collections::{BTreeMap, BTreeSet};

/// What a device must hold.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceNeed {
    /// Bytes of weights.
    pub weights: Bytes,
    /// Bytes of KV cache.
    pub cache: Bytes,
    /// Bytes to compute in: the larger need of a full micro-batch and of one token of each sequence.
    pub compute: Bytes,
    /// What no plan of these graphs can beat.
    pub bound: Bytes,
    /// Bytes of its own memory that its kernels need beside operands, one after another.
    pub workspace: Bytes,
    /// Bytes of host memory for outputs and copies on their way: a GPU's are pinned and not in its own memory.
    pub staging: Bytes,
    /// Layers, the output as the last.
    pub layers: Vec<u32>,
}

impl DeviceNeed {
    /// All of it in the device's own memory.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.weights.saturating_add(self.cache).saturating_add(self.compute).saturating_add(self.workspace)
    }
}

/// How a graph is cut.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GraphSummary {
    /// Tokens of its batch.
    pub tokens: u32,
    /// Nodes.
    pub nodes: usize,
    /// Splits.
    pub splits: usize,
    /// Copies from device to device in one run.
    pub copies: usize,
    /// Bytes of these.
    pub copied: Bytes,
    /// The same from device to device, in the order of the devices.
    pub links: Vec<LinkTraffic>,
}

/// What goes from one device to another in one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkTraffic {
    /// Where the tensors are.
    pub from: DeviceId,
    /// Where they go.
    pub to: DeviceId,
    /// Copies.
    pub copies: usize,
    /// Bytes of these.
    pub bytes: Bytes,
}

/// What is alive in a device's arena when most of it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Peak {
    /// Tokens of the graph that peaks higher.
    pub tokens: u32,
    /// The node that runs then.
    pub node: String,
    /// Tensors, largest first, with their bytes rounded up to the alignment.
    pub alive: Vec<(String, Bytes)>,
}

impl Peak {
    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.alive.iter().map(|(_, bytes)| *bytes).sum()
    }
}

/// A model prepared for a machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Prepared {
    /// Extents and types of the caches.
    pub layout: KvLayout,
    /// The device of each layer.
    pub layers: LayerDevices,
    /// What each device must hold.
    pub devices: IdVec<DeviceId, DeviceNeed>,
    /// Bytes of weights by kind of memory.
    pub weights: BTreeMap<BufferTypeId, Bytes>,
    /// The graph of a full micro-batch.
    pub full: GraphSummary,
    /// The graph of one token of each sequence.
    pub one: GraphSummary,
    /// What the peaks are made of.
    pub peaks: IdVec<DeviceId, Peak>,
    /// What is taken beside weights and caches, buffer by buffer.
    pub session: SessionNeeds,
}

/// Prepares a model: places layers, weights and caches, and plans the graphs that memory is reserved for
/// ([`Placed::reserved_shapes`]). Copies take the paths that the machine's description has.
///
/// Pure. Errors: settings that do not fit, graphs that cannot be planned. Whether the devices have what is needed is
/// for [`Prepared::check_capacity`].
pub fn prepare(model: &Model, machine: &Machine, settings: &Settings) -> Result<Prepared, EngineError> {
    prepare_on(model, machine, settings, &PathTable::expected(machine))
}

/// The same for devices whose paths are known. Errors: as [`prepare`].
pub fn prepare_on(
    model: &Model,
    machine: &Machine,
    settings: &Settings,
    paths: &PathTable,
) -> Result<Prepared, EngineError> {
    Ok(prepare_while(model, machine, settings, paths, &|_| true)?.prepared)
}

/// What a model needs as far as was looked.
#[derive(Clone, Debug)]
pub struct Outlook {
    /// What is needed at least.
    pub prepared: Prepared,
    /// Whether all graphs were looked at: then that is all.
    pub is_whole: bool,
}

/// Prepares graph by graph, the largest batch first, while what they need together lets it go on. Errors: as [`prepare`].
pub fn prepare_while(
    model: &Model,
    machine: &Machine,
    settings: &Settings,
    paths: &PathTable,
    goes_on: &dyn Fn(&Prepared) -> bool,
) -> Result<Outlook, EngineError> {
    let placed = Placed::new(model, machine, settings)?;
    let mut tally = Tally::new(&placed, paths);
    let shapes = placed.reserved_shapes();
    let mut graphs = Vec::new();
    for &shape in &shapes {
        graphs.push(tally.graph(shape)?);
        let is_whole = graphs.len() == shapes.len();
        let mut prepared = tally.so_far(&graphs);
        if is_whole && settings.reserve == ReserveFor::Measured {
            prepared.one = tally.cut_only(placed.decode_shape())?;
        }
        if is_whole || !goes_on(&prepared) {
            return Ok(Outlook { prepared, is_whole });
        }
    }
    Ok(Outlook { prepared: tally.so_far(&graphs), is_whole: true })
}

impl Prepared {
    /// What is taken of each pool, and of those that it is a part of. A GPU's pinned memory is of the first pinned pool that it reaches, or else the host's.
    #[must_use]
    pub fn pools(&self, machine: &Machine) -> IdVec<PoolId, Bytes> {
        let mut used = IdVec::filled(Bytes::ZERO, machine.pools().len());
        let mut add = |pool: PoolId, bytes: Bytes| {
            machine.pool_and_outer(pool).for_each(|p| used[p] = used[p].saturating_add(bytes));
        };
        let host = machine.compute_type(machine.fallback()).pool;
        for (id, need) in self.devices.iter() {
            add(machine.compute_type(id).pool, need.total());
            let is_pinned = |pool: &&PoolId| machine.pools()[**pool].kind == PoolKind::PinnedHost;
            add(machine.device(id).pools.iter().find(is_pinned).copied().unwrap_or(host), need.staging);
        }
        used
    }

    /// Errors: the first device whose memory is too small, with what it needs and what would help.
    pub fn check_capacity(&self, machine: &Machine) -> Result<(), EngineError> {
        let used = self.pools(machine);
        for (pool, room) in rooms(machine, &used, Bytes::ZERO).iter() {
            let Some(available) = room.capacity.filter(|_| room.missing() > Bytes::ZERO) else { continue };
            let needed = room.used;
            let counts = |id| machine.pool_and_outer(machine.compute_type(id).pool).any(|p| p == pool);
            let own = self.devices.iter().find(|(id, _)| counts(*id));
            let Some((id, need)) = own else {
                return Err(EngineError::PinnedCapacity {
                    pool: machine.pools()[pool].name.clone(),
                    available,
                    needed,
                });
            };
            return Err(EngineError::OverCapacity {
                device: machine.device(id).name.clone(),
                available,
                needed,
                weights: need.weights,
                cache: need.cache,
                compute: need.compute,
                workspace: need.workspace,
                advice: self.advice(id, machine),
            });
        }
        Ok(())
    }

    fn advice(&self, device: DeviceId, machine: &Machine) -> &'static str {
        let need = &self.devices[device];
        if device == machine.fallback() {
            return "give a shorter --ctx, a smaller --ubatch, or more layers to GPUs";
        }
        if need.weights.get() * 2 > need.total().get() {
            "give fewer --n-gpu-layers, another --tensor-split, or a larger device"
        } else {
            "give a shorter --ctx, a smaller --ubatch, or fewer --n-gpu-layers"
        }
    }
}

/// Adds up what graphs need, as a session does that binds them: with the same allocator, over memory without bytes.
struct Tally<'a, 'p> {
    placed: &'p Placed<'a>,
    options: ScheduleOptions,
    allocator: GraphAllocator,
    scratch: ScratchNeeds,
    devices: IdVec<DeviceId, DeviceNeed>,
    weights: BTreeMap<BufferTypeId, Bytes>,
    peaks: IdVec<DeviceId, Peak>,
}

impl<'a, 'p> Tally<'a, 'p> {
    fn new(placed: &'p Placed<'a>, paths: &PathTable) -> Self {
        let (settings, machine) = (placed.settings, placed.machine);
        let options = ScheduleOptions { outputs: settings.outputs(), ..ScheduleOptions::new(paths.clone()) };
        let allocator = GraphAllocator::new_n(paper_types(machine)).with_placer(settings.placer.clone());
        let devices = machine.devices().ids().map(|_| DeviceNeed::default()).collect();
        let (scratch, weights) = (ScratchNeeds::default(), BTreeMap::new());
        let peaks = machine.devices().ids().map(|_| Peak::default()).collect();
        Self { placed, options, allocator, scratch, devices, weights, peaks }
    }

    fn graph(&mut self, shape: BatchShape) -> Result<GraphSummary, EngineError> {
        let (machine, settings) = (self.placed.machine, self.placed.settings);
        let model = self.placed.graph(shape)?;
        let residency = self.placed.residency(&model, shape.tokens);
        let options = LowerOptions { n_copies: settings.copies, ..LowerOptions::default() };
        let Cut { assignment, splits, lowered } = cut(&model.graph, machine, &residency, settings.assign, &options)?;
        let place = place_in(&mut self.allocator, &lowered).map_err(SchedError::from)?;
        if !place.was_known {
            self.explain(&lowered, place.allocation.plan(), shape.tokens)?;
        }
        let planned = Planned {
            machine,
            residency: &residency,
            assignment: &assignment,
            splits: &splits,
            lowered: &lowered,
            plan: place.allocation.plan(),
            arenas: self.allocator.arenas(),
            resident: &|_| None,
        };
        self.scratch.raise_to(&ScratchNeeds::of(&planned, &self.options));
        self.resident(&model);
        Ok(summary(&model, &splits, shape))
    }

    /// How a graph is cut that nothing is reserved for.
    fn cut_only(&self, shape: BatchShape) -> Result<GraphSummary, EngineError> {
        let (machine, settings) = (self.placed.machine, self.placed.settings);
        let model = self.placed.graph(shape)?;
        let residency = self.placed.residency_of_runs(&model, shape.tokens);
        let options = LowerOptions { n_copies: settings.copies, ..LowerOptions::default() };
        let Cut { splits, .. } = cut(&model.graph, machine, &residency, settings.assign, &options)?;
        Ok(summary(&model, &splits, shape))
    }

    /// Bounds and peaks of a graph that was planned.
    fn explain(&mut self, lowered: &Lowered<'_>, plan: &AllocPlan, tokens: u32) -> Result<(), EngineError> {
        let ids = BufferIds::Each { nodes: &lowered.node_buffer_ids, leafs: &lowered.leaf_buffer_ids };
        let explained = report(&lowered.graph, self.allocator.arenas(), ids, plan).map_err(SchedError::from)?;
        for arena in explained.arenas {
            let need = &mut self.devices[DeviceId::new(arena.arena.index())];
            need.bound = need.bound.max(arena.lower_bound);
            let peak = peak(lowered, &arena, tokens);
            let highest = &mut self.peaks[DeviceId::new(arena.arena.index())];
            if peak.bytes() > highest.bytes() {
                *highest = peak;
            }
        }
        Ok(())
    }

    /// Weights and caches are the same in all graphs.
    fn resident(&mut self, model: &ModelGraph) {
        let placed = self.placed;
        let size = |buffer_type: BufferTypeId, tensor: &Tensor| {
            let memory = &placed.machine.buffer_types()[buffer_type];
            let size = memory.alloc_size(tensor);
            size.checked_align_up(memory.alignment).unwrap_or(size)
        };
        let mut counted = BTreeSet::new();
        self.weights.clear();
        for weight in &model.weights {
            let tensor = model.graph.tensor(weight.tensor);
            let buffer_type = placed.buffer_type(placed.weight_home(weight, tensor));
            // Two leafs of one weight in one memory share its bytes.
            if counted.insert((weight.weight, buffer_type)) {
                let sum = self.weights.entry(buffer_type).or_default();
                *sum = sum.saturating_add(size(buffer_type, tensor));
            }
        }
        if placed.settings.reserve == ReserveFor::Measured {
            let read = counted.iter().map(|(weight, _)| *weight).collect();
            for (buffer_type, tensor) in placed.unread(&read) {
                let sum = self.weights.entry(buffer_type).or_default();
                *sum = sum.saturating_add(size(buffer_type, &tensor));
            }
        }
        self.devices.values_mut().for_each(|d| d.cache = Bytes::ZERO);
        for cache in &model.caches {
            let device = placed.cache_device(cache.layer);
            let size = size(placed.machine.device(device).buffer_type, model.graph.tensor(cache.tensor));
            self.devices[device].cache = self.devices[device].cache.saturating_add(size);
        }
    }

    /// What is needed for the graphs until now: of a full micro-batch, then of one token, then others.
    fn so_far(&self, graphs: &[GraphSummary]) -> Prepared {
        let (full, one) = (graphs.first().cloned().unwrap_or_default(), graphs.get(1).cloned());
        let one = one.unwrap_or_else(|| full.clone());
        let placed = self.placed;
        let mut devices = self.devices.clone();
        let ids: Vec<DeviceId> = devices.ids().collect();
        for &id in &ids {
            // Devices that share a kind of memory: the first of them stands for all, as in the arenas.
            let own = placed.machine.device(id).buffer_type;
            let first = ids.iter().find(|&&d| placed.machine.device(d).buffer_type == own) == Some(&id);
            let need = &mut devices[id];
            need.compute = self.allocator.buffer_size(ArenaId::new(id.index()));
            need.weights = if first { self.weights.get(&own).copied().unwrap_or_default() } else { Bytes::ZERO };
            need.staging = self.scratch.bytes_of(id);
            need.workspace = self.scratch.workspace_of(id);
            need.layers = layers_of(&placed.layers, id);
        }
        let (layout, layers) = (placed.layout, placed.layers.clone());
        let session = SessionNeeds { chunks: self.allocator.chunk_sizes(), scratch: self.scratch.clone() };
        let (weights, peaks) = (self.weights.clone(), self.peaks.clone());
        Prepared { layout, layers, devices, weights, full, one, peaks, session }
    }
}

fn summary(model: &ModelGraph, splits: &SplitPlan, shape: BatchShape) -> GraphSummary {
    GraphSummary {
        tokens: shape.tokens,
        nodes: model.graph.nodes().len(),
        splits: splits.splits().len(),
        copies: splits.copies().len(),
        copied: splits.copies().values().map(|c| model.graph.tensor(c.tensor).nbytes()).sum(),
        links: traffic(splits),
    }
}

/// The copies of a plan, added up by their ends.
fn traffic(splits: &SplitPlan) -> Vec<LinkTraffic> {
    let mut sums: BTreeMap<(DeviceId, DeviceId), (usize, Bytes)> = BTreeMap::new();
    for copy in splits.copies().values() {
        let (copies, bytes) = sums.entry((copy.from, copy.to)).or_default();
        *copies += 1;
        *bytes = bytes.saturating_add(copy.bytes);
    }
    sums.into_iter().map(|((from, to), (copies, bytes))| LinkTraffic { from, to, copies, bytes }).collect()
}

fn peak(lowered: &Lowered<'_>, arena: &ArenaReport, tokens: u32) -> Peak {
    let node = arena.peak_node.map_or(String::new(), |item| lowered.graph.tensor(item).name.to_string());
    let alive = arena.alive_at_peak.iter().map(|h| (h.name.to_string(), h.size)).collect();
    Peak { tokens, node, alive }
}

/// The layers of a device, the output as the last.
fn layers_of(layers: &LayerDevices, device: DeviceId) -> Vec<u32> {
    let all = layers.layers.iter().chain(std::iter::once(&layers.output));
    (0..).zip(all).filter(|(_, d)| **d == device).map(|(i, _)| i).collect()
}

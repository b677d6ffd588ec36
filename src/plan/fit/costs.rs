//! Bytes and predicted times of the parts of a model.

use super::pipeline::ExpertCosts;
use super::speeds::{ASSUMED_LATENCY, ASSUMED_LINK, Speed};
use super::{FitError, Request};
use crate::engine::{GraphSummary, LinkTraffic, Placed, Prepared};
use crate::placement::{LayerDevices, Override};
use crate::plan::Choices;
use crate::plan::saved::Predicted;
use loadmaster_graph::{Bytes, DeviceId, Tensor};
use loadmaster_models::families::{BatchShape, Part as ModelPart};
use loadmaster_sched::Machine;

/// Seconds on one device.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Times {
    /// Without experts.
    pub own: f64,
    /// Experts in its memory.
    pub experts_here: f64,
    /// Experts on the host.
    pub experts_away: f64,
}

/// A layer, or the output.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Part {
    /// Bytes of weights and KV cache, without experts.
    pub bytes: u64,
    /// Bytes of experts.
    pub experts: u64,
    /// The bytes by device, as its memory pads them.
    pub bytes_on: Vec<u64>,
    /// The bytes of experts by device.
    pub experts_on: Vec<u64>,
    /// What a device with it has at once while it computes, whatever else it has: operands and results of products that
    /// read its weights or its cache.
    pub floor: u64,
    /// For a token, by device.
    pub decode: Vec<Times>,
    /// For a micro-batch, by device.
    pub prefill: Vec<Times>,
    load: Load,
    expert_load: Load,
    /// Of the cache, where it is not with its layer.
    away_load: Load,
}

/// What a part reads and computes.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Load {
    /// Bytes for a token.
    read: f64,
    /// Bytes for a micro-batch.
    read_full: f64,
    /// Multiplications and additions of a token.
    work: f64,
}

/// Who computes with experts that are on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Upload {
    /// The GPU that they are sent to.
    pub device: DeviceId,
    /// Tokens of a micro-batch from which on it takes them, as the machine says.
    pub now: u64,
    /// Tokens from which on that is best: never far from the faster side. `None`: for no micro-batch up to `most`.
    pub best: Option<u32>,
    /// Tokens of the largest micro-batch.
    pub most: u32,
}

/// All parts.
#[derive(Clone, PartialEq, Debug)]
pub struct Costs {
    /// Layers, then the output.
    pub parts: Vec<Part>,
    /// What the host has whatever is placed where: the token embedding, and the KV cache if that is kept there.
    pub host_fixed: Bytes,
    /// Bytes of one token's activations.
    pub row_bytes: f64,
    /// Tokens of a step.
    pub one_tokens: u32,
    /// Tokens of a micro-batch.
    pub full_tokens: u32,
}

/// Seconds to carry bytes from one device to another.
#[must_use]
pub fn transfer(machine: &Machine, from: DeviceId, to: DeviceId, bytes: f64) -> f64 {
    match machine.link(from, to) {
        Some(link) => link.latency_ns as f64 * 1e-9 + bytes / (link.bandwidth.get().max(1)) as f64,
        None => ASSUMED_LATENCY + bytes / ASSUMED_LINK,
    }
}

/// Seconds for all copies of a graph, one after another; `uploaded` bytes from the host are not counted.
fn carried(machine: &Machine, graph: &GraphSummary, uploaded: Bytes) -> f64 {
    let mut uncounted = uploaded;
    let link = |l: &LinkTraffic| {
        let skipped = if l.from == machine.fallback() { l.bytes.min(uncounted) } else { Bytes::ZERO };
        uncounted = uncounted.saturating_sub(skipped);
        let first = transfer(machine, l.from, l.to, l.bytes.saturating_sub(skipped).get() as f64);
        first + l.copies.saturating_sub(1) as f64 * transfer(machine, l.from, l.to, 0.0)
    };
    graph.links.iter().map(link).sum()
}

/// GPUs that take such a batch although its weights are on the host.
fn uploaders(machine: &Machine, tokens: u32) -> impl Iterator<Item = DeviceId> + '_ {
    let takes = move |min: u64| u64::from(tokens) >= min;
    machine.devices().iter().filter(move |(_, d)| d.offload_min_batch.is_some_and(takes)).map(|(id, _)| id)
}

fn seconds(load: Load, speed: Speed, tokens: u32) -> (f64, f64) {
    let decode = (load.read / speed.bandwidth).max(load.work / speed.operations);
    let full = (load.read_full / speed.bandwidth).max(load.work * f64::from(tokens) / speed.operations);
    (decode, full)
}

impl Costs {
    /// Of a model under some choices. Errors: those of preparing it.
    pub fn new(request: &Request<'_>, choices: &Choices) -> Result<Self, FitError> {
        let (model, machine) = (request.model, request.machine);
        let settings = choices.settings(&model.params, machine, request.placer.clone())?;
        let placed = Placed::new(model, machine, &settings)?;
        let graph = placed.graph(BatchShape::largest(&placed.layout, settings.decode_tokens()))?;
        let layers = model.params.layers.len();
        let zeros = vec![0; machine.devices().len()];
        let empty = Part { bytes_on: zeros.clone(), experts_on: zeros, ..Part::default() };
        let mut parts = vec![empty; layers + 1];
        let host = machine.fallback();
        let mut host_fixed = Bytes::ZERO;
        let full_tokens = settings.largest_micro_batch();
        let mut seen = std::collections::BTreeSet::new();
        for weight in &graph.weights {
            let tensor = graph.graph.tensor(weight.tensor);
            let at = match weight.part {
                ModelPart::Input => {
                    if seen.insert((weight.weight, usize::MAX)) {
                        host_fixed = host_fixed.saturating_add(padded_on(machine, host, tensor));
                    }
                    continue;
                }
                ModelPart::Layer(id) => id.index(),
                ModelPart::Output => layers,
            };
            // What belongs to no layer is on every device that has one: small, and the same in all placements of a kind.
            let is_shared = at < layers && !tensor.name.starts_with("blk.");
            if !is_shared && seen.insert((weight.weight, at)) {
                add_weight(&mut parts[at], &placed, tensor, full_tokens);
            }
        }
        for cache in &graph.caches {
            let tensor = graph.graph.tensor(cache.tensor);
            let part = &mut parts[cache.layer.index()];
            if choices.kv_offload {
                add_bytes(machine, tensor, &mut part.bytes, &mut part.bytes_on);
            } else {
                host_fixed = host_fixed.saturating_add(padded_on(machine, host, tensor));
            }
            let read = tensor.nbytes().get() as f64;
            let load = if choices.kv_offload { &mut part.load } else { &mut part.away_load };
            load.read += read;
            load.read_full += read;
            load.work += tensor.elements() as f64 * 2.0;
        }
        super::floors::fill(&mut parts, &graph, machine, choices.kv_offload);
        let one_tokens = settings.decode_tokens();
        let row_bytes = f64::from(model.params.embedding) * 4.0;
        let mut costs = Self { parts, host_fixed, row_bytes, one_tokens, full_tokens };
        costs.time(machine, request.speeds);
        Ok(costs)
    }

    fn time(&mut self, machine: &Machine, speeds: &[Speed]) {
        let host = machine.fallback();
        let (tokens, row) = (self.full_tokens, self.row_bytes);
        for part in &mut self.parts {
            let on = |device: DeviceId| {
                let speed = speeds[device.index()];
                let (mut own, mut own_full) = seconds(part.load, speed, tokens);
                let (here, here_full) = seconds(part.expert_load, speed, tokens);
                let (away, away_full) = seconds(part.expert_load, speeds[host.index()], tokens);
                let trip = |n: f64| {
                    if device == host {
                        0.0
                    } else {
                        transfer(machine, device, host, n * row) + transfer(machine, host, device, n * row)
                    }
                };
                if part.away_load != Load::default() {
                    let (attention, attention_full) = seconds(part.away_load, speeds[host.index()], tokens);
                    own += attention + trip(1.0);
                    own_full += attention_full + trip(f64::from(tokens));
                }
                // A whole micro-batch may rather have the experts uploaded that it uses.
                let upload = transfer(machine, host, device, part.expert_load.read_full) + here_full;
                let decode = Times { own, experts_here: here, experts_away: away + trip(1.0) };
                let away_full = (away_full + trip(f64::from(tokens))).min(upload);
                (decode, Times { own: own_full, experts_here: here_full, experts_away: away_full })
            };
            let times: Vec<(Times, Times)> = machine.devices().ids().map(on).collect();
            (part.decode, part.prefill) = times.into_iter().unzip();
            let uploading = uploaders(machine, tokens).map(|gpu| {
                let upload = |bytes: f64| transfer(machine, host, gpu, bytes);
                let there = part.prefill[gpu.index()];
                (upload(part.bytes as f64) + there.own, upload(part.expert_load.read_full) + there.experts_here)
            });
            let fastest = uploading.min_by(|a, b| (a.0 + a.1).total_cmp(&(b.0 + b.1)));
            if let Some((own, experts)) = fastest {
                let at_home = &mut part.prefill[host.index()];
                at_home.own = at_home.own.min(own);
                at_home.experts_here = at_home.experts_here.min(experts);
                at_home.experts_away = at_home.experts_away.min(experts);
            }
        }
    }

    /// Micro-batches of the longest prompt that is given at once.
    #[must_use]
    pub fn micro_batches(&self, choices: &Choices) -> u32 {
        choices.batch.min(choices.ctx).div_ceil(self.full_tokens.max(1))
    }

    /// Seconds of each device for a micro-batch.
    #[must_use]
    pub fn stage_seconds(&self, machine: &Machine, layers: &LayerDevices) -> Vec<f64> {
        let mut sums = vec![0.0; machine.devices().len()];
        for (part, device) in self.parts.iter().zip(layers.layers.iter().chain([&layers.output])) {
            let times = part.prefill[device.index()];
            sums[device.index()] += times.own + times.experts_here;
        }
        sums
    }

    /// From how many tokens of a micro-batch on experts on the host are best sent to the GPU that takes them over, where
    /// some are there in what was prepared.
    #[must_use]
    pub fn upload(&self, request: &Request<'_>, choices: &Choices, prepared: &Prepared) -> Option<Upload> {
        let (machine, experts) = (request.machine, request.model.params.experts?);
        let (host, away) = (machine.fallback(), experts_by_name(request, choices));
        let device = machine.devices().iter().find(|(_, d)| d.offload_min_batch.is_some())?.0;
        let on_host = |i: usize| away[i] || prepared.layers.layers.get(i) == Some(&host);
        let part = self.parts.iter().enumerate().find(|(i, part)| part.experts > 0 && on_host(*i))?.1;
        let of = |d: DeviceId| (request.speeds[d.index()].bandwidth, request.speeds[d.index()].operations);
        let costs = ExpertCosts {
            count: experts.count,
            used: experts.used,
            bytes: part.expert_load.read / f64::from(experts.used.max(1)),
            operations: part.expert_load.work / f64::from(experts.used.max(1)),
            link: machine.link(host, device).map_or(ASSUMED_LINK, |link| link.bandwidth.get().max(1) as f64),
            host: of(host),
            device: of(device),
        };
        let now = machine.device(device).offload_min_batch?;
        Some(Upload { device, now, best: costs.upload_from(self.full_tokens), most: self.full_tokens })
    }

    /// Predicted speed of what was prepared.
    #[must_use]
    pub fn predict(&self, request: &Request<'_>, choices: &Choices, prepared: &Prepared) -> Predicted {
        let machine = request.machine;
        let host = machine.fallback();
        let away = experts_by_name(request, choices);
        let (mut decode, mut prefill, mut uploaded) = (0.0, vec![0.0; machine.devices().len()], 0u64);
        let devices = prepared.layers.layers.iter().chain([&prepared.layers.output]);
        for (i, (part, device)) in self.parts.iter().zip(devices).enumerate() {
            let pick = |t: Times| t.own + if away[i] { t.experts_away } else { t.experts_here };
            decode += pick(part.decode[device.index()]);
            prefill[device.index()] += pick(part.prefill[device.index()]);
            uploaded += if *device == host { part.bytes + part.experts } else { 0 };
            uploaded += if *device != host && away[i] { part.experts } else { 0 };
        }
        decode += carried(machine, &prepared.one, Bytes::ZERO);
        let micro_batches = self.micro_batches(choices);
        // Uploads of weights are in the parts' times already.
        prefill[host.index()] += carried(machine, &prepared.full, Bytes(uploaded));
        let stages: Vec<f64> = prefill.into_iter().filter(|&s| s > 0.0).collect();
        let whole = super::pipeline::pipelined(&stages, micro_batches, choices.copies);
        let rate = |tokens: f64, seconds: f64| if seconds > 0.0 { tokens / seconds } else { 0.0 };
        Predicted {
            decode: rate(f64::from(self.one_tokens), decode),
            prefill: rate(f64::from(micro_batches) * f64::from(self.full_tokens), whole),
            gap: None,
        }
    }
}

/// By layer, then the output: whether an option by name puts its experts on the host.
fn experts_by_name(request: &Request<'_>, choices: &Choices) -> Vec<bool> {
    let (machine, params) = (request.machine, &request.model.params);
    let settings = choices.settings(params, machine, request.placer.clone());
    let away = |i: usize| {
        let name = format!("blk.{i}.ffn_up_exps.weight");
        settings.as_ref().is_ok_and(|s| Override::find(&s.overrides, &name) == Some(machine.fallback()))
    };
    (0..=params.layers.len()).map(away).collect()
}

fn add_weight(part: &mut Part, placed: &Placed<'_>, tensor: &Tensor, tokens: u32) {
    let machine = placed.machine;
    let read = tensor.nbytes().get() as f64;
    let work = tensor.elements() as f64 * 2.0;
    let Some(experts) = placed.model.params.experts.filter(|_| tensor.name.contains("_exps")) else {
        add_bytes(machine, tensor, &mut part.bytes, &mut part.bytes_on);
        part.load.read += read;
        part.load.read_full += read;
        part.load.work += work;
        return;
    };
    let share = f64::from(experts.used) / f64::from(experts.count.max(1));
    let touched = 1.0 - (1.0 - share.min(1.0)).powf(f64::from(tokens));
    add_bytes(machine, tensor, &mut part.experts, &mut part.experts_on);
    part.expert_load.read += read * share;
    part.expert_load.read_full += read * touched;
    part.expert_load.work += work * share;
}

/// Adds what a tensor takes: in the memory that pads it most, and in that of each device.
fn add_bytes(machine: &Machine, tensor: &Tensor, most: &mut u64, on: &mut [u64]) {
    let sizes: Vec<u64> = machine.devices().ids().map(|d| padded_on(machine, d, tensor).get()).collect();
    *most = most.saturating_add(sizes.iter().copied().max().unwrap_or(0));
    on.iter_mut().zip(sizes).for_each(|(sum, size)| *sum = sum.saturating_add(size));
}

/// What a tensor takes in a device's memory.
fn padded_on(machine: &Machine, device: DeviceId, tensor: &Tensor) -> Bytes {
    let memory = machine.compute_type(device);
    memory.alloc_size(tensor).checked_align_up(memory.alignment).unwrap_or(Bytes::MAX)
}

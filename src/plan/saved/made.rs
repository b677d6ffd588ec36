//! From what was prepared to a plan.

use super::identity::machine_devices;
use super::{
    AlivePlan, DevicePlan, GraphPlan, LayerPlan, LinkPlan, ModelIdentity, PeakPlan, Policy, PoolPlan, SavedPlan,
    VERSION,
};
use crate::engine::{GraphSummary, Model, Peak, Prepared, Room, rooms};
use crate::placement::Override;
use crate::plan::Choices;
use loadmaster_graph::{Bytes, DeviceId, IdVec, PoolId};
use loadmaster_sched::Machine;
use loadmaster_sched::machine::Pool;
use std::collections::{BTreeMap, BTreeSet};

impl SavedPlan {
    /// A plan of what was prepared, with `reserved` bytes kept free in every pool of a device.
    #[must_use]
    pub fn new(model: &Model, machine: &Machine, choices: &Choices, prepared: &Prepared, reserved: Bytes) -> Self {
        let rooms = rooms(machine, &prepared.pools(machine), reserved);
        let devices = prepared.devices.iter().map(|(id, need)| DevicePlan {
            name: machine.device(id).name.to_string(),
            weights: need.weights.get(),
            kv: need.cache.get(),
            compute: need.compute.get(),
            compute_bound: need.bound.get(),
            workspace: need.workspace.get(),
            staging: need.staging.get(),
            free: rooms[machine.compute_type(id).pool].left(),
            total: need.total().get(),
            peak: peak(&prepared.peaks[id]),
        });
        Self {
            version: VERSION,
            model: ModelIdentity::of(model),
            machine: machine_devices(machine),
            choices: choices.clone(),
            fits: rooms.values().all(|r| r.missing() == Bytes::ZERO),
            devices: devices.collect(),
            splits: prepared.one.splits,
            copies: choices.copies,
            transfers: prepared.one.copies,
            bytes_per_token: prepared.one.copied.get() / u64::from(prepared.one.tokens.max(1)),
            prefill: graph(&prepared.full),
            links: links(machine, prepared),
            layers: layers(model, machine, choices, prepared),
            predicted: None,
            llama_cpp_flags: choices.llama_cpp_flags(),
            pools: pools(machine, &rooms),
            policy: Policy::Best,
        }
    }
}

fn graph(summary: &GraphSummary) -> GraphPlan {
    let bytes = summary.copied.get();
    GraphPlan { tokens: summary.tokens, splits: summary.splits, transfers: summary.copies, bytes }
}

fn peak(peak: &Peak) -> PeakPlan {
    let alive = peak.alive.iter().map(|(tensor, bytes)| AlivePlan { tensor: tensor.clone(), bytes: bytes.get() });
    PeakPlan { node: peak.node.clone(), tokens: peak.tokens, bytes: peak.bytes().get(), alive: alive.collect() }
}

/// Links that either graph uses, in the order of the devices.
fn links(machine: &Machine, prepared: &Prepared) -> Vec<LinkPlan> {
    let (one, full) = (&prepared.one, &prepared.full);
    let ends: BTreeSet<_> = one.links.iter().chain(&full.links).map(|l| (l.from, l.to)).collect();
    let name = |d| machine.device(d).name.to_string();
    let link = |(from, to)| {
        let of = |graph: &GraphSummary| {
            let found = graph.links.iter().find(|l| (l.from, l.to) == (from, to));
            found.map_or((0, 0), |l| (l.copies, l.bytes.get()))
        };
        let ((transfers, bytes), (prefill_transfers, prefill_bytes)) = (of(one), of(full));
        let bytes_per_token = bytes / u64::from(one.tokens.max(1));
        LinkPlan { from: name(from), to: name(to), transfers, bytes_per_token, prefill_transfers, prefill_bytes }
    };
    ends.into_iter().map(link).collect()
}

/// Pools with what the devices take of them; every byte once in each pool that it is in.
fn pools(machine: &Machine, rooms: &IdVec<PoolId, Room>) -> Vec<PoolPlan> {
    let pool = |(pool, room): (&Pool, &Room)| PoolPlan {
        name: pool.name.to_string(),
        capacity: room.capacity.map(Bytes::get),
        reserved: room.reserved.get(),
        used: room.used.get(),
        short: room.missing().get(),
    };
    machine.pools().values().zip(rooms.values()).map(pool).collect()
}

/// Layers and the output, with the weights that an option by name put elsewhere.
fn layers(model: &Model, machine: &Machine, choices: &Choices, prepared: &Prepared) -> Vec<LayerPlan> {
    let name = |d| machine.device(d).name.to_string();
    let plan = |(layer, d): (String, DeviceId)| LayerPlan { layer, device: name(d), elsewhere: BTreeMap::new() };
    let numbered = prepared.layers.layers.iter().enumerate().map(|(i, &d)| (i.to_string(), d));
    let mut layers: Vec<LayerPlan> =
        numbered.chain([("output".to_owned(), prepared.layers.output)]).map(plan).collect();
    // What was prepared has overrides that can be read.
    let overrides = choices.overrides(machine).unwrap_or_default();
    for tensor in model.file.tensors().iter().filter(|_| !overrides.is_empty()) {
        let number = tensor.name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).map(|(n, _)| n.parse());
        let at = if tensor.name.starts_with("output") { Some(Ok(layers.len() - 1)) } else { number };
        let Some(layer) = at.and_then(Result::<usize, _>::ok).and_then(|i| layers.get_mut(i)) else { continue };
        let Some(home) = Override::find(&overrides, &tensor.name).map(name).filter(|h| *h != layer.device) else {
            continue;
        };
        let bytes = layer.elsewhere.entry(home).or_default();
        *bytes = bytes.saturating_add(tensor.size.map_or(0, Bytes::get));
    }
    layers
}

//! From what was prepared to a plan.

use super::identity::machine_devices;
use super::{
    AlivePlan, DevicePlan, GraphPlan, LayerPlan, LinkPlan, ModelIdentity, PeakPlan, PoolPlan, SavedPlan, VERSION,
};
use crate::engine::{GraphSummary, Model, Peak, Prepared};
use crate::plan::Choices;
use loadmaster_graph::Bytes;
use loadmaster_sched::Machine;
use std::collections::BTreeSet;

impl SavedPlan {
    /// A plan of what was prepared, with `reserved` bytes kept free in every pool of a device.
    #[must_use]
    pub fn new(model: &Model, machine: &Machine, choices: &Choices, prepared: &Prepared, reserved: Bytes) -> Self {
        let pools = pools(machine, prepared, reserved);
        let devices = prepared.devices.iter().map(|(id, need)| {
            let pool = &pools[machine.compute_type(id).pool.index()];
            let free = pool
                .capacity
                .map(|c| signed(c).saturating_sub(signed(pool.reserved)).saturating_sub(signed(pool.used)));
            DevicePlan {
                name: machine.device(id).name.to_string(),
                weights: need.weights.get(),
                kv: need.cache.get(),
                compute: need.compute.get(),
                compute_bound: need.bound.get(),
                staging: need.staging.get(),
                free,
                total: need.total().get(),
                peak: peak(&prepared.peaks[id]),
            }
        });
        let name = |d| machine.device(d).name.to_string();
        let layers = prepared.layers.layers.iter().enumerate();
        let layers = layers.map(|(i, &d)| LayerPlan { layer: i.to_string(), device: name(d) });
        let output = LayerPlan { layer: "output".to_owned(), device: name(prepared.layers.output) };
        Self {
            version: VERSION,
            model: ModelIdentity::of(model),
            machine: machine_devices(machine),
            choices: choices.clone(),
            fits: pools.iter().all(|p| p.short == 0),
            devices: devices.collect(),
            splits: prepared.one.splits,
            copies: choices.copies,
            transfers: prepared.one.copies,
            bytes_per_token: prepared.one.copied.get() / u64::from(prepared.one.tokens.max(1)),
            prefill: graph(&prepared.full),
            links: links(machine, prepared),
            layers: layers.chain([output]).collect(),
            predicted: None,
            llama_cpp_flags: choices.llama_cpp_flags(),
            pools,
        }
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
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
fn pools(machine: &Machine, prepared: &Prepared, reserved: Bytes) -> Vec<PoolPlan> {
    let all = prepared.pools(machine);
    let pool = |(pool, &used): (&loadmaster_sched::machine::Pool, &Bytes)| {
        let capacity = pool.capacity.map(Bytes::get);
        let reserved = reserved.get();
        let short = capacity.map_or(0, |c| used.get().saturating_add(reserved).saturating_sub(c));
        PoolPlan { name: pool.name.to_string(), capacity, reserved, used: used.get(), short }
    };
    machine.pools().values().zip(all.values()).map(pool).collect()
}

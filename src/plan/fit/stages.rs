//! From a model and a machine to the search's row of items and devices, and from its answer back to options.

use super::core::{Arena, Goal, Item, Problem, Stage};
use super::costs::{self, Costs, Part};
use super::{Choices, Purpose, Request};
use loadmaster_graph::DeviceId;
use loadmaster_sched::Machine;
use loadmaster_sched::machine::Pool;
use std::ops::Range;

/// What a search is for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goals {
    pub(super) purpose: Purpose,
    /// Micro-batches of a prompt of one batch.
    pub(super) micro_batches: u32,
    /// Of which so many are under way at once.
    pub(super) depth: u32,
    pub(super) experts_may_leave: bool,
}

impl Goals {
    pub(super) fn goal(&self) -> Goal {
        match self.purpose {
            Purpose::Decode => Goal::Sum,
            Purpose::Prefill => Goal::Pipeline { micro_batches: self.micro_batches, depth: self.depth },
            Purpose::Memory => Goal::Slowest,
        }
    }
}

impl Request<'_> {
    pub(super) fn problem<'p>(
        &self,
        stages: &Stages,
        costs: &Costs,
        goals: Goals,
        arena: &'p dyn Arena,
    ) -> Problem<'p> {
        let purpose = goals.purpose;
        let machine = self.machine;
        let room = |p: &Pool| p.capacity.map(|c| c.saturating_sub(self.reserve).get());
        let mut pools: Vec<Option<u64>> = machine.pools().values().map(room).collect();
        let pool = |d: DeviceId| machine.compute_type(d).pool.index();
        let all_pools = |d: DeviceId| -> Vec<usize> {
            machine.pool_and_outer(machine.compute_type(d).pool).map(|p| p.index()).collect()
        };
        let host = all_pools(stages.devices[0]);
        host.iter().for_each(|&p| pools[p] = pools[p].map(|room| room.saturating_sub(costs.host_fixed.get())));
        let by_stage = |of: &[u64]| stages.devices.iter().map(|d| of[d.index()]).collect::<Vec<u64>>();
        let item = |part: &Part| match purpose {
            Purpose::Memory => {
                let share = |&d: &DeviceId| pools[pool(d)].map_or(0.0, |room| 1.0 / room.max(1) as f64);
                let seconds = |bytes: u64| move |d: &DeviceId| share(d) * bytes as f64;
                // The host is the last resort: every byte there counts as a device's whole memory.
                let mut own: Vec<f64> = stages.devices.iter().map(seconds(part.bytes)).collect();
                own[0] = 1.0;
                let here = stages.devices.iter().map(seconds(part.experts)).collect();
                Item {
                    bytes: part.bytes,
                    experts: part.experts,
                    bytes_on: by_stage(&part.bytes_on),
                    experts_on: by_stage(&part.experts_on),
                    seconds: own,
                    experts_here: here,
                    experts_away: vec![0.5; stages.devices.len()],
                }
            }
            Purpose::Decode | Purpose::Prefill => {
                let times = if purpose == Purpose::Decode { &part.decode } else { &part.prefill };
                let by =
                    |of: &dyn Fn(&costs::Times) -> f64| stages.devices.iter().map(|d| of(&times[d.index()])).collect();
                Item {
                    bytes: part.bytes,
                    experts: part.experts,
                    bytes_on: by_stage(&part.bytes_on),
                    experts_on: by_stage(&part.experts_on),
                    seconds: by(&|t| t.own),
                    experts_here: by(&|t| t.experts_here),
                    experts_away: by(&|t| t.experts_away),
                }
            }
        };
        let tokens = if purpose == Purpose::Decode { costs.one_tokens } else { costs.full_tokens };
        let seconds = |from: &DeviceId, to: &DeviceId| match (purpose, from == to) {
            (Purpose::Memory, _) | (_, true) => 0.0,
            _ => costs::transfer(machine, *from, *to, costs.row_bytes * f64::from(tokens)),
        };
        let cut = stages.devices.iter().map(|a| stages.devices.iter().map(|b| seconds(a, b)).collect()).collect();
        Problem {
            items: costs.parts.iter().map(item).collect(),
            stages: stages.devices.iter().map(|&d| Stage { pools: all_pools(d) }).collect(),
            host,
            pools,
            cut,
            arena,
            experts_may_leave: goals.experts_may_leave,
            goal: goals.goal(),
            must_use: Vec::new(),
        }
    }
}

/// Devices in the order in which layers go to them: the host, then the GPUs by priority.
pub(super) struct Stages {
    /// The row.
    pub(super) devices: Vec<DeviceId>,
}

impl Stages {
    pub(super) fn of(machine: &Machine) -> Self {
        let host = machine.fallback();
        let gpus =
            machine.devices().iter().filter(|(_, d)| d.kind == loadmaster_sched::DeviceKind::Gpu).map(|(id, _)| id);
        Self { devices: std::iter::once(host).chain(gpus.filter(|&g| g != host)).collect() }
    }

    /// The options that lead to a solution: shares are counts of layers, so that the rule of shares gives these cuts.
    pub(super) fn choices(&self, machine: &Machine, ranges: &[Range<usize>], here: &[bool], base: &Choices) -> Choices {
        let counts: Vec<u32> = ranges[1..].iter().map(|r| r.len() as u32).collect();
        let offloaded: u32 = counts.iter().sum();
        let first = ranges[0].end;
        let away = (first..).zip(&here[first..]).filter(|(_, here)| !**here).map(|(i, _)| i.to_string());
        let away: Vec<String> = away.collect();
        let host = &machine.device(self.devices[0]).name;
        let experts = (!away.is_empty()).then(|| format!(r"^blk\.({})\..*_exps\.={host}", away.join("|")));
        Choices {
            n_gpu_layers: Some(offloaded),
            tensor_split: (offloaded > 0).then(|| counts.iter().map(|&n| n as f32).collect()),
            override_tensor: experts.into_iter().collect(),
            ..base.clone()
        }
    }
}

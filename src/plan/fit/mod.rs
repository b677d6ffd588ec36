//! The best placement of a model: over real bytes and predicted times, checked by the planner that runs it.

pub mod core;
pub mod costs;
pub mod pipeline;
pub mod speeds;

use self::core::{Goal, Item, Problem, Solution, Stage, WhyEmpty};
use super::{Choices, ChoicesError};
use crate::engine::{EngineError, Model, Prepared, prepare};
use costs::{Costs, Part};
use loadmaster_alloc::Placer;
use loadmaster_graph::{Bytes, DeviceId};
use loadmaster_sched::Machine;
use std::collections::BTreeMap;
use std::ops::Range;

/// Candidates that are planned at most.
const MAX_ROUNDS: usize = 32;
/// Most pipeline copies that are chosen unasked.
const MAX_DEPTH: u32 = 4;
/// Stands for memory whose size is not known.
const UNKNOWN: u64 = 1 << 60;

/// What is to be fast, or small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// One token after another.
    Decode,
    /// Prompts.
    Prefill,
    /// The fullest device has the most room left.
    Memory,
}

/// Where to place a model.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The model.
    pub model: &'a Model,
    /// The machine.
    pub machine: &'a Machine,
    /// Speeds, by device.
    pub speeds: &'a [speeds::Speed],
    /// How tensors are placed.
    pub placer: &'a Placer,
    /// Kept free in every pool.
    pub reserve: Bytes,
}

/// A chosen placement.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// How to get it.
    pub choices: Choices,
    /// What it takes.
    pub prepared: Prepared,
    /// By how much a better one could beat it at most, as a share of its cost; `None`: the search left something out.
    pub gap: Option<f64>,
    /// Devices without layers, and why.
    pub empty: Vec<(DeviceId, WhyEmpty)>,
}

/// Why nothing was chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// Choices that make no sense.
    #[error(transparent)]
    Choices(#[from] ChoicesError),
    /// The model cannot be prepared.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// No placement fits.
    #[error("no placement over {devices} devices fits")]
    NoneFits {
        /// Devices.
        devices: usize,
    },
}

impl Request<'_> {
    /// Prepares the model as chosen.
    pub fn prepare(&self, choices: &Choices) -> Result<Prepared, FitError> {
        let settings = choices.settings(&self.model.params, self.machine, self.placer.clone())?;
        Ok(prepare(self.model, self.machine, &settings)?)
    }

    /// Bytes that are missing, by pool.
    #[must_use]
    pub fn short(&self, prepared: &Prepared) -> Bytes {
        let used = prepared.pools(self.machine);
        let short = |(pool, used): (&loadmaster_sched::machine::Pool, &Bytes)| {
            pool.capacity.map_or(Bytes::ZERO, |c| used.saturating_add(self.reserve).saturating_sub(c))
        };
        self.machine.pools().values().zip(used.values()).map(short).sum()
    }

    /// The best placement for a purpose. Candidates come from the search over layers with the arenas known so far, and
    /// each is planned as it would run; those that do not fit teach the search their arenas.
    ///
    /// Errors: a model that cannot be prepared, or none that fits.
    pub fn fit(&self, base: &Choices, purpose: Purpose) -> Result<Fitted, FitError> {
        let stages = Stages::of(self.machine);
        let plain = Choices { n_gpu_layers: None, tensor_split: None, override_tensor: Vec::new(), ..base.clone() };
        let costs = Costs::new(self, &plain)?;
        let mut known = Arenas::default();
        for _ in 0..MAX_ROUNDS {
            let before = known.clone();
            let learned = |stage: usize, range: Range<usize>| before.guess(stage, &range, costs.parts.len());
            let problem = self.problem(&stages, &costs, purpose, &learned);
            let Some(solution) = self::core::solve(&problem) else { break };
            let choices = stages.choices(self.machine, &solution, &plain);
            let prepared = self.prepare(&choices)?;
            let fits = self.short(&prepared) == Bytes::ZERO;
            known.learn(&stages, &solution, &prepared, costs.parts.len());
            if !fits {
                continue;
            }
            // Arenas depend on more than their own layers, so that only nothing is less than all of them.
            let floor = |_: usize, _: Range<usize>| 0;
            let bound = self::core::solve(&self.problem(&stages, &costs, purpose, &floor));
            let (goal, cost) = (problem.goal, solution.cost(problem.goal));
            let gap = bound.filter(|b| b.exact && cost > 0.0).map(|b| (1.0 - b.cost(goal) / cost).max(0.0));
            let unused = (1..stages.devices.len()).filter(|&s| solution.ranges[s].is_empty());
            let empty = unused.map(|s| (stages.devices[s], self::core::why_empty(&problem, &solution, s))).collect();
            return Ok(Fitted { choices, prepared, gap, empty });
        }
        Err(FitError::NoneFits { devices: stages.devices.len() })
    }

    /// The pipeline depth for a prompt of one batch: the smallest that is as fast as any, and fits.
    pub fn with_depth(&self, fitted: &Fitted) -> Result<Fitted, FitError> {
        let costs = Costs::new(self, &fitted.choices)?;
        let seconds: Vec<f64> = costs.stage_seconds(self.machine, &fitted.prepared.layers);
        let used: Vec<f64> = seconds.into_iter().filter(|&s| s > 0.0).collect();
        let micro_batches = fitted.choices.batch.min(fitted.choices.ctx).div_ceil(fitted.choices.ubatch.max(1));
        let (depth, _) = pipeline::best_depth(&used, micro_batches, MAX_DEPTH);
        for copies in (2..=depth).rev() {
            let choices = Choices { copies, ..fitted.choices.clone() };
            let prepared = self.prepare(&choices)?;
            if self.short(&prepared) == Bytes::ZERO {
                return Ok(Fitted { choices, prepared, ..fitted.clone() });
            }
        }
        Ok(fitted.clone())
    }

    fn problem<'p>(
        &self,
        stages: &Stages,
        costs: &Costs,
        purpose: Purpose,
        arena: self::core::ArenaSize<'p>,
    ) -> Problem<'p> {
        let machine = self.machine;
        let mut pools: Vec<u64> = machine
            .pools()
            .values()
            .map(|p| p.capacity.map_or(UNKNOWN, |c| c.saturating_sub(self.reserve).get()))
            .collect();
        let pool = |d: DeviceId| machine.compute_type(d).pool.index();
        let host = pool(stages.devices[0]);
        pools[host] = pools[host].saturating_sub(costs.host_fixed.get());
        let item = |part: &Part| match purpose {
            Purpose::Memory => {
                let share = |&d: &DeviceId| 1.0 / pools[pool(d)].max(1) as f64;
                let seconds = |bytes: u64| move |d: &DeviceId| share(d) * bytes as f64;
                // The host is the last resort: every byte there counts as a device's whole memory.
                let mut own: Vec<f64> = stages.devices.iter().map(seconds(part.bytes)).collect();
                own[0] = 1.0;
                let here = stages.devices.iter().map(seconds(part.experts)).collect();
                Item {
                    bytes: part.bytes,
                    experts: part.experts,
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
            stages: stages.devices.iter().map(|&d| Stage { pools: vec![pool(d)] }).collect(),
            host: vec![host],
            pools,
            cut,
            arena,
            goal: if purpose == Purpose::Memory { Goal::Slowest } else { Goal::Sum },
            must_use: Vec::new(),
        }
    }
}

/// Devices in the order in which layers go to them: the host, then the GPUs by priority.
struct Stages {
    devices: Vec<DeviceId>,
}

impl Stages {
    fn of(machine: &Machine) -> Self {
        let host = machine.fallback();
        let gpus =
            machine.devices().iter().filter(|(_, d)| d.kind == loadmaster_sched::DeviceKind::Gpu).map(|(id, _)| id);
        Self { devices: std::iter::once(host).chain(gpus.filter(|&g| g != host)).collect() }
    }

    /// The options that lead to a solution: shares are counts of layers, so that the rule of shares gives these cuts.
    fn choices(&self, machine: &Machine, solution: &Solution, base: &Choices) -> Choices {
        let counts: Vec<u32> = solution.ranges[1..].iter().map(|r| r.len() as u32).collect();
        let offloaded: u32 = counts.iter().sum();
        let first = solution.ranges[0].end;
        let away =
            (first..).zip(&solution.experts_here[first..]).filter(|(_, here)| !**here).map(|(i, _)| i.to_string());
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

/// Arenas of the candidates planned so far.
#[derive(Clone, Default)]
struct Arenas {
    exact: BTreeMap<(usize, usize, usize), u64>,
    like: BTreeMap<(usize, bool), u64>,
}

impl Arenas {
    fn learn(&mut self, stages: &Stages, solution: &Solution, prepared: &Prepared, items: usize) {
        for (stage, range) in solution.ranges.iter().enumerate().skip(1).filter(|(_, r)| !r.is_empty()) {
            let bytes = prepared.devices[stages.devices[stage]].compute.get();
            self.exact.insert((stage, range.start, range.end), bytes);
            self.like.insert((stage, range.end == items), bytes);
        }
    }

    /// As planned, else as for the last range of its kind.
    fn guess(&self, stage: usize, range: &Range<usize>, items: usize) -> u64 {
        let exact = self.exact.get(&(stage, range.start, range.end));
        exact.or_else(|| self.like.get(&(stage, range.end == items))).copied().unwrap_or(0)
    }
}

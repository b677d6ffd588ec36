//! The search over placements of a real model: layers, experts, KV cache and pipeline depth together.
//!
//! Bytes to compute in are known only for placements that were planned. The row of layers is cut with the least that the
//! arenas can be, so that the cost of the first cut bounds every placement from below. Each cut is planned as it would run;
//! what its arenas come to is learned, and the row is cut again, until a cut fits: it then costs no more than any cut whose
//! arenas are as learned or as small as they can be.

use super::arenas::{Arenas, Learned};
use super::core::{Arena, Problem, Solution, Span, WhyEmpty, solve_below, why_empty};
use super::costs::Costs;
use super::stages::{Goals, Stages};
use super::{FitError, Fitted, Purpose, Request, pipeline};
use crate::engine::{Outlook, Prepared};
use crate::plan::Choices;
use loadmaster_graph::{Bytes, DeviceId};
use std::ops::Range;

/// Candidates of one kind that are planned at most.
const MAX_ROUNDS: usize = 64;
/// Most pipeline copies that are chosen unasked.
const MAX_DEPTH: u32 = 4;
/// Empty devices whose reason is looked for.
const MAX_EMPTY: usize = 8;

/// A placement as the search judges it.
#[derive(Clone, Debug)]
pub struct Judged {
    /// The options that lead to it.
    pub choices: Choices,
    /// What it takes.
    pub prepared: Prepared,
    /// What is minimised.
    pub cost: f64,
    /// Bytes that are missing.
    pub short: Bytes,
}

impl Request<'_> {
    /// The best placement for a purpose, with as many pipeline copies as chosen. The KV cache may go to the host, unless
    /// that was chosen already.
    ///
    /// Errors: a model that cannot be prepared, or none that fits.
    pub fn fit(&self, base: &Choices, purpose: Purpose) -> Result<Fitted, FitError> {
        self.fit_depths(base, purpose, &[base.copies])
    }

    /// The best placement for a purpose, and how many pipeline copies it is best with: for prompts chosen together.
    ///
    /// Errors: as [`Request::fit`].
    pub fn fit_with_depth(&self, base: &Choices, purpose: Purpose) -> Result<Fitted, FitError> {
        if purpose == Purpose::Prefill {
            let depths: Vec<u32> = (1..=MAX_DEPTH).collect();
            return self.fit_depths(base, purpose, &depths);
        }
        let fitted = self.fit(&Choices { copies: 1, ..base.clone() }, purpose)?;
        self.with_depth(&fitted)
    }

    /// A placement as the search judges it: items of each device (the host first, then the GPUs; layers, then the output),
    /// and whether the experts of each item are with it. Errors: a model that cannot be prepared.
    pub fn judge(
        &self,
        base: &Choices,
        purpose: Purpose,
        ranges: &[Range<usize>],
        experts_here: &[bool],
    ) -> Result<Judged, FitError> {
        let stages = Stages::of(self.machine);
        let plain = plain(base);
        let costs = Costs::new(self, &plain)?;
        let goals = goals(&plain, &costs, purpose, true);
        let problem = self.problem(&stages, &costs, goals, &no_arena);
        let (sum, slowest) = problem.seconds(ranges, experts_here);
        let choices = stages.choices(self.machine, ranges, experts_here, &plain);
        let prepared = self.prepare(&choices)?;
        let short = self.short(&prepared);
        Ok(Judged { choices, prepared, cost: problem.goal.cost(sum, slowest), short })
    }

    fn fit_depths(&self, base: &Choices, purpose: Purpose, depths: &[u32]) -> Result<Fitted, FitError> {
        let stages = Stages::of(self.machine);
        let mut variants = Vec::new();
        let caches =
            if base.kv_offload && purpose != Purpose::Memory { &[true, false][..] } else { &[base.kv_offload] };
        for &kv_offload in caches {
            let with_cache = Choices { kv_offload, ..plain(base) };
            let costs = Costs::new(self, &with_cache)?;
            let leaving = if costs.parts.iter().any(|p| p.experts > 0) { &[false, true][..] } else { &[false] };
            for (&copies, &may_leave) in depths.iter().flat_map(|d| leaving.iter().map(move |l| (d, l))) {
                let choices = Choices { copies, ..with_cache.clone() };
                variants.push((goals(&choices, &costs, purpose, may_leave), costs.clone(), choices));
            }
        }
        // What leaves experts behind last: there are many ways, of which few may beat what was found without.
        variants.sort_by_key(|(goals, _, choices)| (goals.experts_may_leave, !choices.kv_offload));
        let mut searches: Vec<Search<'_, '_>> = Vec::new();
        let mut best: Option<(Fitted, usize)> = None;
        for (goals, costs, choices) in variants {
            let beat = best.as_ref().map_or(f64::INFINITY, |(b, _)| b.cost);
            let Some(mut search) = Search::new(self, &stages, costs, choices, goals, beat) else { continue };
            if let Some(found) = search.run(beat)? {
                best = Some((found, searches.len()));
            }
            searches.push(search);
        }
        let Some((mut fitted, at)) = best else { return Err(FitError::NoneFits { devices: stages.devices.len() }) };
        let bound = searches.iter().map(|s| s.bound).fold(f64::INFINITY, f64::min);
        fitted.gap = Some(if fitted.cost > 0.0 { (1.0 - bound / fitted.cost).max(0.0) } else { 0.0 });
        fitted.planned = searches.iter().map(|s| s.planned).sum();
        fitted.empty = searches[at].empty();
        Ok(fitted)
    }

    /// The pipeline depth for a prompt of one batch: the smallest that is as fast as any, and fits.
    pub fn with_depth(&self, fitted: &Fitted) -> Result<Fitted, FitError> {
        let costs = Costs::new(self, &fitted.choices)?;
        let seconds: Vec<f64> = costs.stage_seconds(self.machine, &fitted.prepared.layers);
        let used: Vec<f64> = seconds.into_iter().filter(|&s| s > 0.0).collect();
        let (depth, _) = pipeline::best_depth(&used, costs.micro_batches(&fitted.choices), MAX_DEPTH);
        for copies in (2..=depth).rev() {
            let choices = Choices { copies, ..fitted.choices.clone() };
            let prepared = self.prepare(&choices)?;
            if self.fits(&prepared) {
                return Ok(Fitted { choices, prepared, ..fitted.clone() });
            }
        }
        Ok(fitted.clone())
    }
}

/// The choices without a placement.
fn plain(base: &Choices) -> Choices {
    Choices { n_gpu_layers: None, tensor_split: None, override_tensor: Vec::new(), ..base.clone() }
}

fn goals(choices: &Choices, costs: &Costs, purpose: Purpose, experts_may_leave: bool) -> Goals {
    Goals { purpose, micro_batches: costs.micro_batches(choices), depth: choices.copies, experts_may_leave }
}

/// As if nothing were needed to compute in.
fn no_arena(_: &Span) -> u64 {
    0
}

/// A search over cuts and experts, with all else fixed.
struct Search<'r, 'a> {
    request: &'r Request<'a>,
    stages: &'r Stages,
    costs: Costs,
    choices: Choices,
    goals: Goals,
    arenas: Arenas,
    /// The best cut for arenas as small as they can be; then for what is known.
    next: Option<Solution>,
    /// No placement of this search costs less.
    bound: f64,
    chosen: Option<Solution>,
    /// Placements that were planned.
    planned: usize,
}

impl<'r, 'a> Search<'r, 'a> {
    /// `None`: nothing that fits costs less than `beat`, however small the arenas.
    fn new(
        request: &'r Request<'a>,
        stages: &'r Stages,
        costs: Costs,
        choices: Choices,
        goals: Goals,
        beat: f64,
    ) -> Option<Self> {
        let arenas = Arenas::new(&costs);
        let mut search = Self {
            request,
            stages,
            costs,
            choices,
            goals,
            arenas,
            next: None,
            bound: f64::INFINITY,
            chosen: None,
            planned: 0,
        };
        let is_exact = search.cut(beat);
        let cost = search.next.as_ref().map(|n| n.cost(goals.goal()));
        // A search that had to leave something out says nothing about what there is not.
        search.bound = if is_exact { cost? } else { search.problem(&no_arena).least() };
        Some(search)
    }

    fn problem<'p>(&self, arena: &'p dyn Arena) -> Problem<'p> {
        self.request.problem(self.stages, &self.costs, self.goals, arena)
    }

    /// The best cut for what is known of the arenas, if it costs less than `beat`. Whether nothing was left out.
    fn cut(&mut self, beat: f64) -> bool {
        let (next, is_exact) = solve_below(&self.problem(&self.arenas), beat);
        self.next = next;
        is_exact
    }

    /// The best placement that costs less than `beat`; `None`: there is none.
    fn run(&mut self, beat: f64) -> Result<Option<Fitted>, FitError> {
        for _ in 0..MAX_ROUNDS {
            let Some(solution) = self.next.take() else { return Ok(None) };
            let cost = solution.cost(self.goals.goal());
            if cost >= beat {
                return Ok(None);
            }
            let machine = self.request.machine;
            let choices = self.stages.choices(machine, &solution.ranges, &solution.experts_here, &self.choices);
            self.planned += 1;
            let Outlook { prepared, is_whole } = match self.request.prepare_while(&choices, |p| self.request.fits(p)) {
                Ok(outlook) => outlook,
                // Elsewhere the tensor may have a buffer that is long enough.
                Err(error) => match error.never_fits() {
                    Some(never) if self.exclude(&solution, never.buffer_type) => {
                        self.cut(beat);
                        continue;
                    }
                    Some(_) => break,
                    None => return Err(error),
                },
            };
            let news = self.learn(&solution, &prepared, is_whole);
            if is_whole && self.request.fits(&prepared) {
                self.chosen = Some(solution);
                return Ok(Some(Fitted { choices, prepared, cost, gap: None, planned: 0, empty: Vec::new() }));
            }
            if !news {
                break;
            }
            self.cut(beat);
        }
        // What was not looked at any more may be better than what is found elsewhere; the bound says by how much.
        Ok(None)
    }

    /// Takes in what the arenas of a placement came to, with all that its devices hold and no item counts: weights that
    /// belong to no layer, one on every device that has a layer. If not all graphs were looked at, that is the least.
    fn learn(&mut self, solution: &Solution, prepared: &Prepared, is_whole: bool) -> bool {
        let problem = self.problem(&no_arena);
        let spans = problem.spans(&solution.ranges, &solution.experts_here);
        let counted = problem.bytes(&solution.ranges, &solution.experts_here);
        let machine = self.request.machine;
        let mut news = false;
        for ((span, &device), mut counted) in spans.iter().zip(&self.stages.devices).zip(counted) {
            let need = &prepared.devices[device];
            if span.device == 0 {
                counted = counted.saturating_add(self.costs.host_fixed.get());
            }
            let memory = machine.device(device).buffer_type;
            let is_shared = machine.devices().iter().any(|(id, d)| id != device && d.buffer_type == memory);
            // Where two devices share their memory, weights are told of the first of them alone.
            let rest = if is_shared { 0 } else { need.total().get().saturating_sub(counted) };
            let staged = if span.device == 0 { self.staged_on_host(prepared) } else { 0 };
            let bytes = rest.max(need.compute.saturating_add(need.workspace).get()).saturating_add(staged);
            news |= self.arenas.learn(span, Learned { bytes, is_whole });
        }
        news
    }

    /// Takes in that something of a placement is longer than any buffer of this kind. Whether that is news.
    fn exclude(&mut self, solution: &Solution, buffer_type: &str) -> bool {
        let spans = self.problem(&no_arena).spans(&solution.ranges, &solution.experts_here);
        let machine = self.request.machine;
        let mut news = false;
        for (span, &device) in spans.iter().zip(&self.stages.devices) {
            if &*machine.compute_type(device).name == buffer_type {
                news |= self.arenas.learn(span, Learned { bytes: u64::MAX, is_whole: true });
            }
        }
        news
    }

    /// Bytes of outputs and copies on their way that count where the host's do.
    fn staged_on_host(&self, prepared: &Prepared) -> u64 {
        let machine = self.request.machine;
        let host = machine.compute_type(machine.fallback()).pool;
        let own = prepared.devices.iter().filter(|(d, _)| machine.compute_type(*d).pool == host);
        let own: Bytes = own.map(|(_, need)| need.total()).fold(Bytes::ZERO, Bytes::saturating_add);
        prepared.pools(machine)[host].saturating_sub(own).get()
    }

    /// Devices without layers in the chosen placement, and why.
    fn empty(&self) -> Vec<(DeviceId, WhyEmpty)> {
        let Some(chosen) = &self.chosen else { return Vec::new() };
        let problem = self.problem(&self.arenas);
        let unused = (1..self.stages.devices.len()).filter(|&s| chosen.ranges[s].is_empty());
        unused.take(MAX_EMPTY).map(|s| (self.stages.devices[s], why_empty(&problem, chosen, s))).collect()
    }
}

//! What a plan needs and why: sizes beside lower bounds, and what the peaks are made of.

use crate::arenas::{Arenas, BufferIds};
use crate::error::{AllocError, Holder};
use crate::lowered::{AllocGraph, ArenaId, ItemId};
use crate::pack::{PackBuffer, PackProblem, lower_bound};
use crate::place::Facts;
use crate::plan::{AllocPlan, Placement};
use loadmaster_graph::{Bytes, Step};
use std::ops::Range;

/// A plan explained, one entry per arena (ids that share a buffer type have one, under the first of them).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanReport {
    /// In the order of the ids.
    pub arenas: Vec<ArenaReport>,
}

/// One arena of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaReport {
    /// The arena: the first id with its buffer type.
    pub arena: ArenaId,
    /// Name of the buffer type.
    pub buffer_type: String,
    /// Bytes that the plan needs, all chunks together.
    pub size: Bytes,
    /// What no plan with these lifetimes and in-place pairs can beat.
    pub lower_bound: Bytes,
    /// The first step at which most bytes are alive: a position in the order of execution.
    pub peak_step: Step,
    /// The node that runs then; `None` for a graph without nodes.
    pub peak_node: Option<ItemId>,
    /// What is alive then, largest first. Sizes are rounded up to the alignment.
    pub alive_at_peak: Vec<Holder>,
    /// Bytes alive at each step, each tensor rounded up to the alignment.
    pub profile: Vec<Bytes>,
}

impl ArenaReport {
    /// Whether the plan is an optimum of its lifetimes and in-place pairs.
    #[must_use]
    pub fn is_proved(&self) -> bool {
        self.size == self.lower_bound
    }

    /// Bytes above the lower bound.
    #[must_use]
    pub fn gap(&self) -> Bytes {
        self.size.saturating_sub(self.lower_bound)
    }
}

impl PlanReport {
    /// Bytes of all arenas.
    #[must_use]
    pub fn size(&self) -> Bytes {
        self.arenas.iter().map(|a| a.size).sum()
    }

    /// The sum of the lower bounds.
    #[must_use]
    pub fn lower_bound(&self) -> Bytes {
        self.arenas.iter().map(|a| a.lower_bound).sum()
    }

    /// The report of an arena that is the first with its buffer type.
    #[must_use]
    pub fn arena(&self, arena: ArenaId) -> Option<&ArenaReport> {
        self.arenas.iter().find(|a| a.arena == arena)
    }
}

/// Explains a plan of this graph. O(n log n) for n items, times the arenas for the profiles.
///
/// Errors: [`AllocError::IdCount`], [`AllocError::IdOutOfRange`], [`AllocError::Overflow`], [`AllocError::Packing`].
pub fn report(
    graph: &AllocGraph<'_>,
    arenas: &Arenas,
    ids: BufferIds<'_>,
    plan: &AllocPlan,
) -> Result<PlanReport, AllocError> {
    ids.check(graph, arenas)?;
    let facts = Facts::new(graph, arenas, ids, plan.unused_inputs)?;
    let stays = stays(graph, arenas, &facts, plan);
    let explain = |arena| explain(graph, arenas, plan, &facts, &stays, arena);
    Ok(PlanReport { arenas: arenas.home_ids().map(explain).collect::<Result<_, _>>()? })
}

/// Where an item lies, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lifetime {
    /// The item.
    pub item: ItemId,
    /// Its place.
    pub place: Placement,
    /// The steps in which the bytes are its own: positions in the order of execution.
    pub steps: Range<Step>,
}

/// The life of everything that a plan of this graph places, in item order. O(n).
///
/// Errors: as those of [`report()`].
pub fn lifetimes(
    graph: &AllocGraph<'_>,
    arenas: &Arenas,
    ids: BufferIds<'_>,
    plan: &AllocPlan,
) -> Result<Vec<Lifetime>, AllocError> {
    ids.check(graph, arenas)?;
    let facts = Facts::new(graph, arenas, ids, plan.unused_inputs)?;
    let life = |s: Stay| Lifetime { item: s.item, place: s.place, steps: Step(s.birth)..Step(s.death) };
    Ok(stays(graph, arenas, &facts, plan).into_iter().map(life).collect())
}

/// An item's bytes and the half-open range of steps in which they are its own.
struct Stay {
    item: ItemId,
    place: Placement,
    padded: Bytes,
    birth: u32,
    death: u32,
}

/// A node that writes over a source takes over after its step: until then the bytes count for the source.
fn stays(graph: &AllocGraph<'_>, arenas: &Arenas, facts: &Facts, plan: &AllocPlan) -> Vec<Stay> {
    let mut spans: Vec<(u32, u32)> = vec![(u32::MAX, 0); graph.items().len()];
    for (at, step) in plan.steps(graph).enumerate() {
        let (at, node) = (at as u32, graph.nodes()[step.get() as usize]);
        let born = facts.placed_sources(graph, node).chain(Some(node));
        born.for_each(|item| spans[item.index()].0 = spans[item.index()].0.min(at));
        facts.touched(graph, node).for_each(|owner| spans[owner.index()].1 = at + 1);
    }
    for reuse in plan.reuses() {
        spans[reuse.node.index()].0 += 1;
    }
    plan.placed()
        .map(|(item, place)| {
            let (first, last) = spans[item.index()];
            let known = facts.of(item);
            let birth = if known.from_start { 0 } else { first };
            let death = if known.forever { facts.horizon } else { last.max(birth + u32::from(known.uses == 0)) };
            let align = arenas.buffer_type(place.arena).alignment();
            let padded = place.size.checked_align_up(align).unwrap_or(place.size);
            Stay { item, place, padded, birth, death: death.max(birth) }
        })
        .collect()
}

fn explain(
    graph: &AllocGraph<'_>,
    arenas: &Arenas,
    plan: &AllocPlan,
    facts: &Facts,
    stays: &[Stay],
    arena: ArenaId,
) -> Result<ArenaReport, AllocError> {
    let buffer_type = arenas.buffer_type(arena);
    let here: Vec<&Stay> = stays.iter().filter(|s| arenas.home(s.place.arena) == arena).collect();
    let buffers =
        here.iter().map(|s| PackBuffer::new(s.padded, buffer_type.alignment(), Step(s.birth)..Step(s.death))).collect();
    let problem = PackProblem { buffers, max_chunk: buffer_type.max_size() };
    let lower_bound = lower_bound(&problem).map_err(|why| AllocError::Packing { arena, why })?;
    let profile = profile(&here, facts.horizon);
    let peak = profile.iter().copied().max().unwrap_or(Bytes::ZERO);
    let at = profile.iter().position(|&b| b == peak).unwrap_or(0) as u32;
    let mut alive: Vec<&&Stay> =
        here.iter().filter(|s| s.birth <= at && at < s.death && s.padded > Bytes::ZERO).collect();
    alive.sort_by_key(|s| (std::cmp::Reverse(s.padded), s.item));
    let peak_node = plan.steps(graph).nth(at as usize).map(|step| graph.nodes()[step.get() as usize]);
    Ok(ArenaReport {
        arena,
        buffer_type: buffer_type.name().to_owned(),
        size: plan.buffer_size(arena),
        lower_bound,
        peak_step: Step(at),
        peak_node,
        alive_at_peak: alive.iter().map(|s| Holder::of(graph, s.item, s.padded)).collect(),
        profile,
    })
}

fn profile(stays: &[&Stay], horizon: u32) -> Vec<Bytes> {
    let mut change = vec![0i128; horizon as usize + 1];
    for stay in stays {
        change[stay.birth as usize] += i128::from(stay.padded.get());
        change[stay.death as usize] -= i128::from(stay.padded.get());
    }
    let mut alive = 0i128;
    change[..horizon as usize]
        .iter()
        .map(|c| {
            alive += c;
            Bytes(u64::try_from(alive).unwrap_or(u64::MAX))
        })
        .collect()
}

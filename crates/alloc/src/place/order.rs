//! Another order of the nodes inside groups, where that lowers a peak.
//!
//! List scheduling below a limit: run the groups as they stand until the group in which an arena peaks; there, look for
//! an order that stays below the peak, then below what that reached, and so on. No optimum is claimed.

use super::blocks::{Blocks, Input, Merging, merge};
use super::dependencies::Dependencies;
use crate::error::AllocError;
use crate::lowered::{AllocGraph, ArenaId};
use loadmaster_graph::Step;
use std::collections::BTreeSet;
use std::ops::Range;

/// Ready nodes that are compared, from the first in the graph's order on.
const WINDOW: usize = 64;
/// Limits that are tried in one group.
const TRIES: usize = 12;
/// Times that all groups are gone through.
const ROUNDS: usize = 4;

/// Whether the nodes of a group may run in another order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Reorder {
    /// The graph's order.
    #[default]
    Never,
    /// Another order inside the graph's groups ([`AllocGraph::add_group`]) where that lowers the peak of an arena. Who
    /// runs the graph must follow [`crate::AllocPlan::order`].
    WithinGroups,
}

/// A lower order and its blocks, if one was found.
pub(crate) fn lower_order(input: Input<'_, '_>, own: &Blocks) -> Option<(Vec<Step>, Blocks)> {
    let mut order: Vec<Step> = (0..input.graph.nodes().len() as u32).map(Step).collect();
    let mut found: Option<Blocks> = None;
    for _ in 0..ROUNDS {
        let blocks = found.as_ref().unwrap_or(own);
        let peaks = Peaks::of(input, blocks);
        let tried = reschedule(input, &order, &peaks);
        let lower = merge(input, tried.iter().copied());
        if !Peaks::of(input, &lower).is_below(&peaks) {
            break;
        }
        (order, found) = (tried, Some(lower));
    }
    found.map(|blocks| (order, blocks))
}

/// Checks the groups: inside the nodes, one after the other, each of one arena.
///
/// Errors: [`AllocError::BadGroup`].
pub(crate) fn check_groups(input: Input<'_, '_>) -> Result<(), AllocError> {
    let graph = input.graph;
    let mut free = 0;
    for group in graph.groups() {
        let bad = |why| Err(AllocError::BadGroup { steps: group.clone(), why });
        if group.start > group.end || group.end.get() as usize > graph.nodes().len() {
            return bad("the graph has no such nodes");
        }
        if group.start.get() < free {
            return bad("it overlaps an earlier group, or stands before it");
        }
        free = group.end.get();
        let mut homes = nodes_of(graph, group).filter_map(|n| home_of(input, n));
        let first = homes.next();
        if homes.any(|h| Some(h) != first) {
            return bad("its nodes are placed in several arenas");
        }
    }
    Ok(())
}

fn nodes_of<'a>(
    graph: &'a AllocGraph<'_>,
    group: &Range<Step>,
) -> impl Iterator<Item = crate::lowered::ItemId> + use<'a> {
    graph.nodes()[group.start.get() as usize..group.end.get() as usize].iter().copied()
}

fn home_of(input: Input<'_, '_>, item: crate::lowered::ItemId) -> Option<ArenaId> {
    input.facts.of(item).arena.map(|a| input.arenas.home(a))
}

/// Bytes alive at each step, by home.
struct Peaks {
    loads: Vec<(ArenaId, Vec<u64>, u64)>,
}

impl Peaks {
    fn of(input: Input<'_, '_>, blocks: &Blocks) -> Self {
        let loads = input.arenas.home_ids().map(|home| {
            let load = load(blocks, home, input.facts.horizon);
            let peak = load.iter().copied().max().unwrap_or(0);
            (home, load, peak)
        });
        Self { loads: loads.collect() }
    }

    /// Lower in some arena, and higher in none.
    fn is_below(&self, other: &Self) -> bool {
        let pairs = || self.loads.iter().zip(&other.loads);
        pairs().all(|(a, b)| a.2 <= b.2) && pairs().any(|(a, b)| a.2 < b.2)
    }

    /// The peak of an arena, if it stands inside this group and not outside all `groups`.
    fn peak_in(&self, home: ArenaId, group: &Range<Step>) -> Option<u64> {
        let (_, load, peak) = self.loads.iter().find(|l| l.0 == home)?;
        let here = &load[group.start.get() as usize..group.end.get() as usize];
        here.contains(peak).then_some(*peak)
    }
}

fn load(blocks: &Blocks, home: ArenaId, horizon: u32) -> Vec<u64> {
    let mut change = vec![0u64; horizon as usize + 1];
    for block in blocks.blocks.iter().filter(|b| b.home == home) {
        let (birth, death) = (block.birth as usize, block.death as usize);
        change[birth] = change[birth].wrapping_add(block.size.get());
        change[death] = change[death].wrapping_sub(block.size.get());
    }
    let mut alive = 0u64;
    change.pop();
    change.iter_mut().for_each(|c| {
        alive = alive.wrapping_add(*c);
        *c = alive;
    });
    change
}

/// Goes through the graph once, and looks for a lower order in every group in which its arena peaks.
fn reschedule(input: Input<'_, '_>, order: &[Step], peaks: &Peaks) -> Vec<Step> {
    let mut result = Vec::with_capacity(order.len());
    let mut state = Merging::new(input);
    let groups = input.graph.groups().iter().filter(|g| g.end.get() - g.start.get() > 2);
    for group in groups {
        let home = nodes_of(input.graph, group).find_map(|n| home_of(input, n));
        let Some((home, peak)) = home.and_then(|home| Some((home, peaks.peak_in(home, group)?))) else { continue };
        advance(&mut state, input, &order[result.len()..group.start.get() as usize], &mut result);
        let own = &order[group.start.get() as usize..group.end.get() as usize];
        let lower = Scheduling::new(input, group, home, own).lowest(&state, peak);
        advance(&mut state, input, lower.as_deref().unwrap_or(own), &mut result);
    }
    advance(&mut state, input, &order[result.len()..], &mut result);
    result
}

fn advance(state: &mut Merging<'_, '_>, input: Input<'_, '_>, steps: &[Step], result: &mut Vec<Step>) {
    for &step in steps {
        state.run_node(input.graph.nodes()[step.get() as usize], result.len() as u32);
        result.push(step);
    }
}

/// Which of the ready nodes that stay below the limit runs next.
#[derive(Clone, Copy)]
enum Choice {
    /// The first in the order so far.
    First,
    /// The one after which fewest bytes are alive, the first of equals.
    Smallest,
}

struct Scheduling<'a, 'g> {
    input: Input<'a, 'g>,
    start: u32,
    home: ArenaId,
    dependencies: Dependencies,
    /// By offset in the group: its rank in the order so far.
    rank: Vec<u32>,
}

impl<'a, 'g> Scheduling<'a, 'g> {
    fn new(input: Input<'a, 'g>, group: &Range<Step>, home: ArenaId, own: &[Step]) -> Self {
        let start = group.start.get();
        let mut rank = vec![0; own.len()];
        own.iter().enumerate().for_each(|(i, step)| rank[(step.get() - start) as usize] = i as u32);
        Self { input, start, home, dependencies: Dependencies::of(input.graph, group), rank }
    }

    /// The lowest order found; `None` if none stays below `peak`.
    fn lowest(&self, state: &Merging<'a, 'g>, peak: u64) -> Option<Vec<Step>> {
        let (mut limit, mut best) = (peak.checked_sub(1)?, None);
        for _ in 0..TRIES {
            let tries = [Choice::First, Choice::Smallest].into_iter();
            let Some((order, reached)) = tries.filter_map(|c| self.below(state, limit, c)).min_by_key(|t| t.1) else {
                break;
            };
            best = Some(order);
            let Some(next) = reached.checked_sub(1) else { break };
            limit = next;
        }
        best
    }

    /// An order in which no more than `limit` bytes are alive, and how many are.
    fn below(&self, state: &Merging<'a, 'g>, limit: u64, choice: Choice) -> Option<(Vec<Step>, u64)> {
        let mut state = state.clone();
        let mut waits_for = self.dependencies.waits_for.clone();
        let offsets = 0..waits_for.len() as u32;
        let mut ready: BTreeSet<(u32, u32)> =
            offsets.filter(|&i| waits_for[i as usize] == 0).map(|i| (self.rank[i as usize], i)).collect();
        let (mut order, mut reached) = (Vec::with_capacity(waits_for.len()), 0);
        while !ready.is_empty() {
            let (next, during) = self.choose(&state, &ready, limit, choice)?;
            reached = reached.max(during);
            ready.remove(&(self.rank[next as usize], next));
            let step = Step(self.start + next);
            state.run_node(self.input.graph.nodes()[step.get() as usize], self.start + order.len() as u32);
            order.push(step);
            for &follower in self.dependencies.followers(next) {
                waits_for[follower as usize] -= 1;
                if waits_for[follower as usize] == 0 {
                    ready.insert((self.rank[follower as usize], follower));
                }
            }
        }
        Some((order, reached))
    }

    /// The next node and the bytes alive while it runs; `None` if no ready node stays below the limit.
    fn choose(
        &self,
        state: &Merging<'a, 'g>,
        ready: &BTreeSet<(u32, u32)>,
        limit: u64,
        choice: Choice,
    ) -> Option<(u32, u64)> {
        let alive = state.alive(self.home);
        let mut best: Option<(u64, u32, u64)> = None;
        for &(_, node) in ready.iter().take(WINDOW) {
            let effect = state.effect(self.input.graph.nodes()[(self.start + node) as usize], self.home);
            let during = alive.saturating_add(effect.during);
            let after = during.saturating_sub(effect.freed);
            if effect.during == 0 {
                // It costs nothing now and would cost nothing later: views, results over their sources.
                return Some((node, during));
            }
            let is_taken = match (choice, best) {
                (_, None) => true,
                (Choice::First, Some(_)) => false,
                (Choice::Smallest, Some((least, _, _))) => after < least,
            };
            if during <= limit && is_taken {
                best = Some((after, node, during));
            }
        }
        best.map(|(_, node, during)| (node, during))
    }
}

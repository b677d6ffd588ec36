//! No two tensors share bytes while both must be intact.

use super::Checker;
use super::error::{CheckError, ReuseFault};
use super::lifetimes::{Lifetimes, Span, owner, takes_place};
use crate::in_place::ViewReuse;
use crate::lowered::{ArenaId, ItemId};
use crate::pack::ChunkId;
use crate::plan::{AllocPlan, Placement};
use loadmaster_graph::{Bytes, Step};
use std::collections::BTreeMap;

/// A tensor's bytes and the steps at which they must be intact.
#[derive(Clone, Copy)]
struct Stay {
    item: ItemId,
    span: Span,
    place: Placement,
}

impl Stay {
    fn end(&self) -> u64 {
        self.place.offset.get().saturating_add(self.place.size.get())
    }
}

/// What is alive in one chunk, by offset. No two entries share bytes.
type Alive = BTreeMap<u64, Stay>;

/// Runs through time and keeps what is alive in every chunk.
pub(super) fn none_shares_bytes(
    checker: &Checker<'_, '_>,
    plan: &AllocPlan,
    lifetimes: &Lifetimes,
) -> Result<(), CheckError> {
    let mut stays = stays(checker, plan, lifetimes);
    stays.sort_by_key(|s| (s.span.first, s.item));
    let mut deaths: Vec<Stay> = stays.clone();
    deaths.sort_by_key(|s| s.span.last);
    let mut dying = deaths.into_iter().peekable();
    let mut chunks: BTreeMap<(ArenaId, ChunkId), Alive> = BTreeMap::new();
    for stay in stays {
        while let Some(dead) = dying.next_if(|d| d.span.last < stay.span.first) {
            let alive = chunks.entry(key(checker, &dead)).or_default();
            if alive.get(&dead.place.offset.get()).is_some_and(|s| s.item == dead.item) {
                alive.remove(&dead.place.offset.get());
            }
        }
        enter(checker, lifetimes, chunks.entry(key(checker, &stay)).or_default(), stay)?;
    }
    Ok(())
}

fn key(checker: &Checker<'_, '_>, stay: &Stay) -> (ArenaId, ChunkId) {
    (checker.arenas.home(stay.place.arena), stay.place.chunk)
}

/// Tensors without bytes share none.
fn stays(checker: &Checker<'_, '_>, plan: &AllocPlan, lifetimes: &Lifetimes) -> Vec<Stay> {
    let placed = plan.placed().filter(|(item, p)| takes_place(checker.graph, *item) && p.size > Bytes::ZERO);
    placed.filter_map(|(item, place)| Some(Stay { item, span: lifetimes.of(item)?, place })).collect()
}

fn enter(checker: &Checker<'_, '_>, lifetimes: &Lifetimes, alive: &mut Alive, stay: Stay) -> Result<(), CheckError> {
    let below = alive.range(..stay.end()).rev();
    let met: Vec<Stay> = below.map(|(_, s)| *s).take_while(|s| s.end() > stay.place.offset.get()).collect();
    for &other in &met {
        may_write_over(checker, &stay, &other)?;
        alive.remove(&other.place.offset.get());
    }
    let expected = lifetimes.arena(stay.item);
    if met.is_empty() && expected != Some(stay.place.arena) {
        let expected = expected.unwrap_or(stay.place.arena);
        return Err(CheckError::WrongArena { item: stay.item, expected, found: stay.place.arena });
    }
    alive.insert(stay.place.offset.get(), stay);
    Ok(())
}

/// `stay` begins where `other` is: right only if its node reads `other` for the last time and may write over it.
fn may_write_over(checker: &Checker<'_, '_>, stay: &Stay, other: &Stay) -> Result<(), CheckError> {
    let graph = checker.graph;
    let (node, op) = (stay.item, graph.item(stay.item).op);
    let reads: Vec<(usize, ItemId)> = graph
        .sources(node)
        .iter()
        .enumerate()
        .filter_map(|(operand, source)| Some((operand, (*source)?)))
        .filter(|&(_, source)| owner(graph, source) == other.item)
        .collect();
    if other.span.last > stay.span.first || stay.span.first == 0 || reads.is_empty() {
        return Err(CheckError::Overlap {
            first: other.item,
            second: stay.item,
            arena: stay.place.arena,
            chunk: stay.place.chunk,
            step: Step(u32::try_from(stay.span.first.saturating_sub(1)).unwrap_or(u32::MAX)),
        });
    }
    let fault = |fault| Err(CheckError::Reuse { node, op, source_item: other.item, fault });
    let &[(operand, source)] = reads.as_slice() else { return fault(ReuseFault::ReadTwice) };
    let table = checker.in_place.of(stay.place.arena);
    if !table.operands(op).contains(operand) || source != other.item && table.views() == ViewReuse::Never {
        return fault(ReuseFault::NotInTable);
    }
    let (result, operand, root) = (graph.tensor(node), graph.tensor(source), graph.tensor(other.item));
    if (result.dtype, result.ne, result.nb) != (operand.dtype, operand.ne, operand.nb) {
        return fault(ReuseFault::Layout);
    }
    let whole = operand.view.is_none_or(|v| v.offset == Bytes::ZERO) && operand.nbytes() == root.nbytes();
    if source != other.item && !whole {
        return fault(ReuseFault::PartialView);
    }
    if stay.place.offset != other.place.offset {
        return fault(ReuseFault::Offset);
    }
    Ok(())
}

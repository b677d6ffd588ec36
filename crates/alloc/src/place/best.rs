//! The best placer: in-place chains merged first, then one packing problem per arena, never worse than the reference.

use super::blocks::{Block, BlockId, Blocks, Input, merge};
use super::facts::{Facts, UnusedInputs};
use super::ggml;
use super::in_place_tables::InPlaceTables;
use super::order::{Reorder, check_groups, lower_order};
use crate::arenas::{Arenas, BufferIds};
use crate::check::Checker;
use crate::error::AllocError;
use crate::in_place::InPlaceTable;
use crate::lowered::{AllocGraph, ArenaId, ItemId};
use crate::pack::{ChunkId, Effort, PackBuffer, PackProblem, Packing, pack};
use crate::plan::{AllocPlan, Placement};
use loadmaster_graph::{Bytes, Step};

/// What [`super::Placer::Best`] may do.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BestOptions {
    /// Which operations may write over which operands.
    pub in_place: InPlaceTables,
    /// Whether nodes may run in another order.
    pub order: Reorder,
    /// What becomes of inputs that no node reads.
    pub unused_inputs: UnusedInputs,
    /// How hard the packing tries.
    pub effort: Effort,
}

/// Plans a graph. `ids` have been checked.
pub(crate) fn place(
    graph: &AllocGraph<'_>,
    arenas: &Arenas,
    ids: BufferIds<'_>,
    options: &BestOptions,
) -> Result<AllocPlan, AllocError> {
    let facts = Facts::new(graph, arenas, ids, options.unused_inputs)?;
    let input = Input { graph, arenas, facts: &facts, tables: &options.in_place };
    let blocks = merge(input, (0..graph.nodes().len() as u32).map(Step));
    let best = packed(input, &blocks, options)?;
    let best = no_worse_than_reference(input, ids, best);
    match options.order {
        Reorder::Never => Ok(best),
        Reorder::WithinGroups => reordered(input, &blocks, options, best),
    }
}

/// The plan, with the reference's placements where those are smaller. The reference's rules are not sound for every
/// graph (an output that is a view, say), nor do they end for every size: then there is nothing to be met.
fn no_worse_than_reference(input: Input<'_, '_>, ids: BufferIds<'_>, best: AllocPlan) -> AllocPlan {
    let Input { graph, arenas, tables, .. } = input;
    let Ok(reference) = ggml::place(graph, arenas, ids, &tables.common(&InPlaceTable::ggml())) else { return best };
    let is_worse = |arena: &ArenaId| best.buffer_size(*arena) > reference.buffer_size(*arena);
    let worse: Vec<ArenaId> = arenas.home_ids().filter(is_worse).collect();
    let checker = Checker { graph, arenas, ids, in_place: tables };
    if worse.is_empty() || checker.check(&reference).is_err() {
        return best;
    }
    best_of(best, reference, &worse, arenas)
}

/// The plan of a lower order, if there is one and it is smaller in some arena and larger in none.
fn reordered(
    input: Input<'_, '_>,
    blocks: &Blocks,
    options: &BestOptions,
    best: AllocPlan,
) -> Result<AllocPlan, AllocError> {
    check_groups(input)?;
    let Some((order, blocks)) = lower_order(input, blocks) else { return Ok(best) };
    let lower = AllocPlan { order: Some(order), ..packed(input, &blocks, options)? };
    let sizes = |plan: &AllocPlan| input.arenas.home_ids().map(|a| plan.buffer_size(a)).collect::<Vec<_>>();
    let (ours, theirs) = (sizes(&lower), sizes(&best));
    let no_larger = ours.iter().zip(&theirs).all(|(a, b)| a <= b);
    Ok(if no_larger && ours != theirs { lower } else { best })
}

/// Packs the blocks of each arena.
fn packed(input: Input<'_, '_>, blocks: &Blocks, options: &BestOptions) -> Result<AllocPlan, AllocError> {
    let Input { graph, arenas, facts, .. } = input;
    let mut plan = AllocPlan { unused_inputs: options.unused_inputs, ..AllocPlan::empty(graph, arenas) };
    let mut places = vec![(ChunkId::new(0), Bytes::ZERO); blocks.blocks.len()];
    for arena in arenas.home_ids() {
        let (members, problem) = problem(arena, &blocks.blocks, arenas);
        let packing = pack(&problem, options.effort).map_err(|why| AllocError::Packing { arena, why })?;
        plan.chunks[arena] = chunk_sizes(&problem, &packing);
        for (block, place) in members.iter().zip(&packing.places) {
            places[block.index()] = (place.chunk, place.offset);
        }
    }
    for (i, block) in blocks.block_of.iter().enumerate() {
        let item = facts.of(ItemId::new(i));
        let (Some(block), Some(arena)) = (block, item.arena) else { continue };
        let (chunk, offset) = places[block.index()];
        plan.placements[i] = Some(Placement { offset, size: item.size, arena, chunk });
    }
    plan.reuses.clone_from(&blocks.reuses);
    Ok(plan)
}

/// The packing problem of one arena, and the block behind each of its buffers.
pub(crate) fn problem(arena: ArenaId, blocks: &[Block], arenas: &Arenas) -> (Vec<BlockId>, PackProblem) {
    let buffer_type = arenas.buffer_type(arena);
    let align = buffer_type.alignment();
    let members = blocks.iter().enumerate().filter(|(_, b)| b.home == arena);
    let (ids, buffers) =
        members.map(|(i, b)| (BlockId::new(i), PackBuffer::new(b.size, align, Step(b.birth)..Step(b.death)))).unzip();
    (ids, PackProblem { buffers, max_chunk: buffer_type.max_size() })
}

fn chunk_sizes(problem: &PackProblem, packing: &Packing) -> Vec<Bytes> {
    let mut sizes: Vec<Bytes> = Vec::new();
    for (buffer, place) in problem.buffers.iter().zip(&packing.places) {
        let chunk = place.chunk.index();
        if sizes.len() <= chunk {
            sizes.resize(chunk + 1, Bytes::ZERO);
        }
        sizes[chunk] = sizes[chunk].max(place.offset.saturating_add(buffer.size));
    }
    sizes
}

/// The best plan with the reference's placements in the arenas `taken`, where it is worse. Where arenas cannot be
/// exchanged one by one (the reference writes results over sources in another arena), the reference's plan.
fn best_of(best: AllocPlan, reference: AllocPlan, taken: &[ArenaId], arenas: &Arenas) -> AllocPlan {
    let is_home = |p: Option<Placement>, arena| p.map(|p| arenas.home(p.arena)) == Some(arena);
    let same_items = best
        .placements
        .iter()
        .zip(&reference.placements)
        .all(|(a, b)| taken.iter().all(|&arena| is_home(*a, arena) == is_home(*b, arena)));
    if !same_items {
        return reference;
    }
    exchange(best, &reference, taken, arenas)
}

fn exchange(mut best: AllocPlan, reference: &AllocPlan, taken: &[ArenaId], arenas: &Arenas) -> AllocPlan {
    let is_taken = |p: &Option<Placement>| p.is_some_and(|p| taken.contains(&arenas.home(p.arena)));
    for &arena in taken {
        best.chunks[arena].clone_from(&reference.chunks[arena]);
    }
    for (ours, theirs) in best.placements.iter_mut().zip(&reference.placements) {
        if is_taken(theirs) {
            *ours = *theirs;
        }
    }
    let reused_there = |r: &&crate::plan::Reuse| is_taken(&reference.placements[r.node.index()]);
    best.reuses.retain(|r| !is_taken(&reference.placements[r.node.index()]));
    best.reuses.extend(reference.reuses.iter().filter(reused_there));
    best
}

//! The checker: from lifetimes and places alone.

use super::error::PackFault;
use super::problem::{ChunkId, PackBufferId, PackProblem, Packing, Place};
use loadmaster_graph::{Bytes, Id, Step};
use std::collections::BTreeMap;

/// Verifies a packing: every place legal, no shared byte, peak, bound and `proved` consistent. O(n log n).
///
/// A fault means that whatever made the packing is wrong.
pub fn check(problem: &PackProblem, packing: &Packing) -> Result<(), PackFault> {
    if problem.buffers.len() != packing.places.len() {
        return Err(PackFault::Count { places: packing.places.len(), buffers: problem.buffers.len() });
    }
    let chunk_ends = check_places(problem, &packing.places)?;
    check_peak(&chunk_ends, packing)?;
    check_sweep(problem, packing)?;
    let proved = packing.peak == packing.lower_bound;
    if packing.peak < packing.lower_bound || packing.proved != proved {
        return Err(PackFault::BoundContradicts {
            peak: packing.peak,
            bound: packing.lower_bound,
            proved: packing.proved,
        });
    }
    Ok(())
}

/// Each place by itself. Returns the highest end of every chunk.
fn check_places(problem: &PackProblem, places: &[Place]) -> Result<BTreeMap<ChunkId, Bytes>, PackFault> {
    let mut ends = BTreeMap::new();
    let mut longest = BTreeMap::new();
    for (index, (buffer, place)) in problem.buffers.iter().zip(places).enumerate() {
        let id = PackBufferId::from_index(index);
        let offset = place.offset;
        if offset.get() % buffer.align.get() != 0 {
            return Err(PackFault::Misaligned { buffer: id, offset, align: buffer.align });
        }
        if let Some(fixed) = buffer.offset
            && (fixed != offset || place.chunk.index() != 0)
        {
            return Err(PackFault::Moved { buffer: id, fixed, chunk: place.chunk, offset });
        }
        if buffer.size == Bytes::ZERO || buffer.lifetime.is_empty() {
            continue;
        }
        if problem.max_chunk.is_none() && place.chunk.index() != 0 {
            return Err(PackFault::NeedlessChunk { buffer: id, chunk: place.chunk });
        }
        let end = offset.checked_add(buffer.size).ok_or(PackFault::Overflow { buffer: id })?;
        let highest = ends.entry(place.chunk).or_insert(Bytes::ZERO);
        *highest = end.max(*highest);
        let largest = longest.entry(place.chunk).or_insert(Bytes::ZERO);
        *largest = buffer.size.max(*largest);
    }
    let Some(max_chunk) = problem.max_chunk else { return Ok(ends) };
    for (index, (buffer, place)) in problem.buffers.iter().zip(places).enumerate() {
        let limit = longest.get(&place.chunk).map_or(max_chunk, |&l| l.max(max_chunk));
        let end = place.offset.saturating_add(buffer.size);
        let takes_bytes = buffer.size > Bytes::ZERO && !buffer.lifetime.is_empty();
        if takes_bytes && end > limit {
            let buffer = PackBufferId::from_index(index);
            return Err(PackFault::PastChunk { buffer, chunk: place.chunk, end, limit });
        }
    }
    Ok(ends)
}

fn check_peak(chunk_ends: &BTreeMap<ChunkId, Bytes>, packing: &Packing) -> Result<(), PackFault> {
    let found = chunk_ends.values().copied().sum();
    if found == packing.peak { Ok(()) } else { Err(PackFault::Peak { stated: packing.peak, found }) }
}

/// Walks the steps with the set of what is alive, sorted by place.
fn check_sweep(problem: &PackProblem, packing: &Packing) -> Result<(), PackFault> {
    // (step, birth?, buffer): what ends at a step leaves before what begins there comes.
    let mut events: Vec<(Step, bool, usize)> = Vec::with_capacity(problem.buffers.len() * 2);
    for (index, buffer) in problem.buffers.iter().enumerate() {
        if buffer.size > Bytes::ZERO && !buffer.lifetime.is_empty() {
            events.push((buffer.lifetime.start, true, index));
            events.push((buffer.lifetime.end, false, index));
        }
    }
    events.sort_unstable();
    let mut alive: BTreeMap<(ChunkId, u64), usize> = BTreeMap::new();
    let mut load = 0u128;
    for (step, is_birth, index) in events {
        let size = problem.buffers[index].size;
        let place = packing.places[index];
        let key = (place.chunk, place.offset.get());
        if !is_birth {
            alive.remove(&key);
            load -= u128::from(size.get());
            continue;
        }
        load += u128::from(size.get());
        if load > u128::from(packing.lower_bound.get()) {
            let load = Bytes(u64::try_from(load).unwrap_or(u64::MAX));
            return Err(PackFault::BoundTooLow { stated: packing.lower_bound, load, step });
        }
        let overlap = |&other: &usize| PackFault::Overlap {
            first: PackBufferId::from_index(other),
            second: PackBufferId::from_index(index),
            chunk: place.chunk,
            step,
        };
        // What is alive is disjoint, so only the nearest on both sides can reach in.
        if let Some((_, below)) = alive.range(..=key).next_back()
            && packing.places[*below].chunk == place.chunk
            && packing.places[*below].offset.saturating_add(problem.buffers[*below].size) > place.offset
        {
            return Err(overlap(below));
        }
        if let Some((&(chunk, offset), above)) = alive.range(key..).next()
            && chunk == place.chunk
            && offset < place.offset.saturating_add(size).get()
        {
            return Err(overlap(above));
        }
        alive.insert(key, index);
    }
    Ok(())
}

//! The entry points: effort, and the order in which methods are tried.

use super::bound::bound_of;
use super::error::PackError;
use super::heuristics::{self, Found};
use super::prepared::Prepared;
use super::problem::{ChunkId, PackProblem, Packing, Place};
use loadmaster_graph::Bytes;

/// How hard to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Effort {
    /// Greedy methods, stopping at the bound: below a millisecond for 1,500 buffers.
    #[default]
    Default,
    /// The greedy methods, then a search of at most `node_budget` nodes.
    Optimal {
        /// Nodes of the search: placements and postponements together.
        node_budget: u64,
    },
}

/// The answer to "can it stay below a capacity".
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FitOutcome {
    /// It can, so.
    Fits(Packing),
    /// It cannot: the bound or an exhausted search says so.
    Infeasible {
        /// The least peak that is not ruled out: more than the capacity.
        at_least: Bytes,
    },
    /// Not found with this effort, and not ruled out.
    Unknown {
        /// The best packing found; it is above the capacity.
        best: Packing,
    },
}

/// Finds offsets with a low peak. Equal input and effort, equal result.
///
/// Errors: see [`PackError`].
pub fn pack(problem: &PackProblem, effort: Effort) -> Result<Packing, PackError> {
    pack_until(problem, effort, &mut || false)
}

/// As [`pack`], asking `stop` between rounds of the search whether to end with what there is.
pub fn pack_until(problem: &PackProblem, effort: Effort, stop: &mut dyn FnMut() -> bool) -> Result<Packing, PackError> {
    let _ = (effort, stop);
    let prepared = Prepared::new(problem)?;
    let bound = bound_of(&prepared, problem.max_chunk)?;
    let found = match problem.max_chunk {
        None => heuristics::one_chunk(&prepared, bound)?,
        Some(limit) => heuristics::chunked(&prepared, bound, limit.get())?,
    };
    Ok(packing(problem, &prepared, &found, bound))
}

/// Whether everything stays below `capacity` (without a chunk limit: offsets plus sizes; with one: the sum of chunks).
pub fn pack_into(problem: &PackProblem, capacity: Bytes, effort: Effort) -> Result<FitOutcome, PackError> {
    pack_into_until(problem, capacity, effort, &mut || false)
}

/// As [`pack_into`], asking `stop` between rounds of the search whether to end.
pub fn pack_into_until(
    problem: &PackProblem,
    capacity: Bytes,
    effort: Effort,
    stop: &mut dyn FnMut() -> bool,
) -> Result<FitOutcome, PackError> {
    let packing = pack_until(problem, effort, stop)?;
    if packing.peak <= capacity {
        return Ok(FitOutcome::Fits(packing));
    }
    if packing.lower_bound > capacity {
        return Ok(FitOutcome::Infeasible { at_least: packing.lower_bound });
    }
    Ok(FitOutcome::Unknown { best: packing })
}

/// Places of the live buffers as places of all.
fn packing(problem: &PackProblem, prepared: &Prepared, found: &Found, bound: u64) -> Packing {
    let first = ChunkId::new(0);
    let mut places: Vec<Place> =
        problem.buffers.iter().map(|b| Place { chunk: first, offset: b.offset.unwrap_or(Bytes::ZERO) }).collect();
    for (b, &(chunk, offset)) in prepared.live.iter().zip(&found.places) {
        places[b.id.index()] = Place { chunk: ChunkId::new(chunk as usize), offset: Bytes(offset) };
    }
    let method = found.method;
    Packing { places, peak: Bytes(found.peak), lower_bound: Bytes(bound), proved: found.peak == bound, method }
}

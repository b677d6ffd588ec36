//! The entry points: effort, and the order in which methods are tried.

use super::bound::bound_of;
use super::error::PackError;
use super::greedy::{Gap, Neighbours, Offsets, Tie, largest_first, place_in_order};
use super::prepared::Prepared;
use super::problem::{ChunkId, Method, PackProblem, Packing, Place};
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
    let (found, method) = greedy(&prepared, bound)?;
    Ok(packing(problem, &prepared, &found, bound, method))
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

fn greedy(prepared: &Prepared, bound: u64) -> Result<(Offsets, Method), PackError> {
    let live = &prepared.live;
    // No limit: all pairs.
    let neighbours = Neighbours::of(live, usize::MAX).unwrap_or_else(|| unreachable!("no limit"));
    let given: Vec<u32> = (0..live.len() as u32).collect();
    let largest = largest_first(live, Tie::EarlierBirth);
    let mut best: Option<(Offsets, Method)> = None;
    let mut error = None;
    let attempts = [
        (Method::LargestFirst, &largest, Gap::Lowest),
        (Method::BestFit, &given, Gap::Tightest),
        (Method::FirstFit, &given, Gap::Lowest),
    ];
    for (method, order, gap) in attempts {
        match place_in_order(live, &neighbours, order, gap) {
            Ok(found) => {
                if best.as_ref().is_none_or(|(b, _)| found.peak < b.peak) {
                    best = Some((found, method));
                }
            }
            Err(e) => error = Some(e),
        }
        if best.as_ref().is_some_and(|(b, _)| b.peak <= bound) {
            break;
        }
    }
    match (best, error) {
        (Some(best), _) => Ok(best),
        (None, Some(e)) => Err(e),
        (None, None) => Ok((Offsets { offsets: Vec::new(), peak: 0 }, Method::Trivial)),
    }
}

/// Offsets of the live buffers as places of all.
fn packing(problem: &PackProblem, prepared: &Prepared, found: &Offsets, bound: u64, method: Method) -> Packing {
    let first = ChunkId::new(0);
    let mut places: Vec<Place> =
        problem.buffers.iter().map(|b| Place { chunk: first, offset: b.offset.unwrap_or(Bytes::ZERO) }).collect();
    for (b, &offset) in prepared.live.iter().zip(&found.offsets) {
        places[b.id.index()].offset = Bytes(offset);
    }
    Packing { places, peak: Bytes(found.peak), lower_bound: Bytes(bound), proved: found.peak == bound, method }
}

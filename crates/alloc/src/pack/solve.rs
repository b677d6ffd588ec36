//! The entry points: effort, and the order in which methods are tried.

use super::bound::bound_of;
use super::error::PackError;
use super::heuristics::{self, Found};
use super::prepared::Prepared;
use super::problem::{ChunkId, Method, PackProblem, Packing, Place};
use super::search::{Instance, Outcome, Search};
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

/// As [`pack`], asking `stop` now and then during the search whether to end with what there is.
pub fn pack_until(problem: &PackProblem, effort: Effort, stop: &mut dyn FnMut() -> bool) -> Result<Packing, PackError> {
    let prepared = Prepared::new(problem)?;
    let mut bound = bound_of(&prepared, problem.max_chunk)?;
    let mut found = greedy(problem, &prepared, bound)?;
    if let Effort::Optimal { node_budget } = effort
        && let Some(instance) = searchable(problem, &prepared, &found, bound)
    {
        let mut search = Search::new(&instance, node_budget);
        // No peak lies strictly between multiples of the unit.
        let least = search.minimise(bound.div_ceil(instance.unit), found.peak.div_ceil(instance.unit), stop);
        bound = bound.max(least.lower_bound * instance.unit).min(found.peak);
        if let Some(offsets) = least.offsets {
            found = from_search(&prepared, &instance, &offsets);
        }
    }
    Ok(packing(problem, &prepared, &found, bound))
}

/// Whether everything stays below `capacity` (without a chunk limit: offsets plus sizes; with one: the sum of chunks).
pub fn pack_into(problem: &PackProblem, capacity: Bytes, effort: Effort) -> Result<FitOutcome, PackError> {
    pack_into_until(problem, capacity, effort, &mut || false)
}

/// As [`pack_into`], asking `stop` now and then during the search whether to end.
pub fn pack_into_until(
    problem: &PackProblem,
    capacity: Bytes,
    effort: Effort,
    stop: &mut dyn FnMut() -> bool,
) -> Result<FitOutcome, PackError> {
    let prepared = Prepared::new(problem)?;
    let bound = bound_of(&prepared, problem.max_chunk)?;
    if bound > capacity.get() {
        return Ok(FitOutcome::Infeasible { at_least: Bytes(bound) });
    }
    let found = greedy(problem, &prepared, bound)?;
    if found.peak <= capacity.get() {
        return Ok(FitOutcome::Fits(packing(problem, &prepared, &found, bound)));
    }
    if let Effort::Optimal { node_budget } = effort
        && let Some(instance) = searchable(problem, &prepared, &found, bound)
    {
        let mut search = Search::new(&instance, node_budget);
        match search.decide(capacity.get() / instance.unit, stop) {
            Outcome::Found(offsets) => {
                let found = from_search(&prepared, &instance, &offsets);
                return Ok(FitOutcome::Fits(packing(problem, &prepared, &found, bound)));
            }
            Outcome::Exhausted => {
                let at_least = (capacity.get() / instance.unit + 1) * instance.unit;
                return Ok(FitOutcome::Infeasible { at_least: Bytes(at_least) });
            }
            Outcome::Limit => {}
        }
    }
    Ok(FitOutcome::Unknown { best: packing(problem, &prepared, &found, bound) })
}

fn greedy(problem: &PackProblem, prepared: &Prepared, bound: u64) -> Result<Found, PackError> {
    heuristics::run(prepared, bound, problem.max_chunk.map(Bytes::get))
}

/// The problem as the search takes it: one chunk, not solved yet, neither sums nor memory out of hand.
fn searchable(problem: &PackProblem, prepared: &Prepared, found: &Found, bound: u64) -> Option<Instance> {
    if problem.max_chunk.is_some() || found.peak <= bound {
        return None;
    }
    Instance::new(&prepared.live)
}

fn from_search(prepared: &Prepared, instance: &Instance, offsets: &[u64]) -> Found {
    let mut places = vec![(0, 0); prepared.live.len()];
    let mut peak = 0;
    for (&origin, &offset) in instance.origin.iter().zip(offsets) {
        let offset = offset * instance.unit;
        places[origin as usize] = (0, offset);
        peak = peak.max(offset + prepared.live[origin as usize].size);
    }
    Found { places, peak, method: Method::Search }
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

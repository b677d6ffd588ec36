//! The greedy methods in the order in which they are tried, up to the first that reaches the bound.

use super::bound::loads;
use super::error::PackError;
use super::greedy::{ChunkRule, Places, Tie, largest_first, place_in_order};
use super::neighbours::Neighbours;
use super::occupancy::{Gap, Lists, Trees};
use super::prepared::{Live, Prepared};
use super::problem::Method;
use super::skyline::{SkylineKey, skyline};

/// Chunk and offset of every live buffer.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub places: Vec<(u32, u64)>,
    pub peak: u64,
    pub method: Method,
}

/// Keeps the best of what the methods find, and the first error in case none finds anything.
struct Best {
    bound: u64,
    found: Option<Found>,
    error: Option<PackError>,
}

impl Best {
    fn new(bound: u64) -> Self {
        Self { bound, found: None, error: None }
    }

    /// Takes a result; whether the bound is reached.
    fn offer(&mut self, attempt: Result<Found, PackError>) -> bool {
        match attempt {
            Ok(found) if self.found.as_ref().is_none_or(|best| found.peak < best.peak) => self.found = Some(found),
            Ok(_) => {}
            Err(error) => {
                self.error.get_or_insert(error);
            }
        }
        self.found.as_ref().is_some_and(|best| best.peak <= self.bound)
    }

    fn into_result(self) -> Result<Found, PackError> {
        match (self.found, self.error) {
            (Some(found), _) => Ok(found),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(Found { places: Vec::new(), peak: 0, method: Method::Trivial }),
        }
    }
}

/// Fewer pairs than this are listed, whatever the number of buffers.
const FEW_PAIRS: u64 = 1 << 20;
/// With more neighbours than this on average, trees of spans are faster than lists.
const MANY_NEIGHBOURS: u64 = 256;

/// All methods that suit the problem, up to the first that reaches the bound.
pub(super) fn run(prepared: &Prepared, bound: u64, limit: Option<u64>) -> Result<Found, PackError> {
    let live = &prepared.live;
    let pairs = Neighbours::count(live);
    let listed = pairs <= FEW_PAIRS || pairs <= MANY_NEIGHBOURS * live.len() as u64;
    let mut best = Best::new(bound);
    if listed {
        by_lists(prepared, limit, &mut best);
    } else {
        by_trees(prepared, limit, &mut best);
    }
    best.into_result()
}

/// Whether the bound is reached.
fn by_lists(prepared: &Prepared, limit: Option<u64>, best: &mut Best) -> bool {
    let live = &prepared.live;
    let neighbours = Neighbours::of(live);
    let rules = ChunkRule::of(limit);
    let lowest = |method, order: &[u32], best: &mut Best| {
        rules.iter().any(|&rule| {
            let occupancy = Lists::new(live, &neighbours, Gap::Lowest);
            best.offer(place_in_order(live, occupancy, order, limit, rule).and_then(|p| found(live, p, method)))
        })
    };
    let given: Vec<u32> = (0..live.len() as u32).collect();
    let best_fit = |best: &mut Best| {
        let occupancy = Lists::new(live, &neighbours, Gap::Tightest);
        let attempt = place_in_order(live, occupancy, &given, limit, ChunkRule::First);
        best.offer(attempt.and_then(|p| found(live, p, Method::BestFit)))
    };
    lowest(Method::LargestFirst, &largest_first(live, Tie::EarlierBirth), best)
        || best_fit(best)
        || lowest(Method::FirstFit, &given, best)
        || lowest(Method::LargestFirstLate, &largest_first(live, Tie::LaterBirth), best)
        || (limit.is_none() && skylines(prepared, &neighbours, best))
}

fn skylines(prepared: &Prepared, neighbours: &Neighbours, best: &mut Best) -> bool {
    let live = &prepared.live;
    // The bound was computed from the same sums.
    let Ok(loads) = loads(prepared) else { return false };
    SkylineKey::ALL.into_iter().any(|key| {
        let attempt = skyline(live, neighbours, &loads, key).map(|offsets| {
            let peak = live.iter().zip(&offsets).map(|(b, offset)| offset + b.size).max().unwrap_or(0);
            Found { places: offsets.into_iter().map(|offset| (0, offset)).collect(), peak, method: Method::Skyline }
        });
        best.offer(attempt)
    })
}

/// Whether the bound is reached.
fn by_trees(prepared: &Prepared, limit: Option<u64>, best: &mut Best) -> bool {
    let live = &prepared.live;
    let mut attempt = |method, order: &[u32]| {
        ChunkRule::of(limit).iter().any(|&rule| {
            let occupancy = Trees::new(prepared.steps.len());
            best.offer(place_in_order(live, occupancy, order, limit, rule).and_then(|p| found(live, p, method)))
        })
    };
    attempt(Method::LargestFirst, &largest_first(live, Tie::EarlierBirth))
        || attempt(Method::LargestFirstLate, &largest_first(live, Tie::LaterBirth))
        || attempt(Method::FirstFit, &(0..live.len() as u32).collect::<Vec<u32>>())
}

fn found(live: &[Live], p: Places, method: Method) -> Result<Found, PackError> {
    match (p.peak(), live.first()) {
        (Some(peak), _) => Ok(Found { places: p.places, peak, method }),
        (None, Some(b)) => Err(PackError::OffsetOverflow { buffer: b.id }),
        (None, None) => Ok(Found { places: Vec::new(), peak: 0, method: Method::Trivial }),
    }
}

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

/// Pairs that meet are listed up to this many, or this many a buffer.
const FEW_PAIRS: u64 = 1 << 20;
const FEW_NEIGHBOURS: u64 = 256;
/// With more neighbours than this on average, a tree finds the lowest gap faster than a list.
const NEIGHBOURS_FOR_LISTS: u64 = 64;

/// All methods that suit the problem, up to the first that reaches the bound.
pub(super) fn run(prepared: &Prepared, bound: u64, limit: Option<u64>) -> Result<Found, PackError> {
    let live = &prepared.live;
    if let Some(places) = live.iter().map(|b| b.fixed.map(|f| (0, f))).collect() {
        // Fixed ends are part of the bound.
        return Ok(Found { places, peak: bound, method: Method::Trivial });
    }
    let pairs = Neighbours::count(live);
    let count = live.len() as u64;
    let neighbours = (pairs <= FEW_PAIRS.max(FEW_NEIGHBOURS * count)).then(|| Neighbours::of(live));
    let lists = neighbours.as_ref().filter(|_| pairs <= NEIGHBOURS_FOR_LISTS * count);
    let mut best = Best::new(bound);
    let reached = in_orders(prepared, lists, limit, &mut best);
    if let Some(neighbours) = &neighbours
        && !reached
    {
        let _reached = best_fit(prepared, neighbours, limit, &mut best)
            || (limit.is_none() && skylines(prepared, neighbours, &mut best));
    }
    best.into_result()
}

/// Each buffer at the lowest offset, in several orders. Whether the bound is reached.
fn in_orders(prepared: &Prepared, lists: Option<&Neighbours>, limit: Option<u64>, best: &mut Best) -> bool {
    let live = &prepared.live;
    let mut attempt = |method, order: &[u32]| {
        ChunkRule::of(limit).iter().any(|&rule| {
            let places = match lists {
                Some(n) => place_in_order(live, Lists::new(live, n, Gap::Lowest), order, limit, rule),
                None => place_in_order(live, Trees::new(prepared.steps.len()), order, limit, rule),
            };
            best.offer(places.and_then(|p| found(live, p, method)))
        })
    };
    attempt(Method::LargestFirst, &largest_first(live, Tie::EarlierBirth))
        || attempt(Method::LargestFirstLate, &largest_first(live, Tie::LaterBirth))
        || attempt(Method::FirstFit, &(0..live.len() as u32).collect::<Vec<u32>>())
}

fn best_fit(prepared: &Prepared, neighbours: &Neighbours, limit: Option<u64>, best: &mut Best) -> bool {
    let live = &prepared.live;
    let given: Vec<u32> = (0..live.len() as u32).collect();
    let lists = Lists::new(live, neighbours, Gap::Tightest);
    let places = place_in_order(live, lists, &given, limit, ChunkRule::First);
    best.offer(places.and_then(|p| found(live, p, Method::BestFit)))
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

fn found(live: &[Live], p: Places, method: Method) -> Result<Found, PackError> {
    match (p.peak(), live.first()) {
        (Some(peak), _) => Ok(Found { places: p.places, peak, method }),
        (None, Some(b)) => Err(PackError::OffsetOverflow { buffer: b.id }),
        (None, None) => Ok(Found { places: Vec::new(), peak: 0, method: Method::Trivial }),
    }
}

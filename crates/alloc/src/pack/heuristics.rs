//! The greedy methods in the order in which they are tried, up to the first that reaches the bound.

use super::chunks::{ChunkRule, place_in_chunks};
use super::error::PackError;
use super::greedy::{Gap, Neighbours, Tie, largest_first, place_in_order};
use super::prepared::Prepared;
use super::problem::Method;

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

/// Without a chunk limit.
pub(super) fn one_chunk(prepared: &Prepared, bound: u64) -> Result<Found, PackError> {
    let live = &prepared.live;
    let neighbours = Neighbours::of(live);
    let given: Vec<u32> = (0..live.len() as u32).collect();
    let mut best = Best::new(bound);
    let attempts = [
        (Method::LargestFirst, Gap::Lowest),
        (Method::LargestFirstLate, Gap::Lowest),
        (Method::BestFit, Gap::Tightest),
        (Method::FirstFit, Gap::Lowest),
    ];
    for (method, gap) in attempts {
        let order = match method {
            Method::LargestFirst => largest_first(live, Tie::EarlierBirth),
            Method::LargestFirstLate => largest_first(live, Tie::LaterBirth),
            _ => given.clone(),
        };
        let attempt = place_in_order(live, &neighbours, &order, gap).map(|o| Found {
            places: o.offsets.into_iter().map(|offset| (0, offset)).collect(),
            peak: o.peak,
            method,
        });
        if best.offer(attempt) {
            break;
        }
    }
    best.into_result()
}

/// With a chunk limit.
pub(super) fn chunked(prepared: &Prepared, bound: u64, limit: u64) -> Result<Found, PackError> {
    let live = &prepared.live;
    let neighbours = Neighbours::of(live);
    let orders = [
        (Method::LargestFirst, largest_first(live, Tie::EarlierBirth)),
        (Method::LargestFirstLate, largest_first(live, Tie::LaterBirth)),
        (Method::FirstFit, (0..live.len() as u32).collect()),
    ];
    let rules = [ChunkRule::LeastGrowth, ChunkRule::LeastGrowthBeforeNew, ChunkRule::First];
    let mut best = Best::new(bound);
    for (method, order) in &orders {
        for rule in rules {
            let attempt = place_in_chunks(live, &neighbours, order, limit, rule).and_then(|c| {
                // Without buffers there is nothing to overflow.
                let peak = c.peak().ok_or_else(|| PackError::OffsetOverflow { buffer: live[0].id })?;
                Ok(Found { places: c.places, peak, method: *method })
            });
            if best.offer(attempt) {
                return best.into_result();
            }
        }
    }
    best.into_result()
}

//! Restarts, and the search for the lowest capacity.

use super::instance::Instance;
use super::orders::{Key, Order, Shuffle, sorted};
use super::tree::{Focus, Outcome, Tree};

/// What is tried in every round, in this order.
pub(super) const PORTFOLIO: [(Focus, Key); 7] = [
    (Focus::Lowest, Key::Load),
    (Focus::Tightest, Key::Degree),
    (Focus::Lowest, Key::Area),
    (Focus::Tightest, Key::Lifetime),
    (Focus::Tightest, Key::Load),
    (Focus::Tightest, Key::Total),
    (Focus::Lowest, Key::Lifetime),
];

/// A search with a budget of nodes.
pub(in super::super) struct Search<'a> {
    instance: &'a Instance,
    tree: Tree<'a>,
    orders: Vec<Vec<u32>>,
    budget: u64,
    stopped: bool,
}

/// What a minimisation ends with, in units.
#[derive(Clone, Debug)]
pub(in super::super) struct Minimum {
    /// No packing has a lower peak.
    pub lower_bound: u64,
    /// Offsets by item, if any are better than what was known before.
    pub offsets: Option<Vec<u64>>,
}

impl<'a> Search<'a> {
    pub fn new(instance: &'a Instance, budget: u64) -> Self {
        let orders = PORTFOLIO.iter().map(|&(_, key)| sorted(instance, key)).collect();
        Self { instance, tree: Tree::new(instance), orders, budget, stopped: false }
    }

    /// Whether everything fits below `capacity`; `Limit` when the budget is spent.
    pub fn decide(&mut self, capacity: u64, stop: &mut dyn FnMut() -> bool) -> Outcome {
        let mut round = 1;
        while self.budget > 0 && !self.stopped {
            let outcome = self.round(capacity, round, stop);
            if outcome != Outcome::Limit {
                return outcome;
            }
            round += 1;
        }
        Outcome::Limit
    }

    /// Every strategy once: in its own order in the first round, a little shuffled later.
    fn round(&mut self, capacity: u64, round: u64, stop: &mut dyn FnMut() -> bool) -> Outcome {
        let limit = luby(round).saturating_mul(3 * self.instance.items.len() as u64);
        for (strategy, &(focus, _)) in PORTFOLIO.iter().enumerate() {
            self.stopped |= stop();
            if self.budget == 0 || self.stopped {
                return Outcome::Limit;
            }
            let mut sorted = self.orders[strategy].clone();
            if round > 1 {
                Shuffle::new(round, strategy as u64).apply(&mut sorted);
            }
            let order = Order::of_sorted(self.instance, &sorted);
            let (outcome, nodes) = self.tree.search(capacity, focus, &order, limit.min(self.budget), stop);
            self.budget = self.budget.saturating_sub(nodes);
            if outcome != Outcome::Limit {
                return outcome;
            }
        }
        Outcome::Limit
    }

    /// The lowest peak. Every other round aims at the bound; those between bisect the gap to the best known, with longer
    /// rounds each time the gap is closed.
    pub fn minimise(&mut self, lower_bound: u64, best: u64, stop: &mut dyn FnMut() -> bool) -> Minimum {
        let mut result = Minimum { lower_bound, offsets: None };
        let mut best = best;
        let (mut bound_round, mut gap_round) = (0, 1);
        // Nothing below `floor` was found in this pass over the gap.
        let mut floor = lower_bound;
        while result.lower_bound < best && self.budget > 0 && !self.stopped {
            bound_round += 1;
            self.aim(result.lower_bound, bound_round, &mut best, &mut result, stop);
            floor = floor.max(result.lower_bound + 1);
            if floor >= best {
                floor = result.lower_bound + 1;
                gap_round += 1;
            }
            let target = floor + best.saturating_sub(floor) / 2;
            if target < best && !self.aim(target, gap_round, &mut best, &mut result, stop) {
                floor = target + 1;
            }
        }
        result
    }

    /// One round at a target, which is below the best known peak. Whether a packing is found.
    fn aim(
        &mut self,
        target: u64,
        round: u64,
        best: &mut u64,
        result: &mut Minimum,
        stop: &mut dyn FnMut() -> bool,
    ) -> bool {
        match self.round(target, round, stop) {
            Outcome::Found(offsets) => {
                *best = self.peak(&offsets);
                result.offsets = Some(offsets);
                true
            }
            Outcome::Exhausted => {
                result.lower_bound = target + 1;
                false
            }
            Outcome::Limit => false,
        }
    }

    fn peak(&self, offsets: &[u64]) -> u64 {
        self.instance.items.iter().zip(offsets).map(|(item, &offset)| offset + item.size).max().unwrap_or(0)
    }
}

/// 1, 1, 2, 1, 1, 2, 4, … for 1, 2, 3, …: within a logarithm of the best restart times for any search (Luby, Sinclair
/// and Zuckerman, 1993).
fn luby(mut k: u64) -> u64 {
    loop {
        let bits = 64 - k.leading_zeros();
        if k == (1 << bits) - 1 {
            return 1 << (bits - 1);
        }
        k -= (1 << (bits - 1)) - 1;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn restart_limits_follow_the_known_sequence() {
        let first: Vec<u64> = (1..=15).map(super::luby).collect();
        assert_eq!(first, [1, 1, 2, 1, 1, 2, 4, 1, 1, 2, 1, 1, 2, 4, 8]);
    }
}

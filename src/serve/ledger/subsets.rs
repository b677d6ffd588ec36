//! Subsets in the order of their bytes.
//!
//! Candidates are sorted by bytes, those of equal bytes by idle time, longest first. From a set whose last member is the
//! i-th, two sets are made: with the (i + 1)-th besides, and with it in place of the i-th. Every set is made once, and
//! no set comes before the one that it is made from; so a heap gives them in order.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// Somebody who could go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Candidate {
    /// Bytes; more than 0.
    pub(super) bytes: u64,
    /// Idle time.
    pub(super) idle: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Set {
    bytes: u128,
    idle: u128,
    /// Places in the sorted candidates, rising.
    members: Vec<usize>,
}

impl Set {
    fn key(&self) -> (u128, Reverse<u128>, &[usize]) {
        (self.bytes, Reverse(self.idle), &self.members)
    }
}

impl Ord for Set {
    fn cmp(&self, other: &Self) -> Ordering {
        self.key().cmp(&other.key())
    }
}

impl PartialOrd for Set {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// All subsets, the empty one first, by bytes and then by idle time, longest first.
pub(super) struct Subsets {
    /// Sorted, with the places that they had.
    sorted: Vec<(usize, Candidate)>,
    heap: BinaryHeap<Reverse<Set>>,
    began: bool,
}

impl Subsets {
    pub(super) fn new(candidates: Vec<Candidate>) -> Self {
        let mut sorted: Vec<(usize, Candidate)> = candidates.into_iter().enumerate().collect();
        sorted.sort_by_key(|(i, c)| (c.bytes, Reverse(c.idle), *i));
        Self { sorted, heap: BinaryHeap::new(), began: false }
    }

    fn push(&mut self, members: Vec<usize>) {
        let sum = |of: fn(&Candidate) -> u64| members.iter().map(|&i| u128::from(of(&self.sorted[i].1))).sum();
        let (bytes, idle) = (sum(|c| c.bytes), sum(|c| c.idle));
        self.heap.push(Reverse(Set { bytes, idle, members }));
    }
}

impl Iterator for Subsets {
    type Item = Vec<usize>;

    fn next(&mut self) -> Option<Vec<usize>> {
        if !self.began {
            self.began = true;
            if !self.sorted.is_empty() {
                self.push(vec![0]);
            }
            return Some(Vec::new());
        }
        let Reverse(set) = self.heap.pop()?;
        if let Some(next) = set.members.last().map(|last| last + 1).filter(|&n| n < self.sorted.len()) {
            let mut more = set.members.clone();
            more.push(next);
            self.push(more);
            let mut other = set.members.clone();
            other.pop();
            other.push(next);
            self.push(other);
        }
        Some(set.members.iter().map(|&i| self.sorted[i].0).collect())
    }
}

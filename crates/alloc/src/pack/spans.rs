//! Which bytes are taken at which steps, for many buffers: a segment tree over steps whose nodes hold unions of ranges.
//!
//! Dense packings have few gaps, so the unions are short where lists of overlapping buffers are long.

use super::prepared::Live;

/// A union of byte ranges: disjoint, not adjacent, sorted.
#[derive(Clone, Debug, Default)]
struct Union {
    ranges: Vec<(u64, u64)>,
}

impl Union {
    fn add(&mut self, start: u64, end: u64) {
        // Ranges that touch the new one.
        let from = self.ranges.partition_point(|&(_, e)| e < start);
        let to = from + self.ranges[from..].partition_point(|&(s, _)| s <= end);
        if from == to {
            self.ranges.insert(from, (start, end));
            return;
        }
        let merged = (start.min(self.ranges[from].0), end.max(self.ranges[to - 1].1));
        self.ranges[from] = merged;
        self.ranges.drain(from + 1..to);
    }
}

/// A walk over a union towards higher offsets.
struct Walk<'u> {
    /// The ranges not passed yet.
    ranges: &'u [(u64, u64)],
}

impl Walk<'_> {
    /// The end of a range that shares bytes with `start..end`. No later question starts lower.
    fn blocks(&mut self, start: u64, end: u64) -> Option<u64> {
        let mut step = 1;
        while step < self.ranges.len() && self.ranges[step - 1].1 <= start {
            self.ranges = &self.ranges[step..];
            step *= 2;
        }
        let near = &self.ranges[..step.min(self.ranges.len())];
        self.ranges = &self.ranges[near.partition_point(|&(_, e)| e <= start)..];
        self.ranges.first().filter(|&&(s, _)| s < end).map(|&(_, e)| e)
    }
}

/// What is taken.
pub(super) struct Spans {
    /// Number of leaves, a power of two; node `i` has the children `2i` and `2i + 1`, leaf `s` is node `leaves + s`.
    leaves: usize,
    /// Bytes taken during all steps of a node.
    whole: Vec<Union>,
    /// Bytes taken during some step of a node.
    part: Vec<Union>,
}

impl Spans {
    /// Nothing taken yet.
    pub fn new(steps: usize) -> Self {
        let leaves = steps.max(1).next_power_of_two();
        Self { leaves, whole: vec![Union::default(); 2 * leaves], part: vec![Union::default(); 2 * leaves] }
    }

    /// Takes bytes during the steps of a buffer. O(log steps) unions change.
    pub fn take(&mut self, b: &Live, offset: u64) {
        let end = offset + b.size;
        let (mut low, mut high) = (b.first as usize + self.leaves, b.last as usize + self.leaves);
        let ends = (low, high - 1);
        while low < high {
            if low % 2 == 1 {
                self.whole[low].add(offset, end);
                self.part[low].add(offset, end);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                self.whole[high].add(offset, end);
                self.part[high].add(offset, end);
            }
            (low, high) = (low / 2, high / 2);
        }
        // Every node above a node of the cover is above one of the two ends.
        let (mut left, mut right) = (ends.0 / 2, ends.1 / 2);
        while left > 0 {
            self.part[left].add(offset, end);
            if right != left {
                self.part[right].add(offset, end);
            }
            (left, right) = (left / 2, right / 2);
        }
    }

    /// The lowest offset at which a buffer is free during its steps; `None` if its end would overflow.
    pub fn lowest(&self, b: &Live) -> Option<u64> {
        let mut walks = self.walks(b);
        let (mut offset, mut end) = b.end_at(0)?;
        let mut at = 0;
        while let Some(walk) = walks.get_mut(at) {
            match walk.blocks(offset, end) {
                Some(floor) => {
                    (offset, end) = b.end_at(floor)?;
                    at = 0;
                }
                None => at += 1,
            }
        }
        Some(offset)
    }

    /// Over unions that hold all bytes taken at some step of a buffer, and no others; those with the fewest ranges, which
    /// lead farthest at once, first.
    fn walks(&self, b: &Live) -> Vec<Walk<'_>> {
        let mut unions: Vec<&Union> = Vec::with_capacity(4 * self.leaves.ilog2() as usize + 2);
        let (mut low, mut high) = (b.first as usize + self.leaves, b.last as usize + self.leaves);
        let ends = (low, high - 1);
        while low < high {
            if low % 2 == 1 {
                unions.push(&self.part[low]);
                low += 1;
            }
            if high % 2 == 1 {
                high -= 1;
                unions.push(&self.part[high]);
            }
            (low, high) = (low / 2, high / 2);
        }
        let (mut left, mut right) = (ends.0, ends.1);
        while left > 0 {
            unions.push(&self.whole[left]);
            if right != left {
                unions.push(&self.whole[right]);
            }
            (left, right) = (left / 2, right / 2);
        }
        unions.retain(|u| !u.ranges.is_empty());
        unions.sort_by_key(|u| u.ranges.len());
        unions.into_iter().map(|u| Walk { ranges: &u.ranges }).collect()
    }
}

//! Which bytes of which chunk are taken while a buffer is alive: two ways to know.

use super::neighbours::Neighbours;
use super::prepared::Live;
use super::spans::Spans;

/// Which free place a buffer takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gap {
    /// The lowest that holds it.
    Lowest,
    /// The smallest that holds it, the lower on a tie; past everything only if no gap does.
    Tightest,
}

/// What is placed where.
pub(super) trait Occupancy {
    /// The buffer at this position in the list is about to be asked for.
    fn look_at(&mut self, position: u32);
    /// The offset that the buffer looked at can have in a chunk; `None` if its end would overflow.
    fn offset_in(&self, chunk: u32, b: &Live) -> Option<u64>;
    /// Places a buffer.
    fn take(&mut self, position: u32, b: &Live, chunk: u32, offset: u64);
}

/// From the list of buffers that each one meets.
pub(super) struct Lists<'a> {
    live: &'a [Live],
    neighbours: &'a Neighbours,
    gap: Gap,
    placed: Vec<Option<(u32, u64)>>,
    /// What the buffer looked at must avoid: chunk, start and end, sorted.
    taken: Vec<(u32, u64, u64)>,
}

impl<'a> Lists<'a> {
    pub fn new(live: &'a [Live], neighbours: &'a Neighbours, gap: Gap) -> Self {
        Self { live, neighbours, gap, placed: vec![None; live.len()], taken: Vec::new() }
    }
}

impl Occupancy for Lists<'_> {
    fn look_at(&mut self, position: u32) {
        self.taken.clear();
        for &n in self.neighbours.of_buffer(position) {
            if let Some((chunk, offset)) = self.placed[n as usize] {
                self.taken.push((chunk, offset, offset + self.live[n as usize].size));
            }
        }
        self.taken.sort_unstable();
    }

    fn offset_in(&self, chunk: u32, b: &Live) -> Option<u64> {
        let from = self.taken.partition_point(|t| t.0 < chunk);
        let here = self.taken[from..].iter().take_while(|t| t.0 == chunk).map(|&(_, start, end)| (start, end));
        match self.gap {
            Gap::Lowest => choose_lowest(b, here),
            Gap::Tightest => choose_tightest(b, here),
        }
    }

    fn take(&mut self, position: u32, _b: &Live, chunk: u32, offset: u64) {
        self.placed[position as usize] = Some((chunk, offset));
    }
}

/// From trees of spans, one a chunk. Always the lowest gap.
pub(super) struct Trees {
    steps: usize,
    chunks: Vec<Spans>,
}

impl Trees {
    pub fn new(steps: usize) -> Self {
        Self { steps, chunks: Vec::new() }
    }
}

impl Occupancy for Trees {
    fn look_at(&mut self, _position: u32) {}

    fn offset_in(&self, chunk: u32, b: &Live) -> Option<u64> {
        match self.chunks.get(chunk as usize) {
            Some(spans) => spans.lowest(b),
            None => b.end_at(0).map(|(offset, _)| offset),
        }
    }

    fn take(&mut self, _position: u32, b: &Live, chunk: u32, offset: u64) {
        while self.chunks.len() <= chunk as usize {
            self.chunks.push(Spans::new(self.steps));
        }
        self.chunks[chunk as usize].take(b, offset);
    }
}

/// The lowest offset for `b` among the taken ranges, sorted by start; `None` if its end would overflow.
fn choose_lowest(b: &Live, taken: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
    let mut floor = 0u64;
    for (start, end) in taken {
        if start > floor && b.end_at(floor).is_some_and(|(_, e)| e <= start) {
            break;
        }
        floor = floor.max(end);
    }
    b.end_at(floor).map(|(offset, _)| offset)
}

/// The offset of the tightest gap; past everything if none holds it; `None` if its end would overflow.
fn choose_tightest(b: &Live, taken: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
    let mut floor = 0u64;
    let mut best: Option<(u64, u64)> = None;
    for (start, end) in taken {
        if start > floor
            && let Some((offset, own_end)) = b.end_at(floor)
            && own_end <= start
            && best.is_none_or(|(least, _)| start - floor < least)
        {
            best = Some((start - floor, offset));
        }
        floor = floor.max(end);
    }
    match best {
        Some((_, offset)) => Some(offset),
        None => b.end_at(floor).map(|(offset, _)| offset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pack::greedy::{ChunkRule, Tie, largest_first, place_in_order};
    use crate::pack::prepared::Prepared;
    use crate::pack::problem::{PackBuffer, PackProblem};
    use loadmaster_graph::{Align, Bytes, Step};

    /// Knuth's linear congruential generator.
    struct Random(u64);

    impl Random {
        fn below(&mut self, n: u64) -> u64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.0 >> 33) % n
        }
    }

    fn random_problem(seed: u64) -> PackProblem {
        let mut random = Random(seed);
        let (count, steps) = (random.below(120), 1 + random.below(80));
        let buffers = (0..count)
            .map(|_| {
                let (a, b) = (random.below(steps) as u32, random.below(steps) as u32);
                let align = Align::new(1 << random.below(5)).unwrap();
                PackBuffer::new(Bytes(1 + random.below(50)), align, Step(a.min(b))..Step(a.max(b) + 1))
            })
            .collect();
        let max_chunk = (random.below(2) == 0).then(|| Bytes(20 + random.below(300)));
        PackProblem { buffers, max_chunk }
    }

    #[test]
    fn lists_and_trees_place_everything_at_the_same_offsets() {
        for seed in 0..400 {
            let problem = random_problem(seed);
            let prepared = Prepared::new(&problem).unwrap();
            let live = &prepared.live;
            let neighbours = Neighbours::of(live);
            let order = largest_first(live, Tie::LaterBirth);
            let limit = problem.max_chunk.map(Bytes::get);
            for &rule in ChunkRule::of(limit) {
                let lists = Lists::new(live, &neighbours, Gap::Lowest);
                let lists = place_in_order(live, lists, &order, limit, rule).unwrap();
                let trees = Trees::new(prepared.steps.len());
                let trees = place_in_order(live, trees, &order, limit, rule).unwrap();
                assert_eq!((lists.places, lists.ends), (trees.places, trees.ends), "seed {seed}");
            }
        }
    }

    #[test]
    fn pairs_are_counted_as_they_are_listed() {
        for seed in 0..100 {
            let prepared = Prepared::new(&random_problem(seed)).unwrap();
            let neighbours = Neighbours::of(&prepared.live);
            let listed: usize = (0..prepared.live.len() as u32).map(|i| neighbours.of_buffer(i).len()).sum();
            assert_eq!(2 * Neighbours::count(&prepared.live), listed as u64, "seed {seed}");
        }
    }
}

//! The search against brute force: found exactly where a packing exists, with every strategy.

use super::super::error::PackError;
use super::super::prepared::{Live, Prepared};
use super::super::problem::{PackBuffer, PackProblem};
use super::instance::Instance;
use super::orders::{Order, Shuffle, sorted};
use super::rounds::PORTFOLIO;
use super::tree::{Outcome, Tree};
use loadmaster_graph::{Align, Bytes, Step};

/// The lowest peak over all orders in which each buffer lies on the highest end below it. Fixed buffers are
/// not in each other's way. Every packing can be pushed down into one of these.
fn least_peak(live: &[Live]) -> u64 {
    let mut best = u64::MAX;
    extend(live, &mut Vec::new(), 0, &mut best);
    best
}

fn extend(live: &[Live], placed: &mut Vec<(usize, u64)>, peak: u64, best: &mut u64) {
    if peak >= *best {
        return;
    }
    if placed.len() == live.len() {
        *best = peak;
        return;
    }
    for (i, b) in live.iter().enumerate() {
        if placed.iter().any(|&(p, _)| p == i) {
            continue;
        }
        let floor =
            placed.iter().filter(|&&(p, _)| live[p].meets(b)).map(|&(p, o)| o + live[p].size).max().unwrap_or(0);
        let offset = match b.fixed {
            Some(fixed) if fixed < floor => continue,
            Some(fixed) => fixed,
            None => floor.next_multiple_of(b.align),
        };
        placed.push((i, offset));
        extend(live, placed, peak.max(offset + b.size), best);
        placed.pop();
    }
}

/// Every strategy, in its own order and shuffled, finds a packing below `least` and none below `least - 1`.
fn search_agrees(problem: &PackProblem, seed: u64) {
    let prepared = match Prepared::new(problem) {
        // Fixed buffers in each other's way are refused before any search.
        Err(PackError::FixedConflict { .. }) => return,
        prepared => prepared.unwrap(),
    };
    let least = least_peak(&prepared.live);
    let instance = Instance::new(&prepared.live).unwrap();
    let least = least.div_ceil(instance.unit);
    let mut tree = Tree::new(&instance);
    for (strategy, &(focus, key)) in PORTFOLIO.iter().enumerate() {
        let mut items = sorted(&instance, key);
        if seed % 2 == 1 {
            Shuffle::new(seed, strategy as u64).apply(&mut items);
        }
        let order = Order::of_sorted(&instance, &items);
        let mut run = |capacity| tree.search(capacity, focus, &order, u64::MAX, &mut || false).0;
        match run(least) {
            Outcome::Found(offsets) => assert_legal(&instance, &offsets, least, problem),
            other => panic!("{other:?} at {least} with {focus:?} {key:?}: {problem:?}"),
        }
        for below in [least - 1, least.saturating_sub(2)] {
            assert_eq!(run(below), Outcome::Exhausted, "at {below} with {focus:?} {key:?}: {problem:?}");
        }
    }
}

fn assert_legal(instance: &Instance, offsets: &[u64], capacity: u64, problem: &PackProblem) {
    for (i, (a, &offset)) in instance.items.iter().zip(offsets).enumerate() {
        let legal = offset % a.align == 0 && a.fixed.is_none_or(|f| f == offset) && offset + a.size <= capacity;
        assert!(legal, "{problem:?}: {offsets:?}");
        for (b, &other) in instance.items.iter().zip(offsets).take(i) {
            let meet = a.first < b.last && b.first < a.last;
            let apart = offset + a.size <= other || other + b.size <= offset;
            assert!(!meet || apart, "{problem:?}: {offsets:?}");
        }
    }
}

fn buffer(size: u64, first: u32, last: u32) -> PackBuffer {
    PackBuffer::new(Bytes(size), Align::ONE, Step(first)..Step(last))
}

/// Every way to choose `count` of `kinds` kinds, order apart.
fn multisets(kinds: usize, count: usize, visit: &mut impl FnMut(&[usize])) {
    let mut chosen = vec![0; count];
    loop {
        visit(&chosen);
        let Some(k) = (0..count).rev().find(|&k| chosen[k] + 1 < kinds) else { return };
        let next = chosen[k] + 1;
        chosen[k..].fill(next);
    }
}

fn lifetimes(steps: u32) -> Vec<(u32, u32)> {
    (0..steps).flat_map(|first| (first + 1..=steps).map(move |last| (first, last))).collect()
}

#[test]
fn all_problems_of_four_buffers_over_four_steps_are_decided_exactly() {
    let lifetimes = lifetimes(4);
    let sizes = 3;
    for count in 1..=4 {
        multisets(lifetimes.len() * sizes, count, &mut |kinds| {
            let buffers = kinds
                .iter()
                .map(|&k| {
                    let (first, last) = lifetimes[k / sizes];
                    buffer(1 + (k % sizes) as u64, first, last)
                })
                .collect();
            search_agrees(&PackProblem { buffers, max_chunk: None }, 0);
        });
    }
}

#[test]
fn all_lifetimes_of_five_buffers_over_five_steps_are_decided_exactly() {
    let lifetimes = lifetimes(5);
    let mut seed = 0;
    multisets(lifetimes.len(), 5, &mut |kinds| {
        seed += 1;
        let mut random = Random(seed);
        let buffers = kinds
            .iter()
            .map(|&k| {
                let (first, last) = lifetimes[k];
                buffer(1 + random.below(5), first, last)
            })
            .collect();
        search_agrees(&PackProblem { buffers, max_chunk: None }, seed);
    });
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }
}

/// Six to eight buffers; every kind of trait is off in half of the problems.
fn random_problem(seed: u64) -> PackProblem {
    let mut random = Random(seed);
    let count = 6 + random.below(3);
    let steps = 2 + random.below(8);
    let (sizes, unit) = (2 + random.below(9), [1, 3, 8, 64][random.below(4) as usize]);
    let aligned = random.below(2) == 0;
    let fixed = random.below(2) == 0;
    let few_lifetimes = random.below(2) == 0;
    let buffers = (0..count)
        .map(|_| {
            let (mut first, mut last) = (random.below(steps), random.below(steps));
            if few_lifetimes {
                (first, last) = (first / 2 * 2, last / 2 * 2);
            }
            let (first, last) = (first.min(last) as u32, first.max(last) as u32 + 1);
            let mut b = buffer(unit * (1 + random.below(sizes)), first, last);
            if aligned {
                b.align = Align::new(1 << random.below(6)).unwrap();
            }
            if fixed && random.below(4) == 0 {
                b.offset = Some(Bytes(random.below(12) * b.align.get().max(unit)));
                b.align = Align::ONE;
            }
            b
        })
        .collect();
    PackProblem { buffers, max_chunk: None }
}

#[test]
fn random_problems_of_six_to_eight_buffers_are_decided_exactly() {
    for seed in 0..4000 {
        search_agrees(&random_problem(seed), seed);
    }
}

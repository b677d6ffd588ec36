//! Random problems through every effort, with the independent checker.

#![allow(clippy::unwrap_used, clippy::panic)]
#![allow(missing_docs)]

use loadmaster_alloc::pack::{Effort, PackBuffer, PackProblem, check, pack};
use loadmaster_graph::{Align, Bytes, Step};

/// A small generator with a fixed sequence for each seed (SplitMix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

fn random_problem(rng: &mut Rng) -> PackProblem {
    let count = rng.below(40);
    let steps = 1 + rng.below(30) as u32;
    let unit = [1, 7, 32, 96][rng.below(4) as usize];
    let max_chunk = (rng.below(2) == 0).then(|| Bytes(unit * (1 + rng.below(40))));
    let buffers = (0..count)
        .map(|_| {
            let start = rng.below(u64::from(steps)) as u32;
            let end = start + rng.below(u64::from(steps - start) + 1) as u32;
            let align = Align::new(1 << rng.below(6)).unwrap();
            PackBuffer::new(Bytes(unit * rng.below(20)), align, Step(start)..Step(end))
        })
        .collect();
    PackProblem { buffers, max_chunk }
}

#[test]
fn random_problems_are_packed_legally() {
    for seed in 0..3000 {
        let problem = random_problem(&mut Rng(seed));
        let packing = pack(&problem, Effort::Default).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        check(&problem, &packing).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{problem:?}\n{packing:?}"));
    }
}

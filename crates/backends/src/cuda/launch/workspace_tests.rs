//! What is planned for a node is enough for every smaller one.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::types::{Layout, NodeView, Target};
use super::{launches, workspace};
use loadmaster_graph::{DType, Dims, Op, contiguous_strides};

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

fn layout(dtype: DType, ne: Dims) -> Layout {
    Layout { dtype, ne, nb: contiguous_strides(dtype, &ne).unwrap() }
}

/// Extents of a batch: tokens of each sequence, sequences, cells of each.
#[derive(Clone, Copy, Debug)]
struct Batch {
    tokens: u64,
    sequences: u64,
    cells: u64,
}

/// Attention in one operation, with heads of 64.
fn attention(heads: u64, shared: u64, of: Batch) -> (Op, Vec<Option<Layout>>, Layout) {
    let q = layout(DType::F32, [64, of.tokens, heads, of.sequences]);
    let k = layout(DType::F16, [64, of.cells, heads / shared, of.sequences]);
    let dst = layout(DType::F32, [64, heads, of.tokens, of.sequences]);
    (Op::FlashAttnExt, vec![Some(q), Some(k), Some(k), None, None], dst)
}

/// Queries with cached keys, as in attention of several operations.
fn scores(heads: u64, shared: u64, of: Batch) -> (Op, Vec<Option<Layout>>, Layout) {
    let k = layout(DType::F16, [64, of.cells, heads / shared, of.sequences]);
    let q = layout(DType::F32, [64, of.tokens, heads, of.sequences]);
    let dst = layout(DType::F32, [of.cells, of.tokens, heads, of.sequences]);
    (Op::MulMat, vec![Some(k), Some(q)], dst)
}

/// Weights with all tokens.
fn product(weights: DType, rows: u64, of: Batch) -> (Op, Vec<Option<Layout>>, Layout) {
    let tokens = of.tokens * of.sequences;
    let w = layout(weights, [512, rows, 1, 1]);
    (Op::MulMat, vec![Some(w), Some(layout(DType::F32, [512, tokens, 1, 1]))], layout(DType::F32, [rows, tokens, 1, 1]))
}

/// Weights of 8 experts, of which each token has 4.
fn by_expert(weights: DType, rows: u64, of: Batch) -> (Op, Vec<Option<Layout>>, Layout) {
    let tokens = of.tokens * of.sequences;
    let w = layout(weights, [512, rows, 8, 1]);
    let x = layout(DType::F32, [512, 1, tokens, 1]);
    let ids = layout(DType::I32, [4, tokens, 1, 1]);
    (Op::MulMatId, vec![Some(w), Some(x), Some(ids)], layout(DType::F32, [rows, 4, tokens, 1]))
}

fn smaller(random: &mut Random, than: Batch) -> Batch {
    let sequences = 1 + random.below(than.sequences);
    let tokens = 1 + random.below(than.tokens * than.sequences / sequences);
    Batch { tokens, sequences, cells: 1 + random.below(than.cells) }
}

#[test]
fn no_smaller_batch_needs_a_larger_workspace() {
    let (mut random, mut some, mut grew) = (Random(5), 0, 0);
    for round in 0..4000 {
        let library = Target::described(random.pick(&[60, 75, 80, 90, 120]), 1 + random.below(200) as u32);
        let target = if random.below(2) == 0 { library } else { Target { library: None, ..library } };
        let shared = random.pick(&[1, 2, 4, 8]);
        let heads = shared * (1 + random.below(8));
        let (kind, rows) = (random.below(4), 1 + random.below(400));
        let weights = random.pick(&[DType::F32, DType::F16, DType::Bf16, DType::Q8_0, DType::Q4K]);
        let make = |of: Batch| match kind {
            0 => attention(heads, shared, of),
            1 => scores(heads, shared, of),
            2 => product(weights, rows, of),
            _ => by_expert(weights, rows, of),
        };
        let sequences = 1 + random.below(6);
        let tokens = 1 + random.below(600);
        let largest = Batch { tokens, sequences, cells: 256 * (1 + random.below(16)) };
        let bytes = |of: Batch, what: fn(&NodeView<'_>, &Target) -> u64| {
            let (op, src, dst) = make(of);
            what(&NodeView { op, params: &[], src: &src, dst }, &target)
        };
        let planned = bytes(largest, |view, target| workspace(view, target).unwrap());
        let own = bytes(largest, |view, target| launches(view, target).unwrap().scratch_bytes);
        assert!(own <= planned, "round {round}: {own} of {planned}");
        for _ in 0..20 {
            let less = smaller(&mut random, largest);
            let needed = bytes(less, |view, target| launches(view, target).unwrap().scratch_bytes);
            assert!(
                needed <= planned,
                "round {round}, {target}, {kind}: {less:?} of {largest:?}: {needed} of {planned}"
            );
            some += usize::from(needed > 0);
            grew += usize::from(needed > own);
        }
    }
    assert!(some > 10_000 && grew > 1000, "{some} with scratch memory, {grew} more than the largest itself");
}

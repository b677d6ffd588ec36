//! MUL_MAT and MUL_MAT_ID.

use crate::moves::{FLOATS, QUANTIZED};
use crate::tensor::{Host, Lay, Random};
use crate::{Case, Tolerance};
use loadmaster_graph::{DType, Op};

/// Squared error over squared terms: what rounding the activations costs (8 bits in blocks of 32 or 256, half, bfloat),
/// with room for summation.
pub fn tolerance(weights: DType) -> Tolerance {
    Tolerance::Terms(match weights {
        DType::F32 => 1e-11,
        DType::F16 => 1e-6,
        DType::Bf16 => 2e-5,
        _ => 5e-4,
    })
}

/// Types whose products add up in an order that the node asks for.
const ORDERED: [DType; 4] = [DType::F32, DType::F16, DType::Q4K, DType::Q6K];

/// Orders of summation: one column, many, many of which the last three are left over.
pub const ORDERS: [&[u32]; 3] = [&[], &[0, 0, 8], &[0, 0, 8 | 3 << 8]];

fn case(w: Host, x: Host, lay: Lay) -> Case {
    ordered(w, x, lay, ORDERS[0])
}

fn ordered(w: Host, x: Host, lay: Lay, order: &[u32]) -> Case {
    let ne = [w.ne[1], x.ne[1], x.ne[2], x.ne[3]];
    let tolerance = tolerance(w.dtype);
    Case::new(Op::MulMat, order, vec![Some(w), Some(x)], (DType::F32, ne, lay), tolerance)
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let rng = &mut Random(4);
    for dtype in QUANTIZED.into_iter().chain(FLOATS) {
        let block = dtype.block_len();
        // Odd numbers of blocks, rows and columns around every tile size.
        let lengths: &[u64] = if block == 1 { &[1, 7, 16, 64, 100] } else { &[block, 3 * block, 4 * block] };
        for &k in lengths {
            for rows in [1, 5, 16, 37] {
                for columns in [1, 2, 4, 9, 19] {
                    let w = Host::random(dtype, [k, rows, 1, 1], Lay::Packed, rng);
                    let x = Host::random(DType::F32, [k, columns, 1, 1], Lay::Packed, rng);
                    let orders = if ORDERED.contains(&dtype) { &ORDERS[..] } else { &ORDERS[..1] };
                    cases.extend(orders.iter().map(|o| ordered(w.clone(), x.clone(), Lay::Packed, o)));
                }
            }
        }
        // Heads that share weights, batches, rows that are apart, results between other bytes.
        for (w_lay, x_lay) in [(Lay::Packed, Lay::Transposed), (Lay::Padded, Lay::Padded), (Lay::Swapped, Lay::Swapped)]
        {
            let w = Host::random(dtype, [2 * block, 18, 2, 1], w_lay, rng);
            let x = Host::random(DType::F32, [2 * block, 5, 6, 2], x_lay, rng);
            cases.push(case(w, x, Lay::Padded));
        }
        let w = Host::random(dtype, [2 * block, 18, 2, 1], Lay::Padded, rng);
        let x = Host::random(DType::F16, [2 * block, 5, 2, 3], Lay::Padded, rng);
        cases.push(case(w, x, Lay::Packed));
    }
    // More than one tile of rows and columns.
    let rng = &mut Random(14);
    for dtype in QUANTIZED.into_iter().chain(FLOATS) {
        let k = dtype.block_len().max(32);
        let w = Host::random(dtype, [k, 70, 1, 1], Lay::Padded, rng);
        let x = Host::random(DType::F32, [k, 67, 1, 1], Lay::Packed, rng);
        cases.push(case(w, x, Lay::Padded));
    }
    let w = Host::zeros(DType::F32, [0, 3, 1, 1], Lay::Packed);
    let x = Host::zeros(DType::F32, [0, 2, 1, 1], Lay::Packed);
    cases.push(case(w, x, Lay::Packed));
    let w = Host::random(DType::F16, [32, 3, 1, 1], Lay::Packed, rng);
    let x = Host::zeros(DType::F32, [32, 0, 1, 1], Lay::Packed);
    cases.push(case(w, x, Lay::Packed));
    cases
}

pub fn by_id() -> Vec<Case> {
    let mut cases = Vec::new();
    let rng = &mut Random(5);
    for dtype in QUANTIZED.into_iter().chain(FLOATS) {
        let k = dtype.block_len() * 2;
        for (experts, used, tokens, shared) in [(4, 2, 1, 1), (5, 2, 9, 2), (3, 3, 30, 1), (8, 4, 3, 4)] {
            let w = Host::random(dtype, [k, 21, experts, 1], Lay::Padded, rng);
            let x = Host::random(DType::F32, [k, shared, tokens, 1], Lay::Padded, rng);
            let ids = Host::ints(DType::I32, [used, tokens, 1, 1], Lay::Padded, |_| rng.below(experts) as i64);
            let dst = (DType::F32, [21, used, tokens, 1], Lay::Padded);
            let src = vec![Some(w), Some(x), Some(ids)];
            cases.push(Case::new(Op::MulMatId, &[], src, dst, tolerance(dtype)));
        }
    }
    cases.extend(grouped(rng));
    cases
}

/// Many tokens whose experts are unevenly asked for: no expert twice, some never, all one, more than a tile of one.
fn grouped(rng: &mut Random) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::Q4_0, DType::Q6K] {
        let k = dtype.block_len().max(32);
        for used in 1..=8 {
            let (experts, tokens) = (16, [9, 10, 33][used as usize % 3]);
            let w = Host::random(dtype, [k, 7, experts, 1], Lay::Padded, rng);
            let x = Host::random(DType::F32, [k, if used % 2 == 0 { used } else { 1 }, tokens, 1], Lay::Padded, rng);
            let expert = |i: u64, t: u64| match used {
                1 => 15,
                2 => i * 9 + t % 2,
                _ => (i * 2 + t) % experts,
            };
            let ids = Host::ints(DType::I32, [used, tokens, 1, 1], Lay::Padded, |[i, t, ..]| expert(i, t) as i64);
            let dst = (DType::F32, [7, used, tokens, 1], Lay::Padded);
            cases.push(Case::new(Op::MulMatId, &[], vec![Some(w), Some(x), Some(ids)], dst, tolerance(dtype)));
        }
        let w = Host::random(dtype, [k, 65, 3, 1], Lay::Packed, rng);
        let x = Host::random(DType::F32, [k, 1, 130, 1], Lay::Packed, rng);
        let ids = Host::ints(DType::I32, [1, 130, 1, 1], Lay::Packed, |[_, t, ..]| if t == 5 { 0 } else { 2 });
        let dst = (DType::F32, [65, 1, 130, 1], Lay::Packed);
        cases.push(Case::new(Op::MulMatId, &[], vec![Some(w), Some(x), Some(ids)], dst, tolerance(dtype)));
    }
    cases
}

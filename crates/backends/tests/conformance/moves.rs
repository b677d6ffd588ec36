//! Operations that move elements: copies and casts, rows by index, repetition, concatenation.

use crate::tensor::{Host, Lay, Random};
use crate::{Case, Tolerance};
use loadmaster_graph::{DType, Op};

pub const QUANTIZED: [DType; 12] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Iq4Nl,
    DType::Q2K,
    DType::Q3K,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
    DType::Iq4Xs,
];
pub const FLOATS: [DType; 3] = [DType::F32, DType::F16, DType::Bf16];

/// How far a value may move when a row about normal is stored in a type: half a step of its codes.
fn stored(dtype: DType) -> Tolerance {
    match dtype {
        DType::F32 => Tolerance::Exact,
        DType::F16 => Tolerance::Each { abs: 1e-7, rel: 5e-4 },
        DType::Bf16 => Tolerance::Each { abs: 1e-7, rel: 4e-3 },
        DType::Q8_0 => Tolerance::Nmse(1e-4),
        DType::Q6K => Tolerance::Nmse(1e-3),
        DType::Q5_0 | DType::Q5_1 | DType::Q5K => Tolerance::Nmse(4e-3),
        DType::Q2K => Tolerance::Nmse(0.2),
        DType::Q3K => Tolerance::Nmse(0.06),
        _ => Tolerance::Nmse(0.02),
    }
}

/// Exact up to the rounding of a scale times a code.
const READ: Tolerance = Tolerance::Each { abs: 1e-6, rel: 1e-6 };

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let rng = &mut Random(3);
    copies(&mut cases, rng);
    casts(&mut cases, rng);
    rows(&mut cases, rng);
    layouts(&mut cases, rng);
    cases
}

fn copies(cases: &mut Vec<Case>, rng: &mut Random) {
    let lays = [Lay::Packed, Lay::Padded, Lay::Swapped, Lay::Transposed];
    let ne = [6, 5, 4, 2];
    for op in [Op::Dup, Op::Cpy, Op::Cont] {
        for from in lays {
            for to in lays {
                let x = Host::random(DType::F32, ne, from, rng);
                cases.push(Case::new(op, &[], vec![Some(x)], (DType::F32, ne, to), Tolerance::Exact));
            }
            // Other extents, the same order of elements.
            for other in [[30, 4, 2, 1], [240, 1, 1, 1], [4, 6, 5, 2]] {
                for to in [Lay::Packed, Lay::Padded] {
                    let x = Host::random(DType::F32, ne, from, rng);
                    cases.push(Case::new(op, &[], vec![Some(x)], (DType::F32, other, to), Tolerance::Exact));
                }
            }
        }
        let x = Host::ints(DType::I32, ne, Lay::Swapped, |_| rng.next() as i32 as i64);
        cases.push(Case::new(op, &[], vec![Some(x)], (DType::I32, ne, Lay::Packed), Tolerance::Exact));
        let x = Host::random(DType::F32, [1000, 40, 1, 1], Lay::Packed, rng);
        cases.push(Case::new(op, &[], vec![Some(x)], (DType::F32, [1000, 40, 1, 1], Lay::Packed), Tolerance::Exact));
        for dtype in QUANTIZED {
            let ne = [dtype.block_len() * 2, 3, 2, 1];
            let x = Host::random(dtype, ne, Lay::Padded, rng);
            cases.push(Case::new(op, &[], vec![Some(x)], (dtype, ne, Lay::Swapped), Tolerance::Exact));
        }
    }
}

fn casts(cases: &mut Vec<Case>, rng: &mut Random) {
    let ne = [64, 3, 2, 2];
    for from in FLOATS {
        for to in FLOATS {
            for lay in [Lay::Packed, Lay::Padded, Lay::Transposed] {
                let x = Host::random(from, ne, lay, rng);
                cases.push(Case::new(Op::Cpy, &[], vec![Some(x.clone())], (to, ne, Lay::Padded), stored(to)));
                cases.push(Case::new(Op::Cpy, &[], vec![Some(x)], (to, [32, 6, 4, 1], Lay::Packed), stored(to)));
            }
        }
        for to in QUANTIZED {
            let ne = [to.block_len() * 2, 3, 2, 1];
            let x = Host::random(from, ne, Lay::Padded, rng);
            cases.push(Case::new(Op::Cpy, &[], vec![Some(x)], (to, ne, Lay::Padded), stored(to)));
        }
    }
    for from in QUANTIZED {
        let ne = [from.block_len() * 2, 3, 2, 1];
        let x = Host::random(from, ne, Lay::Padded, rng);
        cases.push(Case::new(Op::Cpy, &[], vec![Some(x)], (DType::F32, ne, Lay::Padded), READ));
    }
}

fn rows(cases: &mut Vec<Case>, rng: &mut Random) {
    for dtype in QUANTIZED.into_iter().chain(FLOATS) {
        let n = dtype.block_len() * 2 + if dtype.block_len() == 1 { 5 } else { 0 };
        for lay in [Lay::Packed, Lay::Padded, Lay::Swapped] {
            let table = Host::random(dtype, [n, 11, 3, 2], lay, rng);
            let ids = Host::ints(DType::I32, [4, 3, 2, 1], Lay::Padded, |_| rng.below(11) as i64);
            let dst = (DType::F32, [n, 4, 3, 2], Lay::Padded);
            cases.push(Case::new(Op::GetRows, &[], vec![Some(table), Some(ids)], dst, READ));
        }
    }
    let table = Host::ints(DType::I32, [5, 9, 1, 1], Lay::Padded, |_| rng.below(1000) as i64);
    let ids = Host::ints(DType::I32, [7, 1, 1, 1], Lay::Packed, |_| rng.below(9) as i64);
    let dst = (DType::I32, [5, 7, 1, 1], Lay::Packed);
    cases.push(Case::new(Op::GetRows, &[], vec![Some(table), Some(ids)], dst, Tolerance::Exact));

    for to in QUANTIZED.into_iter().chain(FLOATS) {
        for from in [DType::F32, DType::F16] {
            for id_type in [DType::I32, DType::I64] {
                let n = to.block_len() * 2;
                let src = Host::random(from, [n, 4, 2, 2], Lay::Padded, rng);
                let ids = Host::ints(id_type, [4, 1, 2, 1], Lay::Packed, |[i, _, k, _]| (i * 3 + k) as i64);
                let dst = Host::random(to, [n, 15, 2, 2], Lay::Padded, rng);
                cases.push(Case::onto(Op::SetRows, &[], vec![Some(src), Some(ids)], dst, stored(to)));
            }
        }
    }
    // Single elements scattered, as a transposed value cache is written.
    let src = Host::random(DType::F32, [1, 96, 1, 1], Lay::Packed, rng);
    let ids = Host::ints(DType::I64, [96, 1, 1, 1], Lay::Packed, |[i, ..]| i as i64 * 7 + 3);
    let dst = Host::random(DType::F16, [1, 700, 1, 1], Lay::Packed, rng);
    cases.push(Case::onto(Op::SetRows, &[], vec![Some(src), Some(ids)], dst, stored(DType::F16)));
    // Of rows with the same index the last one stays.
    let src = Host::random(DType::F32, [2048, 6, 1, 1], Lay::Packed, rng);
    let ids = Host::ints(DType::I32, [6, 1, 1, 1], Lay::Packed, |[i, ..]| (i % 2) as i64);
    let dst = Host::zeros(DType::F32, [2048, 4, 1, 1], Lay::Packed);
    cases.push(Case::onto(Op::SetRows, &[], vec![Some(src), Some(ids)], dst, Tolerance::Exact));
}

fn layouts(cases: &mut Vec<Case>, rng: &mut Random) {
    for dtype in [DType::F32, DType::F16] {
        for lay in [Lay::Packed, Lay::Padded, Lay::Transposed] {
            let x = Host::random(dtype, [3, 2, 1, 2], lay, rng);
            for ne in [[3, 2, 1, 2], [6, 2, 3, 2], [3, 8, 2, 4]] {
                cases.push(Case::new(Op::Repeat, &[], vec![Some(x.clone())], (dtype, ne, lay), Tolerance::Exact));
            }
            for dim in 0..4usize {
                let mut other = [3, 2, 1, 2];
                other[dim] = 5;
                let mut ne = [3, 2, 1, 2];
                ne[dim] += 5;
                let src = vec![Some(x.clone()), Some(Host::random(dtype, other, Lay::Padded, rng))];
                cases.push(Case::new(Op::Concat, &[dim as u32], src, (dtype, ne, lay), Tolerance::Exact));
            }
        }
    }
}

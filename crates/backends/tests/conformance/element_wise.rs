//! Operations on elements: pairs, unary, GLU, SCALE, CLAMP, FILL.

use crate::tensor::{Host, Lay, Random};
use crate::{BFLOAT, Case, HALF, ROUNDING, Tolerance};
use loadmaster_graph::{DType, Op, OpKind};

const LAYS: [Lay; 4] = [Lay::Packed, Lay::Padded, Lay::Swapped, Lay::Transposed];

fn stored(dtype: DType) -> Tolerance {
    match dtype {
        DType::F16 => HALF,
        DType::Bf16 => BFLOAT,
        _ => ROUNDING,
    }
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let rng = &mut Random(1);
    pairs(&mut cases, rng);
    unaries(&mut cases, rng);
    glus(&mut cases, rng);
    cases
}

fn pairs(cases: &mut Vec<Case>, rng: &mut Random) {
    use DType::{Bf16, F16, F32};
    let away_from_zero = |ne, lay, dtype, rng: &mut Random| {
        Host::floats(dtype, ne, lay, |_| {
            let v = rng.normal();
            v + 0.5f64.copysign(v)
        })
    };
    let types =
        [(F32, F32, F32), (F16, F32, F16), (F16, F16, F16), (F16, F32, F32), (Bf16, F32, Bf16), (F32, F32, F16)];
    let ne = [7, 5, 3, 2];
    let repeated = [ne, [7, 1, 1, 1], [1, 5, 1, 1], [1, 1, 1, 1], [7, 5, 1, 2], [1, 1, 3, 1]];
    for op in [Op::Add, Op::Sub, Op::Mul, Op::Div] {
        for (a, b, d) in types {
            for small in repeated {
                let src =
                    vec![Some(Host::random(a, ne, Lay::Packed, rng)), Some(away_from_zero(small, Lay::Packed, b, rng))];
                cases.push(Case::new(op, &[], src, (d, ne, Lay::Packed), stored(d)));
            }
        }
        for lay in LAYS {
            let src = vec![Some(Host::random(F32, ne, lay, rng)), Some(away_from_zero(ne, Lay::Padded, F32, rng))];
            cases.push(Case::new(op, &[], src, (F32, ne, Lay::Swapped), ROUNDING));
        }
        let wide = [1030, 9, 1, 1];
        for small in [wide, [1030, 1, 1, 1], [103, 3, 1, 1]] {
            let src = vec![
                Some(Host::random(F32, wide, Lay::Packed, rng)),
                Some(away_from_zero(small, Lay::Packed, F32, rng)),
            ];
            cases.push(Case::new(op, &[], src, (F32, wide, Lay::Padded), ROUNDING));
        }
        let none = [7, 0, 3, 1];
        let src = vec![Some(Host::zeros(F32, none, Lay::Packed)), Some(Host::zeros(F32, [7, 1, 1, 1], Lay::Packed))];
        cases.push(Case::new(op, &[], src, (F32, none, Lay::Packed), Tolerance::Exact));
    }
    let ids = Host::ints(DType::I32, [4, 3, 1, 1], Lay::Padded, |_| rng.below(6) as i64);
    let src = vec![
        Some(Host::random(F32, [33, 4, 3, 1], Lay::Padded, rng)),
        Some(Host::random(F32, [33, 6, 1, 1], Lay::Padded, rng)),
        Some(ids),
    ];
    cases.push(Case::new(Op::AddId, &[], src, (F32, [33, 4, 3, 1], Lay::Packed), ROUNDING));
}

/// Operations without a kernel here.
const ABSENT: [Op; 2] = [Op::Xielu, Op::LeakyRelu];

fn unaries(cases: &mut Vec<Case>, rng: &mut Random) {
    let ops = Op::ALL.iter().copied().filter(|op| op.kind() == OpKind::Unary && !ABSENT.contains(op));
    for op in ops.chain([Op::Sqr, Op::Sqrt, Op::Log, Op::Sin, Op::Cos]) {
        let positive = matches!(op, Op::Sqrt | Op::Log);
        let tolerance = match op {
            // Through a table over halves.
            Op::Gelu | Op::GeluQuick => Tolerance::Each { abs: 4e-3, rel: 2e-3 },
            _ => Tolerance::Each { abs: 2e-6, rel: 2e-6 },
        };
        let value = |rng: &mut Random| if positive { rng.normal().abs() + 0.1 } else { 4.0 * rng.normal() };
        for lay in LAYS {
            let x = Host::floats(DType::F32, [37, 3, 5, 1], lay, |_| value(rng));
            cases.push(Case::new(op, &[], vec![Some(x)], (DType::F32, [37, 3, 5, 1], Lay::Padded), tolerance));
        }
        let x = Host::floats(DType::F16, [9, 2, 2, 1], Lay::Padded, |_| 0.5 * value(rng));
        let loose = Tolerance::Each { abs: 4e-3, rel: 2e-3 };
        cases.push(Case::new(op, &[], vec![Some(x)], (DType::F16, [9, 2, 2, 1], Lay::Packed), loose));
    }
    let word = |v: f32| v.to_bits();
    for (op, params) in [
        (Op::Scale, vec![word(0.125)]),
        (Op::Scale, vec![word(-3.5), word(0.75)]),
        (Op::Clamp, vec![word(-0.5), word(0.25)]),
        (Op::Clamp, vec![word(6.1e-5), word(f32::INFINITY)]),
        (Op::Fill, vec![word(2.5)]),
    ] {
        for lay in LAYS {
            let x = Host::random(DType::F32, [19, 3, 2, 2], lay, rng);
            let dst = (DType::F32, [19, 3, 2, 2], Lay::Packed);
            cases.push(Case::new(op, &params, vec![Some(x)], dst, ROUNDING));
        }
    }
}

fn glus(cases: &mut Vec<Case>, rng: &mut Random) {
    let word = |v: f32| v.to_bits();
    for op in Op::ALL.iter().copied().filter(|op| op.kind() == OpKind::Glu) {
        let tolerance = match op {
            Op::Geglu | Op::GegluQuick => Tolerance::Each { abs: 8e-3, rel: 4e-3 },
            _ => Tolerance::Each { abs: 4e-6, rel: 4e-6 },
        };
        let ne = [45, 3, 2, 1];
        for swapped in [0, 1] {
            let params = [0, swapped, word(1.702), word(1.25)];
            for lay in [Lay::Packed, Lay::Padded, Lay::Swapped] {
                let x = Host::random(DType::F32, [90, 3, 2, 1], lay, rng);
                cases.push(Case::new(op, &params, vec![Some(x)], (DType::F32, ne, Lay::Packed), tolerance));
            }
        }
        for lay in [Lay::Packed, Lay::Padded, Lay::Swapped] {
            let params = [0, 0, word(1.702), word(1.25)];
            let src = vec![Some(Host::random(DType::F32, ne, lay, rng)), Some(Host::random(DType::F32, ne, lay, rng))];
            cases.push(Case::new(op, &params, src, (DType::F32, ne, Lay::Padded), tolerance));
        }
    }
}

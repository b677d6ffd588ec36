//! Operations on rows: norms, soft maximum, rotations, sums, order.

use crate::tensor::{Host, Lay, Random};
use crate::{Case, ROUNDING, Tolerance};
use loadmaster_graph::{DType, Op};

const LAYS: [Lay; 3] = [Lay::Packed, Lay::Padded, Lay::Swapped];

fn word(v: f32) -> u32 {
    v.to_bits()
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let rng = &mut Random(2);
    norms(&mut cases, rng);
    soft_max(&mut cases, rng);
    ropes(&mut cases, rng);
    reductions(&mut cases, rng);
    cases
}

fn norms(cases: &mut Vec<Case>, rng: &mut Random) {
    for op in [Op::Norm, Op::RmsNorm, Op::L2Norm] {
        for lay in LAYS {
            for n in [1, 15, 16, 33, 576] {
                let ne = [n, 3, 2, 2];
                let x = Host::random(DType::F32, ne, lay, rng);
                let tolerance = Tolerance::Each { abs: 2e-6, rel: 2e-6 };
                cases.push(Case::new(op, &[word(1e-5)], vec![Some(x)], (DType::F32, ne, Lay::Padded), tolerance));
            }
        }
    }
}

/// Zeros and minus infinities, each key visible at least to one query.
fn causal(dtype: DType, ne: [u64; 4], lay: Lay) -> Host {
    Host::floats(dtype, ne, lay, |[i, j, ..]| if i <= j + 3 { 0.0 } else { f64::NEG_INFINITY })
}

fn soft_max(cases: &mut Vec<Case>, rng: &mut Random) {
    let ne = [37, 5, 6, 2];
    let tolerance = Tolerance::Each { abs: 1e-6, rel: 4e-6 };
    for lay in LAYS {
        let x = Host::random(DType::F32, ne, lay, rng);
        let plain = vec![Some(x.clone())];
        cases.push(Case::new(Op::SoftMax, &[word(1.0)], plain, (DType::F32, ne, Lay::Packed), tolerance));
        for mask_type in [DType::F32, DType::F16] {
            for mask_ne in [[37, 5, 1, 1], [37, 8, 1, 1], [37, 5, 3, 2], [37, 5, 6, 2]] {
                for bias in [0.0, 8.0] {
                    let src = vec![Some(x.clone()), Some(causal(mask_type, mask_ne, lay))];
                    let params = [word(0.3), word(bias)];
                    cases.push(Case::new(Op::SoftMax, &params, src, (DType::F32, ne, Lay::Packed), tolerance));
                }
            }
        }
        let sinks = Host::random(DType::F32, [6, 1, 1, 1], Lay::Packed, rng);
        let src = vec![Some(x), Some(causal(DType::F16, [37, 5, 1, 1], Lay::Packed)), Some(sinks)];
        cases.push(Case::new(Op::SoftMax, &[word(0.3)], src, (DType::F32, ne, Lay::Packed), tolerance));
    }
}

fn ropes(cases: &mut Vec<Case>, rng: &mut Random) {
    let params = |dims: u32, mode: u32, freq_scale: f32, ext: f32| {
        vec![
            0,
            dims,
            mode,
            0,
            4096,
            word(10_000.0),
            word(freq_scale),
            word(ext),
            word(1.0),
            word(32.0),
            word(1.0),
            0,
            0,
            0,
            0,
            0,
        ]
    };
    for mode in [0, 2] {
        for (width, dims) in [(64, 64), (80, 48), (6, 6), (10, 4)] {
            let ne = [width, 3, 4, 2];
            for (freq_scale, ext) in [(1.0, 0.0), (0.25, 0.0), (0.25, 1.0)] {
                for lay in LAYS {
                    for factors in [false, true] {
                        let x = Host::random(DType::F32, ne, lay, rng);
                        let pos = Host::ints(DType::I32, [4, 1, 1, 1], Lay::Packed, |[i, ..]| 7 * i as i64);
                        let list =
                            Host::floats(DType::F32, [width / 2, 1, 1, 1], Lay::Packed, |[i, ..]| 1.0 + i as f64 / 8.0);
                        let src = vec![Some(x), Some(pos), factors.then_some(list)];
                        let dst = (DType::F32, ne, Lay::Packed);
                        let tolerance = Tolerance::Each { abs: 2e-5, rel: 2e-5 };
                        let words = params(dims as u32, mode, freq_scale, ext);
                        cases.push(Case::new(Op::Rope, &words, src, dst, tolerance));
                    }
                }
            }
        }
        let mut words = params(8, mode, 1.0, 0.0);
        words[15] = 6;
        let x = Host::random(DType::F32, [20, 2, 3, 1], Lay::Padded, rng);
        let pos = Host::ints(DType::I32, [3, 1, 1, 1], Lay::Packed, |[i, ..]| 100 + i as i64);
        let tolerance = Tolerance::Each { abs: 4e-5, rel: 4e-5 };
        let dst = (DType::F32, [20, 2, 3, 1], Lay::Padded);
        cases.push(Case::new(Op::Rope, &words, vec![Some(x), Some(pos.clone())], dst, tolerance));
        let x = Host::random(DType::F16, [32, 2, 3, 1], Lay::Packed, rng);
        let dst = (DType::F16, [32, 2, 3, 1], Lay::Packed);
        let words = params(16, mode, 1.0, 0.0);
        cases.push(Case::new(Op::Rope, &words, vec![Some(x), Some(pos)], dst, crate::HALF));
    }
}

fn reductions(cases: &mut Vec<Case>, rng: &mut Random) {
    for lay in LAYS {
        for n in [1, 8, 17, 300] {
            let ne = [n, 3, 2, 2];
            let x = Host::random(DType::F32, ne, lay, rng);
            let tolerance = Tolerance::Each { abs: 4e-6, rel: 1e-6 };
            for op in [Op::SumRows, Op::Mean] {
                cases.push(Case::new(
                    op,
                    &[],
                    vec![Some(x.clone())],
                    (DType::F32, [1, 3, 2, 2], Lay::Packed),
                    tolerance,
                ));
            }
            let one = (DType::F32, [1, 1, 1, 1], Lay::Packed);
            let total = Tolerance::Each { abs: 2e-5, rel: 1e-6 };
            cases.push(Case::new(Op::Sum, &[], vec![Some(x.clone())], one, total));
            let rows = (DType::I32, [12, 1, 1, 1], Lay::Packed);
            cases.push(Case::new(Op::Argmax, &[], vec![Some(x.clone())], rows, Tolerance::Exact));
            for order in [0, 1] {
                let dst = (DType::I32, ne, Lay::Padded);
                cases.push(Case::new(Op::Argsort, &[order], vec![Some(x.clone())], dst, Tolerance::Exact));
            }
        }
    }
    // Equal keys keep their order.
    let x = Host::floats(DType::F32, [50, 2, 1, 1], Lay::Packed, |[i, ..]| (i % 3) as f64 - 1.0);
    for order in [0, 1] {
        let dst = (DType::I32, [50, 2, 1, 1], Lay::Packed);
        cases.push(Case::new(Op::Argsort, &[order], vec![Some(x.clone())], dst, Tolerance::Exact));
    }
    let empty = Host::zeros(DType::F32, [0, 3, 1, 1], Lay::Packed);
    cases.push(Case::new(Op::SumRows, &[], vec![Some(empty)], (DType::F32, [1, 3, 1, 1], Lay::Packed), ROUNDING));
}

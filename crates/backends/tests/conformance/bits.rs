//! Equal bits: whatever the instruction set, the number of threads, the batch, the place of the result.

use crate::products::ORDERS;
use crate::runner::{Runner, direct};
use crate::tensor::{Host, Lay, Random};
use crate::{Case, TOPICS};
use loadmaster_backends::cpu::Isa;
use loadmaster_graph::{DType, Op};

fn result(runner: &dyn Runner, case: &Case) -> Vec<u8> {
    let mut dst = case.dst.clone();
    runner.run(case.op, &case.params, &case.src, &mut dst).unwrap_or_else(|e| panic!("{}: {e}", case.name));
    dst.bytes
}

#[test]
fn instruction_sets_and_thread_counts_give_the_same_bits() {
    let reference = direct(Isa::Portable, 1);
    let isas = Isa::available().into_iter();
    let others: Vec<_> = isas.flat_map(|isa| [direct(isa, 1), direct(isa, 4)]).collect();
    for topic in TOPICS {
        for case in topic() {
            let expected = result(&reference, &case);
            for runner in &others {
                assert!(result(runner, &case) == expected, "{}: {} differs", case.name, runner.name());
            }
        }
    }
}

/// Wide enough that work is shared between threads.
#[test]
fn large_nodes_give_the_same_bits_on_any_number_of_threads() {
    let rng = &mut Random(7);
    let x = Host::random(DType::F32, [512, 33, 1, 1], Lay::Packed, rng);
    let wide = (DType::F32, [512, 33, 1, 1], Lay::Packed);
    let mut cases = vec![
        Case::new(Op::Silu, &[], vec![Some(x.clone())], wide, crate::ROUNDING),
        Case::new(Op::RmsNorm, &[], vec![Some(x.clone())], wide, crate::ROUNDING),
        Case::new(Op::Mul, &[], vec![Some(x.clone()), Some(x.clone())], wide, crate::ROUNDING),
    ];
    for dtype in [DType::Q4_1, DType::Q8_0, DType::Q4K, DType::Q6K, DType::F16, DType::F32] {
        let w = Host::random(dtype, [512, 300, 1, 1], Lay::Packed, rng);
        let dst = (DType::F32, [300, 33, 1, 1], Lay::Packed);
        cases.push(Case::new(Op::MulMat, &[], vec![Some(w), Some(x.clone())], dst, crate::ROUNDING));
    }
    let single = direct(Isa::best(), 1);
    for threads in [2, 3, 8] {
        let many = direct(Isa::best(), threads);
        for case in &cases {
            assert!(result(&single, case) == result(&many, case), "{} on {threads} threads", case.name);
        }
    }
}

#[test]
fn a_batch_gives_the_same_bits_as_its_columns_one_by_one() {
    let rng = &mut Random(8);
    for isa in Isa::available() {
        let runner = direct(isa, 2);
        for dtype in crate::moves::QUANTIZED.into_iter().chain(crate::moves::FLOATS) {
            let k = dtype.block_len() * 3;
            let w = Host::random(dtype, [k, 40, 1, 1], Lay::Packed, rng);
            let x = Host::random(DType::F32, [k, 21, 1, 1], Lay::Packed, rng);
            let product = |x: Host, order: &[u32]| {
                let mut dst = Host::zeros(DType::F32, [40, x.ne[1], 1, 1], Lay::Packed);
                runner.run(Op::MulMat, order, &[Some(w.clone()), Some(x)], &mut dst).unwrap();
                dst.bytes
            };
            // Whether the last three columns are left over is what the node says of each.
            for (whole, last) in [(ORDERS[0], ORDERS[0]), (ORDERS[1], ORDERS[1]), (ORDERS[2], &[0, 0, 8 | 1 << 8])] {
                let all = product(x.clone(), whole);
                for column in 0..21 {
                    let one = Host { ne: [k, 1, 1, 1], offset: column * k as usize * 4, ..x.clone() };
                    let order = if column < 18 && whole == ORDERS[2] { ORDERS[1] } else { last };
                    let same = product(one, order) == all[column * 160..][..160];
                    assert!(same, "{dtype} column {column} on {isa:?} in order {whole:?}");
                }
            }
        }
    }
}

#[test]
fn a_query_gets_the_same_attention_in_any_batch() {
    let rng = &mut Random(9);
    for isa in Isa::available() {
        let runner = direct(isa, 2);
        for dtype in [DType::F16, DType::F32, DType::Q8_0] {
            let q = Host::random(DType::F32, [64, 37, 4, 1], Lay::Packed, rng);
            let k = Host::random(dtype, [64, 80, 2, 1], Lay::Packed, rng);
            let v = Host::random(dtype, [64, 80, 2, 1], Lay::Packed, rng);
            let mask = Host::floats(DType::F16, [80, 37, 1, 1], Lay::Packed, |[i, j, ..]| {
                if i <= j + 43 { 0.0 } else { f64::NEG_INFINITY }
            });
            let attend = |q: Host, mask: Host| {
                let mut dst = Host::zeros(DType::F32, [64, 4, q.ne[1], 1], Lay::Packed);
                let src = [Some(q), Some(k.clone()), Some(v.clone()), Some(mask)];
                runner.run(Op::FlashAttnExt, &[0.125f32.to_bits()], &src, &mut dst).unwrap();
                dst.bytes
            };
            let whole = attend(q.clone(), mask.clone());
            for query in [0usize, 5, 36] {
                let one = Host { ne: [64, 1, 4, 1], offset: query * 256, ..q.clone() };
                let row = Host { ne: [80, 1, 1, 1], offset: query * 160, ..mask.clone() };
                assert!(attend(one, row) == whole[query * 1024..][..1024], "{dtype} query {query} on {isa:?}");
            }
        }
    }
}

#[test]
fn keys_that_no_query_may_see_do_not_matter_whatever_their_bytes() {
    let rng = &mut Random(10);
    for isa in Isa::available() {
        let runner = direct(isa, 2);
        for dtype in [DType::F16, DType::F32, DType::Q8_0] {
            let q = Host::random(DType::F32, [64, 3, 4, 1], Lay::Packed, rng);
            let k = Host::random(dtype, [64, 40, 2, 1], Lay::Packed, rng);
            let v = Host::random(dtype, [64, 40, 2, 1], Lay::Packed, rng);
            let hidden = |key: u64| key < 5 || key % 7 == 3 || key > 30;
            let mask =
                Host::floats(
                    DType::F16,
                    [40, 3, 1, 1],
                    Lay::Packed,
                    |[i, ..]| {
                        if hidden(i) { f64::NEG_INFINITY } else { 0.0 }
                    },
                );
            let attend = |k: Host, v: Host| {
                let mut dst = Host::zeros(DType::F32, [64, 4, 3, 1], Lay::Packed);
                let src = [Some(q.clone()), Some(k), Some(v), Some(mask.clone())];
                runner.run(Op::FlashAttnExt, &[0.125f32.to_bits()], &src, &mut dst).unwrap();
                dst.bytes
            };
            let poisoned = |t: &Host| {
                let mut t = t.clone();
                let row = dtype.row_size(64).unwrap().get() as usize;
                for (i, bytes) in t.bytes.chunks_exact_mut(row).enumerate() {
                    if hidden(i as u64 % 40) {
                        bytes.fill(0xff);
                    }
                }
                t
            };
            assert!(attend(k.clone(), v.clone()) == attend(poisoned(&k), poisoned(&v)), "{dtype} on {isa:?}");
        }
    }
}

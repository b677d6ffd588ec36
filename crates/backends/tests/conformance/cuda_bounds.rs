//! CUDA kernels, compiled for the host, on indices that name no row and on keys that nobody may see.

use crate::on_host::{OnHost, runner};
use crate::runner::Runner;
use crate::tensor::{Host, Lay, Random};
use loadmaster_graph::{DType, Op};

fn run(runner: &OnHost, op: Op, params: &[u32], src: &[Option<Host>], mut dst: Host) -> Host {
    runner.run(op, params, src, &mut dst).unwrap_or_else(|e| panic!("{op}: {e}"));
    dst
}

fn ids(dtype: DType, values: &[i64]) -> Host {
    Host::ints(dtype, [values.len() as u64, 1, 1, 1], Lay::Packed, |[i, ..]| values[i as usize])
}

/// Indices that name no row of 3.
const BAD: [i64; 4] = [-1, 3, i32::MAX as i64, i32::MIN as i64];

#[test]
fn an_index_outside_the_rows_gives_nan_in_its_row_alone() {
    let Some(runner) = runner(90) else { return };
    let rng = &mut Random(11);
    for bad in BAD {
        let rows = Host::random(DType::F32, [4, 3, 1, 1], Lay::Packed, rng);
        let dst = Host::zeros(DType::F32, [4, 2, 1, 1], Lay::Padded);
        let found = run(&runner, Op::GetRows, &[], &[Some(rows.clone()), Some(ids(DType::I32, &[1, bad]))], dst);
        for (i, value) in found.values().iter().enumerate() {
            assert!(if i < 4 { *value == rows.at([i as u64, 1, 0, 0]) } else { value.is_nan() }, "{bad}: {value}");
        }
        let weights = Host::random(DType::F16, [8, 5, 3, 1], Lay::Packed, rng);
        let x = Host::random(DType::F32, [8, 1, 1, 1], Lay::Packed, rng);
        let dst = Host::zeros(DType::F32, [5, 2, 1, 1], Lay::Padded);
        let found = run(&runner, Op::MulMatId, &[], &[Some(weights), Some(x), Some(ids(DType::I32, &[0, bad]))], dst);
        let nans: Vec<bool> = found.values().iter().map(|v| v.is_nan()).collect();
        assert_eq!(nans, [[false; 5], [true; 5]].concat(), "{bad}");
    }
}

#[test]
fn a_row_whose_index_is_outside_is_not_written() {
    let Some(runner) = runner(90) else { return };
    let rng = &mut Random(12);
    let source = Host::random(DType::F32, [32, 2, 1, 1], Lay::Packed, rng);
    for bad in BAD.into_iter().chain([i64::MAX, i64::MIN]) {
        for to in [DType::F32, DType::F16, DType::Q8_0] {
            let before = Host::random(to, [32, 3, 1, 1], Lay::Padded, rng);
            let src = [Some(source.clone()), Some(ids(DType::I64, &[bad, 1]))];
            let after = run(&runner, Op::SetRows, &[], &src, before.clone());
            let (old, new) = (before.values(), after.values());
            assert!(old[..32] == new[..32] && old[64..] == new[64..], "{bad} {to}");
            assert_ne!(old[32..64], new[32..64], "{to}");
        }
    }
}

#[test]
fn keys_that_no_query_may_see_do_not_matter_to_cuda_kernels_whatever_their_bytes() {
    let Some(runner) = runner(90) else { return };
    let rng = &mut Random(13);
    let hidden = |key: u64| key < 5 || key % 7 == 3 || key > 300;
    for (dtype, queries) in [(DType::F16, 1), (DType::F32, 3), (DType::Q8_0, 9), (DType::Bf16, 1)] {
        let q = Host::random(DType::F32, [64, queries, 4, 1], Lay::Packed, rng);
        let k = Host::random(dtype, [64, 600, 2, 1], Lay::Packed, rng);
        let v = Host::random(dtype, [64, 600, 2, 1], Lay::Packed, rng);
        let mask = Host::floats(DType::F16, [600, queries, 1, 1], Lay::Packed, |[i, ..]| {
            if hidden(i) { f64::NEG_INFINITY } else { 0.0 }
        });
        let poisoned = |t: &Host| {
            let mut t = t.clone();
            let row = dtype.row_size(64).unwrap().get() as usize;
            for (i, bytes) in t.bytes.chunks_exact_mut(row).enumerate() {
                if hidden(i as u64 % 600) {
                    bytes.fill(0xff);
                }
            }
            t
        };
        let attend = |k: Host, v: Host| {
            let dst = Host::zeros(DType::F32, [64, 4, queries, 1], Lay::Packed);
            let src = [Some(q.clone()), Some(k), Some(v), Some(mask.clone())];
            run(&runner, Op::FlashAttnExt, &[0.125f32.to_bits()], &src, dst).bytes
        };
        assert!(attend(k.clone(), v.clone()) == attend(poisoned(&k), poisoned(&v)), "{dtype}");
    }
}

#[test]
fn a_query_that_sees_no_key_gets_zeros() {
    let Some(runner) = runner(90) else { return };
    let rng = &mut Random(15);
    for keys in [3, 300] {
        let q = Host::random(DType::F32, [32, 2, 1, 1], Lay::Packed, rng);
        let k = Host::random(DType::F16, [32, keys, 1, 1], Lay::Packed, rng);
        let mask = Host::floats(DType::F16, [keys, 2, 1, 1], Lay::Packed, |_| f64::NEG_INFINITY);
        let src = [Some(q), Some(k.clone()), Some(k), Some(mask)];
        let dst = Host::random(DType::F32, [32, 1, 2, 1], Lay::Packed, rng);
        let found = run(&runner, Op::FlashAttnExt, &[1.0f32.to_bits()], &src, dst);
        assert!(found.values().iter().all(|&v| v == 0.0), "{keys} keys");
    }
}

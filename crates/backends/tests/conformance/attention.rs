//! FLASH_ATTN_EXT.

use crate::tensor::{Host, Lay, Random};
use crate::{Case, Tolerance};
use loadmaster_graph::{DType, Op};

/// Keys in blocks round the query to 8 bits; half keys round it to half.
fn tolerance(keys: DType) -> Tolerance {
    Tolerance::Nmse(match keys {
        DType::F32 => 1e-10,
        DType::F16 => 1e-6,
        DType::Bf16 => 2e-5,
        _ => 5e-4,
    })
}

struct Shape {
    queries: u64,
    keys: u64,
    heads: u64,
    key_heads: u64,
    batch: u64,
}

fn case(rng: &mut Random, dtype: DType, d: [u64; 2], s: &Shape, words: [f32; 3], mask: bool, sinks: bool) -> Case {
    let q = Host::random(DType::F32, [d[0], s.queries, s.heads, s.batch], Lay::Swapped, rng);
    let k = Host::random(dtype, [d[0], s.keys, s.key_heads, s.batch], Lay::Swapped, rng);
    let v = Host::random(dtype, [d[1], s.keys, s.key_heads, s.batch], Lay::Swapped, rng);
    let shift = s.keys.saturating_sub(s.queries);
    let mask = mask.then(|| {
        Host::floats(DType::F16, [s.keys, s.queries + 2, 1, s.batch], Lay::Padded, |[i, j, ..]| {
            if i <= j + shift && i % 11 != 5 { -0.25 * (i % 3) as f64 } else { f64::NEG_INFINITY }
        })
    });
    let sinks = sinks.then(|| Host::random(DType::F32, [s.heads, 1, 1, 1], Lay::Packed, rng));
    let params = words.map(f32::to_bits);
    let dst = (DType::F32, [d[1], s.heads, s.queries, s.batch], Lay::Packed);
    Case::new(Op::FlashAttnExt, &params, vec![Some(q), Some(k), Some(v), mask, sinks], dst, tolerance(dtype))
}

pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let rng = &mut Random(6);
    let shapes = [
        Shape { queries: 1, keys: 40, heads: 6, key_heads: 2, batch: 1 },
        Shape { queries: 13, keys: 50, heads: 4, key_heads: 4, batch: 2 },
        Shape { queries: 35, keys: 35, heads: 3, key_heads: 1, batch: 1 },
        Shape { queries: 2, keys: 7, heads: 40, key_heads: 1, batch: 1 },
    ];
    for dtype in [DType::F16, DType::F32, DType::Q8_0, DType::Bf16] {
        for shape in &shapes {
            for (mask, sinks) in [(false, false), (true, false), (true, true)] {
                cases.push(case(rng, dtype, [64, 64], shape, [0.125, 0.0, 0.0], mask, sinks));
            }
            cases.push(case(rng, dtype, [32, 96], shape, [0.2, 8.0, 0.0], true, false));
            cases.push(case(rng, dtype, [64, 64], shape, [0.2, 0.0, 5.0], true, false));
        }
    }
    // Enough keys to be worth splitting.
    for (dtype, queries, key_heads) in [(DType::F16, 1, 2), (DType::Q8_0, 3, 1)] {
        let shape = Shape { queries, keys: 700, heads: 2, key_heads, batch: 2 };
        cases.push(case(rng, dtype, [64, 64], &shape, [0.125, 0.0, 0.0], true, true));
    }
    cases.push(case(rng, DType::F16, [40, 24], &shapes[1], [0.2, 0.0, 0.0], true, false));
    cases
}

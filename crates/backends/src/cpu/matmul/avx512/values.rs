//! Weighted sums of value rows: up to four sums of 64 elements in registers.

use super::float::Load;
use super::lanes::first_lanes;
use crate::cpu::matmul::values::{Sum, Values};
use std::arch::x86_64::*;

/// # Safety
/// The contract of [`crate::cpu::matmul::values::ValuesFn`]; the machine has the instructions.
pub(super) unsafe fn add<T: Load>(values: &Values, keys: &[u32], sums: &[Sum]) {
    for start in (0..values.len).step_by(64) {
        for tile in sums.chunks(4) {
            // SAFETY: the same contract.
            unsafe {
                match tile {
                    [a] => add_some::<T, 1>(values, start, keys, [a]),
                    [a, b] => add_some::<T, 2>(values, start, keys, [a, b]),
                    [a, b, c] => add_some::<T, 3>(values, start, keys, [a, b, c]),
                    [a, b, c, d] => add_some::<T, 4>(values, start, keys, [a, b, c, d]),
                    _ => {}
                }
            }
        }
    }
}

/// Loads without masks where 64 elements are left: a masked one that misses the cache is slow.
unsafe fn add_some<T: Load, const C: usize>(values: &Values, start: usize, keys: &[u32], sums: [&Sum; C]) {
    // SAFETY: the same contract.
    unsafe {
        if values.len - start >= 64 {
            add_tile::<T, C, false>(values, start, keys, sums);
        } else {
            add_tile::<T, C, true>(values, start, keys, sums);
        }
    }
}

/// Elements `start` to `start + 63`, as far as there are.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn add_tile<T: Load, const C: usize, const TAIL: bool>(
    values: &Values,
    start: usize,
    keys: &[u32],
    sums: [&Sum; C],
) {
    let rest = values.len - start;
    let masks = [0, 16, 32, 48].map(|i| first_lanes(rest.saturating_sub(i)));
    let mut acc = [[_mm512_setzero_ps(); 4]; C];
    // SAFETY: masked elements exist in every row and sum; keys have rows and weights. Addresses past the end of a row
    // are only formed (wrapping), never read.
    unsafe {
        for c in 0..C {
            for i in 0..4 {
                acc[c][i] = _mm512_maskz_loadu_ps(masks[i], sums[c].to.wrapping_add(start + 16 * i));
            }
        }
        for &key in keys {
            let row = values.data.add(key as usize * values.stride).cast::<T>();
            let mut v = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                let p = row.wrapping_add(start + 16 * i);
                v[i] = if TAIL { T::load_masked(p, masks[i]) } else { T::load(p) };
            }
            for c in 0..C {
                let weight = _mm512_set1_ps(*sums[c].weights.add(key as usize));
                for i in 0..4 {
                    acc[c][i] = _mm512_fmadd_ps(weight, v[i], acc[c][i]);
                }
            }
        }
        for c in 0..C {
            for i in 0..4 {
                _mm512_mask_storeu_ps(sums[c].to.wrapping_add(start + 16 * i), masks[i], acc[c][i]);
            }
        }
    }
}

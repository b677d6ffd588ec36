//! Weighted sums of value rows: up to two sums of 32 elements in registers.

use super::float::Load;
use crate::cpu::matmul::values::{Sum, Values};
use std::arch::x86_64::*;

/// # Safety
/// The contract of [`crate::cpu::matmul::values::ValuesFn`]; the machine has the instructions.
pub(super) unsafe fn add<T: Load>(values: &Values, keys: &[u32], sums: &[Sum]) {
    let whole = values.len / 32 * 32;
    for tile in sums.chunks(2) {
        // SAFETY: the same contract.
        unsafe {
            for start in (0..whole).step_by(32) {
                match tile {
                    [a] => add_tile::<T, 1>(values, start, keys, [a]),
                    [a, b] => add_tile::<T, 2>(values, start, keys, [a, b]),
                    _ => {}
                }
            }
            for sum in tile {
                add_rest::<T>(values, whole, keys, sum);
            }
        }
    }
}

/// Elements `start` to `start + 31`.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_tile<T: Load, const C: usize>(values: &Values, start: usize, keys: &[u32], sums: [&Sum; C]) {
    // SAFETY: the elements exist in every row and sum; keys have rows and weights.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); 4]; C];
        for c in 0..C {
            for i in 0..4 {
                acc[c][i] = _mm256_loadu_ps(sums[c].to.add(start + 8 * i));
            }
        }
        for &key in keys {
            let row = values.data.add(key as usize * values.stride).cast::<T>().add(start);
            let mut weights = [_mm256_setzero_ps(); C];
            for c in 0..C {
                weights[c] = _mm256_set1_ps(*sums[c].weights.add(key as usize));
            }
            for i in 0..4 {
                let value = T::load(row.add(8 * i));
                for c in 0..C {
                    acc[c][i] = _mm256_fmadd_ps(weights[c], value, acc[c][i]);
                }
            }
        }
        for c in 0..C {
            for i in 0..4 {
                _mm256_storeu_ps(sums[c].to.add(start + 8 * i), acc[c][i]);
            }
        }
    }
}

/// Elements from `start` on, one by one.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_rest<T: Load>(values: &Values, start: usize, keys: &[u32], sum: &Sum) {
    for &key in keys {
        // SAFETY: the elements exist in every row and in the sum; the key has a row and a weight.
        unsafe {
            let row = values.data.add(key as usize * values.stride).cast::<T>();
            let weight = *sum.weights.add(key as usize);
            for i in start..values.len {
                let to = sum.to.add(i);
                to.write_unaligned(weight.mul_add(row.add(i).read_unaligned().to_f32(), to.read_unaligned()));
            }
        }
    }
}

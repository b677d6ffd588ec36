//! Float weights in [`Order::One`](crate::cpu::matmul::Order::One): four times two vectors of partial sums.

use super::float::{Load, fold};
use crate::cpu::matmul::portable::add_rest;
use crate::cpu::matmul::{Column, SPREAD, Weights};
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows by one column.
///
/// # Safety
/// The contract of [`crate::cpu::matmul::RowsFn`]; the machine has the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn rows<T: Load>(w: &Weights, rows: Range<usize>, column: &Column) {
    let whole = w.k / (16 * SPREAD) * (16 * SPREAD);
    for row in rows {
        // SAFETY: the row has `k` elements, as has the record.
        unsafe {
            let (at, x) = (w.data.add(row * w.stride).cast::<T>(), column.record.cast::<f32>());
            let mut acc = [[_mm256_setzero_ps(); 2]; SPREAD];
            for i in (0..whole).step_by(16 * SPREAD) {
                for j in 0..SPREAD {
                    for half in 0..2 {
                        let from = i + 16 * j + 8 * half;
                        let inputs = _mm256_loadu_ps(x.add(from));
                        acc[j][half] = _mm256_fmadd_ps(T::load(at.add(from)), inputs, acc[j][half]);
                    }
                }
            }
            let mut sums = [_mm256_setzero_ps(); 2];
            for half in 0..2 {
                let first = _mm256_add_ps(acc[0][half], acc[2][half]);
                sums[half] = _mm256_add_ps(first, _mm256_add_ps(acc[1][half], acc[3][half]));
            }
            let total = add_rest(fold(sums), at.add(whole), x.add(whole), w.k - whole);
            column.dst.add(row).write_unaligned(total);
        }
    }
}

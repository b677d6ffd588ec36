//! Float weights in [`Order::One`](crate::cpu::matmul::Order::One): four vectors of partial sums for each result.

use super::float::{Load, fold};
use crate::cpu::matmul::portable::add_rest;
use crate::cpu::matmul::{Column, SPREAD, Weights};
use std::arch::x86_64::*;
use std::ops::Range;

/// # Safety
/// The contract of [`super::super::RowsFn`]; the machine has the instructions.
pub(super) unsafe fn rows<T: Load>(w: &Weights, rows: Range<usize>, columns: &[Column]) {
    for tile in columns.chunks(3) {
        // SAFETY: the same contract.
        unsafe {
            match tile {
                // A single column has registers for more rows at a time.
                [a] => tiles::<T, 4, 1>(w, rows.clone(), [a]),
                [a, b] => tiles::<T, 2, 2>(w, rows.clone(), [a, b]),
                [a, b, c] => tiles::<T, 2, 3>(w, rows.clone(), [a, b, c]),
                _ => {}
            }
        }
    }
}

/// Rows by `C` columns, `R` rows at a time (at most four).
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn tiles<T: Load, const R: usize, const C: usize>(w: &Weights, rows: Range<usize>, columns: [&Column; C]) {
    let whole = w.k / (16 * SPREAD) * (16 * SPREAD);
    for first in rows.clone().step_by(R) {
        let count = (rows.end - first).min(R);
        // SAFETY: rows beyond `count` repeat the last one; the rows have `k` elements, as have the records.
        unsafe {
            let row = |r: usize| w.data.add((first + r.min(count - 1)) * w.stride).cast();
            let at: [*const T; R] = std::array::from_fn(row);
            let x: [*const f32; C] = std::array::from_fn(|c| columns[c].record.cast());
            let mut acc = [[[_mm512_setzero_ps(); SPREAD]; R]; C];
            for i in (0..whole).step_by(16 * SPREAD) {
                add_products::<T, R, C>(&mut acc, &at, &x, i);
            }
            for c in 0..C {
                let mut sums = [_mm512_setzero_ps(); 4];
                for r in 0..R {
                    let [p, q, s, t] = acc[c][r];
                    sums[r] = _mm512_add_ps(_mm512_add_ps(p, s), _mm512_add_ps(q, t));
                }
                let mut totals = [0.0f32; 4];
                _mm_storeu_ps(totals.as_mut_ptr(), fold(&sums));
                for r in 0..count {
                    let total = add_rest(totals[r], at[r].add(whole), x[c].add(whole), w.k - whole);
                    columns[c].dst.add(first + r).write_unaligned(total);
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn add_products<T: Load, const R: usize, const C: usize>(
    acc: &mut [[[__m512; SPREAD]; R]; C],
    at: &[*const T; R],
    x: &[*const f32; C],
    i: usize,
) {
    for j in 0..SPREAD {
        // SAFETY: 64 elements exist from i on.
        unsafe {
            let mut inputs = [_mm512_setzero_ps(); C];
            for c in 0..C {
                inputs[c] = _mm512_loadu_ps(x[c].add(i + 16 * j));
            }
            for r in 0..R {
                let weights = T::load(at[r].add(i + 16 * j));
                for c in 0..C {
                    acc[c][r][j] = _mm512_fmadd_ps(weights, inputs[c], acc[c][r][j]);
                }
            }
        }
    }
}

//! Float weights: four rows by up to four columns, sixteen partial sums each.

use super::block32::fold_four;
use super::lanes::first_lanes;
use super::spread;
use crate::cpu::element::{Bf16, Element, F16};
use crate::cpu::matmul::{Column, Order, Weights};
use std::arch::x86_64::*;
use std::ops::Range;

/// A float type whose elements can be loaded sixteen at a time as singles.
pub(super) trait Load: Element {
    /// Sixteen elements.
    ///
    /// # Safety
    /// The elements must be readable; the caller has the instructions.
    unsafe fn load(p: *const Self) -> __m512;

    /// The elements of the mask; the others are zero. Slow where it misses the cache.
    ///
    /// # Safety
    /// As above.
    unsafe fn load_masked(p: *const Self, mask: __mmask16) -> __m512;
}

impl Load for f32 {
    #[inline(always)]
    unsafe fn load(p: *const Self) -> __m512 {
        // SAFETY: as the trait says.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_masked(p: *const Self, mask: __mmask16) -> __m512 {
        // SAFETY: as the trait says.
        unsafe { _mm512_maskz_loadu_ps(mask, p) }
    }
}

impl Load for F16 {
    #[inline(always)]
    unsafe fn load(p: *const Self) -> __m512 {
        // SAFETY: as the trait says.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_masked(p: *const Self, mask: __mmask16) -> __m512 {
        // SAFETY: as the trait says.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, p.cast())) }
    }
}

impl Load for Bf16 {
    #[inline(always)]
    unsafe fn load(p: *const Self) -> __m512 {
        // SAFETY: as the trait says.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
    #[inline(always)]
    unsafe fn load_masked(p: *const Self, mask: __mmask16) -> __m512 {
        // SAFETY: as the trait says.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }
}

/// Rows that stay in the second-level cache while all columns pass by.
const ROW_BLOCK: usize = 32;

/// # Safety
/// The contract of [`super::super::RowsFn`]; the machine has the instructions.
pub(super) unsafe fn rows<T: Load>(w: &Weights, rows: Range<usize>, columns: &[Column], _panel: *mut u8) {
    for block in rows.clone().step_by(ROW_BLOCK) {
        let block = block..rows.end.min(block + ROW_BLOCK);
        // SAFETY: the same contract.
        unsafe {
            match w.order {
                Order::One => spread::rows::<T>(w, block, columns),
                Order::Many => columns.chunks(6).for_each(|tile| tile_of_many::<T>(w, block.clone(), tile)),
            }
        }
    }
}

unsafe fn tile_of_many<T: Load>(w: &Weights, rows: Range<usize>, tile: &[Column]) {
    // SAFETY: the contract of `rows`.
    unsafe {
        match tile {
            // A single column needs more rows at a time to hide the latency of its sums.
            [a] => tiles::<T, 2, 1>(w, rows, [a]),
            [a, b] => tiles::<T, 1, 2>(w, rows, [a, b]),
            [a, b, c] => tiles::<T, 1, 3>(w, rows, [a, b, c]),
            [a, b, c, d] => tiles::<T, 1, 4>(w, rows, [a, b, c, d]),
            [a, b, c, d, e] => tiles::<T, 1, 5>(w, rows, [a, b, c, d, e]),
            [a, b, c, d, e, f] => tiles::<T, 1, 6>(w, rows, [a, b, c, d, e, f]),
            _ => {}
        }
    }
}

/// Rows by `C` columns, `4 · Q` rows at a time.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn tiles<T: Load, const Q: usize, const C: usize>(w: &Weights, rows: Range<usize>, columns: [&Column; C]) {
    for first in rows.clone().step_by(4 * Q) {
        let count = (rows.end - first).min(4 * Q);
        // SAFETY: rows beyond `count` repeat the last one; the rows have `k` elements, as have the records.
        unsafe {
            let row = |r: usize| w.data.add((first + r.min(count - 1)) * w.stride).cast();
            let at: [[*const T; 4]; Q] = std::array::from_fn(|q| std::array::from_fn(|r| row(4 * q + r)));
            let x: [*const f32; C] = std::array::from_fn(|c| columns[c].record.cast());
            let mut acc = [[[_mm512_setzero_ps(); 4]; C]; Q];
            let whole = w.k / 16 * 16;
            for i in (0..whole).step_by(16) {
                add_products::<T, Q, C, false>(&mut acc, &at, &x, i, !0);
            }
            if whole < w.k {
                add_products::<T, Q, C, true>(&mut acc, &at, &x, whole, first_lanes(w.k - whole));
            }
            for (q, sums) in acc.iter().enumerate() {
                let mask = first_lanes(count.saturating_sub(4 * q).min(4)) as u8;
                for c in 0..C {
                    _mm_mask_storeu_ps(columns[c].dst.add(first + 4 * q), mask, fold(&sums[c]));
                }
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
#[inline]
unsafe fn add_products<T: Load, const Q: usize, const C: usize, const TAIL: bool>(
    acc: &mut [[[__m512; 4]; C]; Q],
    at: &[[*const T; 4]; Q],
    x: &[*const f32; C],
    i: usize,
    mask: __mmask16,
) {
    // SAFETY: the elements of the mask exist.
    unsafe {
        for q in 0..Q {
            let mut w = [_mm512_setzero_ps(); 4];
            for r in 0..4 {
                let p = at[q][r].add(i);
                w[r] = if TAIL { T::load_masked(p, mask) } else { T::load(p) };
            }
            for c in 0..C {
                let p = x[c].add(i);
                let input = if TAIL { _mm512_maskz_loadu_ps(mask, p) } else { _mm512_loadu_ps(p) };
                for r in 0..4 {
                    acc[q][c][r] = _mm512_fmadd_ps(w[r], input, acc[q][c][r]);
                }
            }
        }
    }
}

/// The pairwise sums of four vectors: lane j with j + 8, then + 4, + 2, + 1.
#[target_feature(enable = "avx2,avx512f,avx512dq")]
#[inline]
pub(super) fn fold(v: &[__m512; 4]) -> __m128 {
    fold_four(&[fold_to_four(v[0]), fold_to_four(v[1]), fold_to_four(v[2]), fold_to_four(v[3])])
}

#[target_feature(enable = "avx2,avx512f,avx512dq")]
#[inline]
fn fold_to_four(v: __m512) -> __m128 {
    let eight = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
    _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight))
}

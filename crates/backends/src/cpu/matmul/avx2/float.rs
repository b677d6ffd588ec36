//! Float weights: rows by columns in small tiles, sixteen partial sums (two vectors) each.

use super::spread;
use crate::cpu::element::{Bf16, Element, F16};
use crate::cpu::matmul::{Column, Order, Weights};
use std::arch::x86_64::*;
use std::ops::Range;

/// A float type whose elements can be loaded eight at a time as singles.
pub(super) trait Load: Element {
    /// Zero.
    const ZERO: Self;

    /// Eight elements.
    ///
    /// # Safety
    /// The elements must be readable; the caller has the instructions.
    unsafe fn load(p: *const Self) -> __m256;
}

impl Load for f32 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    unsafe fn load(p: *const Self) -> __m256 {
        // SAFETY: as the trait says.
        unsafe { _mm256_loadu_ps(p) }
    }
}

impl Load for F16 {
    const ZERO: Self = Self(0);
    #[inline(always)]
    unsafe fn load(p: *const Self) -> __m256 {
        // SAFETY: as the trait says.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
}

impl Load for Bf16 {
    const ZERO: Self = Self(0);
    #[inline(always)]
    unsafe fn load(p: *const Self) -> __m256 {
        // SAFETY: as the trait says.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }
}

/// Rows that stay in the second-level cache while all columns pass by.
const ROW_BLOCK: usize = 32;

/// # Safety
/// The contract of [`crate::cpu::matmul::RowsFn`]; the machine has the instructions.
pub(super) unsafe fn rows<T: Load>(w: &Weights, rows: Range<usize>, columns: &[Column], _panel: *mut u8) {
    for block in rows.clone().step_by(ROW_BLOCK) {
        let block = block..rows.end.min(block + ROW_BLOCK);
        // SAFETY: the same contract.
        unsafe {
            match w.order {
                Order::One => columns.iter().for_each(|column| spread::rows::<T>(w, block.clone(), column)),
                Order::Many => columns.chunks(2).for_each(|tile| tile_of_many::<T>(w, block.clone(), tile)),
            }
        }
    }
}

unsafe fn tile_of_many<T: Load>(w: &Weights, rows: Range<usize>, tile: &[Column]) {
    // SAFETY: the contract of `rows`.
    unsafe {
        match tile {
            // A single column needs more rows at a time to hide the latency of its sums.
            [a] => tiles::<T, 4, 1>(w, rows, [a]),
            [a, b] => tiles::<T, 3, 2>(w, rows, [a, b]),
            _ => {}
        }
    }
}

/// Rows by `C` columns, `R` rows at a time.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn tiles<T: Load, const R: usize, const C: usize>(w: &Weights, rows: Range<usize>, columns: [&Column; C]) {
    for first in rows.clone().step_by(R) {
        let count = (rows.end - first).min(R);
        // SAFETY: rows beyond `count` repeat the last one; the rows have `k` elements, as have the records.
        unsafe {
            let row = |r: usize| w.data.add((first + r.min(count - 1)) * w.stride).cast();
            let at: [*const T; R] = std::array::from_fn(row);
            let x: [*const f32; C] = std::array::from_fn(|c| columns[c].record.cast());
            let mut acc = [[[_mm256_setzero_ps(); 2]; R]; C];
            let whole = w.k / 16 * 16;
            for i in (0..whole).step_by(16) {
                add_products(&mut acc, &at, &x, i);
            }
            if whole < w.k {
                add_tail(&mut acc, &at, &x, whole, w.k - whole);
            }
            for c in 0..C {
                for r in 0..count {
                    columns[c].dst.add(first + r).write_unaligned(fold(acc[c][r]));
                }
            }
        }
    }
}

/// Adds sixteen products to each sum.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn add_products<T: Load, const R: usize, const C: usize>(
    acc: &mut [[[__m256; 2]; R]; C],
    at: &[*const T; R],
    x: &[*const f32; C],
    i: usize,
) {
    for half in 0..2 {
        // SAFETY: sixteen elements exist from i on.
        unsafe {
            let mut inputs = [_mm256_setzero_ps(); C];
            for c in 0..C {
                inputs[c] = _mm256_loadu_ps(x[c].add(i + 8 * half));
            }
            for r in 0..R {
                let w = T::load(at[r].add(i + 8 * half));
                for c in 0..C {
                    acc[c][r][half] = _mm256_fmadd_ps(w, inputs[c], acc[c][r][half]);
                }
            }
        }
    }
}

/// The last, fewer than sixteen products: copied to where zeros follow them.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn add_tail<T: Load, const R: usize, const C: usize>(
    acc: &mut [[[__m256; 2]; R]; C],
    at: &[*const T; R],
    x: &[*const f32; C],
    from: usize,
    count: usize,
) {
    let mut weights = [[T::ZERO; 16]; R];
    let mut inputs = [[0.0f32; 16]; C];
    // SAFETY: `count` elements exist in every row and record.
    unsafe {
        for r in 0..R {
            for i in 0..count {
                weights[r][i] = at[r].add(from + i).read_unaligned();
            }
        }
        for c in 0..C {
            for i in 0..count {
                inputs[c][i] = x[c].add(from + i).read_unaligned();
            }
        }
        let at: [*const T; R] = std::array::from_fn(|r| weights[r].as_ptr());
        let x: [*const f32; C] = std::array::from_fn(|c| inputs[c].as_ptr());
        add_products(acc, &at, &x, 0);
    }
}

/// The pairwise sum of sixteen lanes: lane j with j + 8, then + 4, + 2, + 1.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn fold(v: [__m256; 2]) -> f32 {
    let eight = _mm256_add_ps(v[0], v[1]);
    let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
    let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
}

//! One column with blocks of 256, four rows at a time.

use super::lanes::{broadcasts, fold_rows, four_halves, four_sums, pair_products, store_first};
use super::unpack::Unpack256;
use crate::cpu::matmul::activation::Q8x256;
use crate::cpu::matmul::x86::ahead::Ahead;
use crate::cpu::matmul::{Column, Weights};
use crate::cpu::quant::block256::Adding;
use std::arch::x86_64::*;
use std::ops::Range;

/// # Safety
/// The contract of [`crate::cpu::matmul::RowsFn`] for one column; the machine has the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn rows<B: Unpack256>(w: &Weights, rows: Range<usize>, column: &Column) {
    // SAFETY: row pointers are clamped to existing rows; results are written for those of the range only.
    unsafe {
        let x = Q8x256::view(column.record, w.k);
        for first in rows.clone().step_by(4) {
            let count = (rows.end - first).min(4);
            let row = |r: usize| w.data.add((first + r.min(count - 1)) * w.stride);
            let mut at = [row(0), row(1), row(2), row(3)];
            let mut ahead = Ahead::new(at[0], 4, w.stride, w.k / 256);
            let mut acc = _mm_setzero_ps();
            let mut minima = _mm_setzero_ps();
            for b in 0..w.k / 256 {
                ahead.step();
                let (dots, mins) = block_dots::<B>(&at, &x, b);
                let xd = _mm_set1_ps(*x.d.add(b));
                let (d, sums) = (four_halves(&at, B::D_AT), _mm_cvtepi32_ps(four_sums(&dots)));
                acc = if B::ADDING == Adding::Eights {
                    _mm_fmadd_ps(_mm_mul_ps(sums, d), xd, acc)
                } else {
                    _mm_fmadd_ps(_mm_mul_ps(d, xd), sums, acc)
                };
                if B::HAS_MIN {
                    let factor = _mm_mul_ps(four_halves(&at, B::D_AT + 2), xd);
                    minima = _mm_fmadd_ps(factor, _mm_cvtepi32_ps(four_sums(&mins)), minima);
                }
                for p in &mut at {
                    *p = p.add(B::SIZE);
                }
            }
            let sum = if B::HAS_MIN { _mm_sub_ps(acc, minima) } else { acc };
            store_first(column.dst.add(first), _mm256_zextps128_ps256(sum), count);
        }
    }
}

/// [`rows`] in [`Order::One`](crate::cpu::matmul::Order::One), for formats that have such an order.
///
/// # Safety
/// As [`rows`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn eights<B: Unpack256>(w: &Weights, rows: Range<usize>, column: &Column) {
    // SAFETY: as in `rows`.
    unsafe {
        let x = Q8x256::view(column.record, w.k);
        for first in rows.clone().step_by(4) {
            let count = (rows.end - first).min(4);
            let row = |r: usize| w.data.add((first + r.min(count - 1)) * w.stride);
            let mut at = [row(0), row(1), row(2), row(3)];
            let mut ahead = Ahead::new(at[0], 4, w.stride, w.k / 256);
            let mut acc = [_mm256_setzero_ps(); 4];
            for b in 0..w.k / 256 {
                ahead.step();
                let (dots, _) = block_dots::<B>(&at, &x, b);
                let factors = broadcasts(_mm_mul_ps(four_halves(&at, B::D_AT), _mm_set1_ps(*x.d.add(b))));
                for r in 0..4 {
                    acc[r] = _mm256_fmadd_ps(factors[r], _mm256_cvtepi32_ps(dots[r]), acc[r]);
                    at[r] = at[r].add(B::SIZE);
                }
            }
            store_first(column.dst.add(first), _mm256_zextps128_ps256(fold_rows(&acc)), count);
        }
    }
}

/// Exact sums of scaled products and of minima of block `b` of four rows, in eight parts.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn block_dots<B: Unpack256>(at: &[*const u8; 4], x: &Q8x256, b: usize) -> ([__m256i; 4], [__m256i; 4]) {
    // SAFETY: the block exists in every row and in the record.
    unsafe {
        let sums = _mm256_loadu_si256(x.sums.add(b * 16).cast());
        let mut dots = [_mm256_setzero_si256(); 4];
        let mut mins = [_mm256_setzero_si256(); 4];
        for r in 0..4 {
            let (scale, min) = B::vector_scales(at[r]);
            if B::ZERO != 0 && B::ZERO != 128 {
                let zero = _mm256_set1_epi32(-i32::from(B::ZERO));
                dots[r] = _mm256_mullo_epi32(_mm256_madd_epi16(scale, sums), zero);
            }
            if B::HAS_MIN {
                mins[r] = _mm256_madd_epi16(min, sums);
            }
            let mut words = [0i16; 16];
            _mm256_storeu_si256(words.as_mut_ptr().cast(), scale);
            for part in 0..8 {
                let codes = B::vector_codes(at[r], part);
                let inputs = _mm256_loadu_si256(x.codes.add(b * 256 + part * 32).cast());
                let pairs = if B::ZERO == 128 {
                    pair_products::<true>(codes, inputs)
                } else {
                    pair_products::<false>(codes, inputs)
                };
                let spread = _mm256_set_m128i(_mm_set1_epi16(words[2 * part + 1]), _mm_set1_epi16(words[2 * part]));
                dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(pairs, spread));
            }
        }
        (dots, mins)
    }
}

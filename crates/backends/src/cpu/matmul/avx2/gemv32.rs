//! One column with blocks of 32, four rows at a time.

use super::lanes::{four_halves, four_sums, quad_products, store_first};
use super::unpack::Unpack32;
use crate::cpu::matmul::activation::Q8x32;
use crate::cpu::matmul::x86::ahead::Ahead;
use crate::cpu::matmul::{Column, Weights};
use std::arch::x86_64::*;
use std::ops::Range;

/// # Safety
/// The contract of [`crate::cpu::matmul::RowsFn`] for one column; the machine has the instructions.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn rows<B: Unpack32>(w: &Weights, rows: Range<usize>, column: &Column) {
    // SAFETY: row pointers are clamped to existing rows; results are written for those of the range only.
    unsafe {
        let x = Q8x32::view(column.record, w.k);
        let blocks = w.k / 32;
        for first in rows.clone().step_by(4) {
            let count = (rows.end - first).min(4);
            let row = |r: usize| w.data.add((first + r.min(count - 1)) * w.stride);
            let mut at = [row(0), row(1), row(2), row(3)];
            let mut ahead = Ahead::new(at[0], 4, w.stride, blocks);
            let mut acc = _mm_setzero_ps();
            let mut minima = _mm_setzero_ps();
            for b in 0..blocks {
                ahead.step();
                let sums = _mm_cvtepi32_ps(block_sums::<B>(&at, &x, b));
                let factor = _mm_mul_ps(four_halves(&at, 0), _mm_set1_ps(*x.d.add(b)));
                acc = _mm_add_ps(acc, _mm_mul_ps(factor, sums));
                if B::HAS_MIN {
                    let min = _mm_mul_ps(four_halves(&at, 2), _mm_set1_ps(*x.s.add(b)));
                    minima = _mm_add_ps(minima, min);
                }
                for p in &mut at {
                    *p = p.add(B::SIZE);
                }
            }
            let sum = if B::HAS_MIN { _mm_add_ps(acc, minima) } else { acc };
            store_first(column.dst.add(first), _mm256_zextps128_ps256(sum), count);
        }
    }
}

/// Exact sums of block `b` of four rows.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn block_sums<B: Unpack32>(at: &[*const u8; 4], x: &Q8x32, b: usize) -> __m128i {
    // SAFETY: the block exists in every row and in the record.
    unsafe {
        let inputs = _mm256_loadu_si256(x.codes.add(b * 32).cast());
        let mut dots = [_mm256_setzero_si256(); 4];
        for r in 0..4 {
            let codes = B::vector_codes(at[r]);
            dots[r] = if B::ZERO == 128 {
                quad_products::<true>(codes, inputs)
            } else {
                quad_products::<false>(codes, inputs)
            };
        }
        let sums = four_sums(&dots);
        if B::ZERO == 0 || B::ZERO == 128 {
            return sums;
        }
        _mm_sub_epi32(sums, _mm_set1_epi32(i32::from(B::ZERO) * *x.sum.add(b)))
    }
}

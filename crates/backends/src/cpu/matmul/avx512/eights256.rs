//! Blocks of 256 in [`Order::One`](crate::cpu::matmul::Order::One), for formats that have such an order: eight partial
//! sums a row, eight rows and one or two columns at a time.

use super::block32::fold_rows;
use super::gemv256::{add_scaled, factors, zero_point};
use super::unpack256::Unpack256;
use crate::cpu::matmul::activation::Q8x256;
use crate::cpu::matmul::x86::ahead::Ahead;
use crate::cpu::matmul::{Column, Weights};
use std::arch::x86_64::*;
use std::ops::Range;

/// # Safety
/// The contract of [`super::super::RowsFn`]; the machine has the instructions.
pub(super) unsafe fn rows<B: Unpack256>(w: &Weights, rows: Range<usize>, columns: &[Column]) {
    for tile in columns.chunks(2) {
        // SAFETY: the same contract.
        unsafe {
            match tile {
                [a] => multiply::<B, 1>(w, rows.clone(), [a]),
                [a, b] => multiply::<B, 2>(w, rows.clone(), [a, b]),
                _ => {}
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
unsafe fn multiply<B: Unpack256, const C: usize>(w: &Weights, rows: Range<usize>, columns: [&Column; C]) {
    // SAFETY: row pointers are clamped to existing rows; results are written for those of the range only.
    unsafe {
        let x: [Q8x256; C] = std::array::from_fn(|c| Q8x256::view(columns[c].record, w.k));
        for first in rows.clone().step_by(8) {
            let count = (rows.end - first).min(8);
            let at: [*const u8; 8] = std::array::from_fn(|r| w.data.add((first + r.min(count - 1)) * w.stride));
            let mut acc = [[_mm256_setzero_ps(); 8]; C];
            let mut ahead = Ahead::new(at[0], 8, w.stride, w.k / 256);
            for b in 0..w.k / 256 {
                ahead.step();
                let block: [*const u8; 8] = std::array::from_fn(|r| at[r].add(b * B::SIZE));
                add_block::<B, C>(&block, b, &x, &mut acc);
            }
            for c in 0..C {
                let to = columns[c].dst.add(first);
                _mm256_mask_storeu_ps(to, ((1u16 << count) - 1) as u8, fold_rows(&acc[c]));
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[inline]
unsafe fn add_block<B: Unpack256, const C: usize>(
    block: &[*const u8; 8],
    b: usize,
    x: &[Q8x256; C],
    acc: &mut [[__m256; 8]; C],
) {
    // SAFETY: the block exists in every row, its parts in every record.
    unsafe {
        let d = factors(block, B::D_AT);
        let mut scaled = [_mm256_setzero_ps(); C];
        for c in 0..C {
            scaled[c] = _mm256_mul_ps(d, _mm256_set1_ps(*x[c].d.add(b)));
        }
        for r in 0..8 {
            let (scale, _) = B::vector_scales(block[r]);
            let mut dots = [_mm512_setzero_si512(); C];
            for c in 0..C {
                dots[c] = zero_point::<B>(scale, _mm256_loadu_si256(x[c].sums.add(b * 16).cast()));
            }
            for part in 0..4 {
                let codes = B::vector_codes(block[r], part);
                for c in 0..C {
                    let input = _mm512_loadu_si512(x[c].codes.add(b * 256 + part * 64).cast());
                    dots[c] = add_scaled::<B>(dots[c], codes, input, scale, part);
                }
            }
            for c in 0..C {
                let eight = _mm256_add_epi32(_mm512_castsi512_si256(dots[c]), _mm512_extracti64x4_epi64::<1>(dots[c]));
                let factor = _mm256_permutevar8x32_ps(scaled[c], _mm256_set1_epi32(r as i32));
                acc[c][r] = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(eight), acc[c][r]);
            }
        }
    }
}

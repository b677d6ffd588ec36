//! One or two columns with blocks of 256, eight rows at a time.

use super::lanes::{whole_sums, whole_sums_256};
use super::unpack256::Unpack256;
use crate::cpu::matmul::activation::Q8x256;
use crate::cpu::matmul::x86::ahead::Ahead;
use crate::cpu::matmul::{Column, Weights};
use crate::cpu::quant::block256::Adding;
use std::arch::x86_64::*;
use std::ops::Range;

/// # Safety
/// The contract of [`super::super::RowsFn`] for `C` columns; the machine has the instructions.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) unsafe fn rows<B: Unpack256, const C: usize>(w: &Weights, rows: Range<usize>, columns: [&Column; C]) {
    // SAFETY: row pointers are clamped to existing rows; results are written for those of the range only.
    unsafe {
        let x: [Q8x256; C] = std::array::from_fn(|c| Q8x256::view(columns[c].record, w.k));
        for first in rows.clone().step_by(8) {
            let count = (rows.end - first).min(8);
            let at: [*const u8; 8] = std::array::from_fn(|r| w.data.add((first + r.min(count - 1)) * w.stride));
            let mut acc = [_mm256_setzero_ps(); C];
            let mut minima = [_mm256_setzero_ps(); C];
            let mut ahead = Ahead::new(at[0], 8, w.stride, w.k / 256);
            for b in 0..w.k / 256 {
                ahead.step();
                let block: [*const u8; 8] = std::array::from_fn(|r| at[r].add(b * B::SIZE));
                one_block::<B, C>(&block, b, &x, &mut acc, &mut minima);
            }
            for c in 0..C {
                let sum = if B::HAS_MIN { _mm256_sub_ps(acc[c], minima[c]) } else { acc[c] };
                _mm256_mask_storeu_ps(columns[c].dst.add(first), ((1u16 << count) - 1) as u8, sum);
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[inline]
unsafe fn one_block<B: Unpack256, const C: usize>(
    block: &[*const u8; 8],
    b: usize,
    x: &[Q8x256; C],
    acc: &mut [__m256; C],
    minima: &mut [__m256; C],
) {
    // SAFETY: the block exists in every row, its parts in every record.
    unsafe {
        let mut dots = [[_mm512_setzero_si512(); 8]; C];
        let mut mins = [[_mm256_setzero_si256(); 8]; C];
        for r in 0..8 {
            let (scale, min) = B::vector_scales(block[r]);
            for c in 0..C {
                let sums = _mm256_loadu_si256(x[c].sums.add(b * 16).cast());
                dots[c][r] = if B::ZERO == 0 { _mm512_setzero_si512() } else { zero_point::<B>(scale, sums) };
                if B::HAS_MIN {
                    mins[c][r] = _mm256_madd_epi16(min, sums);
                }
            }
            for part in 0..4 {
                let codes = B::vector_codes(block[r], part);
                for c in 0..C {
                    let input = _mm512_loadu_si512(x[c].codes.add(b * 256 + part * 64).cast());
                    dots[c][r] = add_scaled::<B>(dots[c][r], codes, input, scale, part);
                }
            }
        }
        let d = factors(block, B::D_AT);
        for c in 0..C {
            let xd = _mm256_set1_ps(*x[c].d.add(b));
            let sum = _mm256_cvtepi32_ps(whole_sums(&dots[c]));
            acc[c] = if B::ADDING == Adding::Eights {
                _mm256_fmadd_ps(_mm256_mul_ps(sum, d), xd, acc[c])
            } else {
                _mm256_fmadd_ps(_mm256_mul_ps(d, xd), sum, acc[c])
            };
            if B::HAS_MIN {
                let sum = _mm256_cvtepi32_ps(whole_sums_256(&mins[c]));
                let dmin = factors(block, B::D_AT + 2);
                minima[c] = _mm256_fmadd_ps(_mm256_mul_ps(dmin, xd), sum, minima[c]);
            }
        }
    }
}

/// What the zero point takes away: `−zero · Σ scale · sum`, spread over lanes.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl")]
#[inline]
pub(super) fn zero_point<B: Unpack256>(scale: __m256i, sums: __m256i) -> __m512i {
    let products = _mm256_mullo_epi32(_mm256_madd_epi16(scale, sums), _mm256_set1_epi32(-i32::from(B::ZERO)));
    _mm512_zextsi256_si512(products)
}

/// Adds `scale · code · input` of 64 weights.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512vnni")]
#[inline]
pub(super) fn add_scaled<B: Unpack256>(
    acc: __m512i,
    codes: __m512i,
    input: __m512i,
    scale: __m256i,
    part: usize,
) -> __m512i {
    let group = 4 * part as i32;
    if B::ZERO < 128 {
        // Pairs of products fit 16 bits: at most 63 · 127 · 2.
        let [a, b, c, d] = [group, group + 1, group + 2, group + 3].map(|g| i64::from(g) * 0x0001_0001_0001_0001);
        let index = _mm512_set_epi64(d, d, c, c, b, b, a, a);
        let spread = _mm512_permutexvar_epi16(index, _mm512_castsi256_si512(scale));
        return _mm512_dpwssd_epi32(acc, _mm512_maddubs_epi16(codes, input), spread);
    }
    let [a, b, c, d] = [group, group + 1, group + 2, group + 3];
    let index = _mm512_set_epi32(d, d, d, d, c, c, c, c, b, b, b, b, a, a, a, a);
    let spread = _mm512_permutexvar_epi32(index, _mm512_cvtepi16_epi32(scale));
    let dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), codes, input);
    _mm512_add_epi32(acc, _mm512_mullo_epi32(dots, spread))
}

/// The half-precision factors of eight blocks.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) unsafe fn factors(block: &[*const u8; 8], at: usize) -> __m256 {
    // SAFETY: the factor lies inside the block.
    let halves = block.map(|p| unsafe { p.add(at).cast::<i16>().read_unaligned() });
    let [a, b, c, d, e, f, g, h] = halves;
    _mm256_cvtph_ps(_mm_set_epi16(h, g, f, e, d, c, b, a))
}

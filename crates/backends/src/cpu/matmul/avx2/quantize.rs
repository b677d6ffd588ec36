//! Activation records in 8 bits.

use crate::cpu::element::round_half;
use crate::cpu::matmul::activation::{Q8x32Mut, Q8x256Mut};
use crate::cpu::quant::f16_to_f32;
use std::arch::x86_64::*;

/// Writes blocks of 32.
///
/// # Safety
/// `x` must be valid for `32 · blocks` reads, the record be of that size; the machine has the instructions.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn write_q8x32(x: *const f32, blocks: usize, to: &Q8x32Mut) {
    for b in 0..blocks {
        // SAFETY: block b lies inside the row and the record.
        unsafe {
            let amax = largest(magnitudes(x.add(b * 32), 32));
            let factor = if amax == 0.0 { 0.0 } else { 127.0 / amax };
            let total = sum(put_codes(x.add(b * 32), factor, to.codes.add(b * 32)));
            let d = amax / 127.0;
            to.d.add(b).write(f16_to_f32(round_half(d)));
            to.s.add(b).write(f16_to_f32(round_half(d * total as f32)));
        }
    }
}

/// Writes blocks of 256.
///
/// # Safety
/// `x` must be valid for `256 · blocks` reads, the record be of that size; the machine has the instructions.
#[target_feature(enable = "avx2")]
pub(crate) unsafe fn write_q8x256(x: *const f32, blocks: usize, to: &Q8x256Mut) {
    for b in 0..blocks {
        // SAFETY: block b lies inside the row and the record.
        unsafe {
            let x = x.add(b * 256);
            let amax = largest(magnitudes(x, 256));
            let factor = if amax == 0.0 { 0.0 } else { 127.0 / amax };
            to.d.add(b).write(if amax == 0.0 { 0.0 } else { 1.0 / factor });
            for part in 0..8 {
                let codes = to.codes.add(b * 256 + part * 32);
                put_codes(x.add(part * 32), factor, codes);
                for half in 0..2 {
                    let codes = _mm_loadu_si128(codes.add(half * 16).cast());
                    let total = sum(_mm256_madd_epi16(_mm256_cvtepi8_epi16(codes), _mm256_set1_epi16(1)));
                    to.sums.add(b * 16 + part * 2 + half).write(total as i16);
                }
            }
        }
    }
}

/// Largest magnitudes of `n` values, by lane.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn magnitudes(x: *const f32, n: usize) -> __m256 {
    let sign = _mm256_set1_ps(-0.0);
    let mut max = _mm256_setzero_ps();
    for i in (0..n).step_by(8) {
        // SAFETY: the values exist.
        max = _mm256_max_ps(max, _mm256_andnot_ps(sign, unsafe { _mm256_loadu_ps(x.add(i)) }));
    }
    max
}

#[target_feature(enable = "avx2")]
#[inline]
fn largest(v: __m256) -> f32 {
    let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
}

#[target_feature(enable = "avx2")]
#[inline]
fn sum(v: __m256i) -> i32 {
    let four = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32::<1>(two)))
}

/// Writes 32 codes, to nearest even; returns their sums by lane.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn put_codes(x: *const f32, factor: f32, codes: *mut i8) -> __m256i {
    let factor = _mm256_set1_ps(factor);
    // SAFETY: 32 values and room for 32 codes exist.
    unsafe {
        let code = |i: usize| _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x.add(8 * i)), factor));
        let (a, b, c, d) = (code(0), code(1), code(2), code(3));
        let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        // Packing works within 128-bit lanes; this puts the quads back in order.
        let order = _mm256_set_epi32(7, 3, 6, 2, 5, 1, 4, 0);
        _mm256_storeu_si256(codes.cast(), _mm256_permutevar8x32_epi32(bytes, order));
        _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d))
    }
}

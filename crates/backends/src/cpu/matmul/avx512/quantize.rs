//! Activation records in 8 bits.

use super::lanes::whole_sums;
use crate::cpu::element::round_half;
use crate::cpu::matmul::activation::{Q8x32Mut, Q8x256Mut};
use crate::cpu::quant::f16_to_f32;
use std::arch::x86_64::*;

/// Writes blocks of 32.
///
/// # Safety
/// `x` must be valid for `32 · blocks` reads, the record be of that size; the machine has the instructions.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn write_q8x32(x: *const f32, blocks: usize, to: &Q8x32Mut) {
    for b in 0..blocks {
        // SAFETY: block b lies inside the row and the record.
        unsafe {
            let (first, second) = (_mm512_loadu_ps(x.add(b * 32)), _mm512_loadu_ps(x.add(b * 32 + 16)));
            let amax = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(first), _mm512_abs_ps(second)));
            let factor = _mm512_set1_ps(if amax == 0.0 { 0.0 } else { 127.0 / amax });
            let first = _mm512_cvtps_epi32(_mm512_mul_ps(first, factor));
            let second = _mm512_cvtps_epi32(_mm512_mul_ps(second, factor));
            let codes = to.codes.add(b * 32);
            _mm_storeu_si128(codes.cast(), _mm512_cvtepi32_epi8(first));
            _mm_storeu_si128(codes.add(16).cast(), _mm512_cvtepi32_epi8(second));
            let total = _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(crate) unsafe fn write_q8x256(x: *const f32, blocks: usize, to: &Q8x256Mut) {
    for b in 0..blocks {
        // SAFETY: block b lies inside the row and the record.
        unsafe {
            let x = x.add(b * 256);
            let mut max = _mm512_setzero_ps();
            for i in 0..16 {
                max = _mm512_max_ps(max, _mm512_abs_ps(_mm512_loadu_ps(x.add(i * 16))));
            }
            let amax = _mm512_reduce_max_ps(max);
            let factor = if amax == 0.0 { 0.0 } else { 127.0 / amax };
            to.d.add(b).write(if amax == 0.0 { 0.0 } else { 1.0 / factor });
            for half in 0..2 {
                let mut groups = [_mm512_setzero_si512(); 8];
                for g in 0..8 {
                    let at = half * 128 + g * 16;
                    let scaled = _mm512_mul_ps(_mm512_loadu_ps(x.add(at)), _mm512_set1_ps(factor));
                    groups[g] = _mm512_cvtps_epi32(scaled);
                    _mm_storeu_si128(to.codes.add(b * 256 + at).cast(), _mm512_cvtepi32_epi8(groups[g]));
                }
                let sums = _mm256_cvtepi32_epi16(whole_sums(&groups));
                _mm_storeu_si128(to.sums.add(b * 16 + half * 8).cast(), sums);
            }
        }
    }
}

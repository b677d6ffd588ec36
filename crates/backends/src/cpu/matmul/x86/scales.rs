//! Scales of 256-weight blocks in vectors.

use crate::cpu::quant::block256::{Block256, Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use std::arch::x86_64::*;

/// A format whose scales can be unpacked into vectors (with AVX2).
pub(crate) trait VectorScales: Block256 {
    /// Offset of the half-precision factor of the scales; that of the minima follows it.
    const D_AT: usize;

    /// Scale and minimum of each 16 weights, as 16-bit numbers.
    ///
    /// # Safety
    /// The block must be readable; the caller has the instructions.
    unsafe fn vector_scales(block: *const u8) -> (__m256i, __m256i);
}

/// Q4_K and Q5_K: twelve bytes of 6-bit scales and minima, each for 32 weights.
#[inline(always)]
unsafe fn six_bit_scales(p: *const u8) -> (__m256i, __m256i) {
    // SAFETY: twelve bytes are readable; the caller has the instructions.
    unsafe {
        let word = |i: usize| p.add(4 * i).cast::<u32>().read_unaligned();
        let (a, b, c) = (word(0), word(1), word(2));
        let (low, top) = (0x3f3f_3f3f, 0x0303_0303);
        let scale = [a & low, c & 0x0f0f_0f0f | (a >> 6 & top) << 4];
        let min = [b & low, c >> 4 & 0x0f0f_0f0f | (b >> 6 & top) << 4];
        let pair = |[first, second]: [u32; 2]| {
            let eight = _mm_cvtsi64_si128((u64::from(first) | u64::from(second) << 32) as i64);
            _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(eight, eight))
        };
        (pair(scale), pair(min))
    }
}

impl VectorScales for Q4K {
    const D_AT: usize = 0;
    #[inline(always)]
    unsafe fn vector_scales(block: *const u8) -> (__m256i, __m256i) {
        // SAFETY: as the trait says.
        unsafe { six_bit_scales(block.add(4)) }
    }
}

impl VectorScales for Q5K {
    const D_AT: usize = 0;
    #[inline(always)]
    unsafe fn vector_scales(block: *const u8) -> (__m256i, __m256i) {
        // SAFETY: as the trait says.
        unsafe { six_bit_scales(block.add(4)) }
    }
}

impl VectorScales for Q6K {
    const D_AT: usize = 208;
    #[inline(always)]
    unsafe fn vector_scales(block: *const u8) -> (__m256i, __m256i) {
        // SAFETY: as the trait says.
        unsafe { (_mm256_cvtepi8_epi16(_mm_loadu_si128(block.add(192).cast())), _mm256_setzero_si256()) }
    }
}

impl VectorScales for Q2K {
    const D_AT: usize = 80;
    #[inline(always)]
    unsafe fn vector_scales(block: *const u8) -> (__m256i, __m256i) {
        // SAFETY: as the trait says.
        unsafe {
            let packed = _mm256_cvtepu8_epi16(_mm_loadu_si128(block.cast()));
            (_mm256_and_si256(packed, _mm256_set1_epi16(15)), _mm256_srli_epi16::<4>(packed))
        }
    }
}

impl VectorScales for Q3K {
    const D_AT: usize = 108;
    #[inline(always)]
    unsafe fn vector_scales(block: *const u8) -> (__m256i, __m256i) {
        // SAFETY: as the trait says.
        unsafe {
            let word = |i: usize| block.add(96 + 4 * i).cast::<u32>().read_unaligned();
            let (a, b, c) = (word(0), word(1), word(2));
            let (low, top) = (0x0f0f_0f0f, 0x0303_0303);
            let four = |nibbles: u32, shift: u32| (nibbles & low | (c >> shift & top) << 4) as i32;
            let bytes = _mm_set_epi32(four(b >> 4, 6), four(a >> 4, 4), four(b, 2), four(a, 0));
            let scales = _mm256_sub_epi16(_mm256_cvtepu8_epi16(bytes), _mm256_set1_epi16(32));
            (scales, _mm256_setzero_si256())
        }
    }
}

impl VectorScales for Iq4Xs {
    const D_AT: usize = 0;
    #[inline(always)]
    unsafe fn vector_scales(block: *const u8) -> (__m256i, __m256i) {
        // SAFETY: as the trait says.
        unsafe {
            let low = block.add(4).cast::<u32>().read_unaligned();
            let high = u32::from(block.add(2).cast::<u16>().read_unaligned());
            // Two 32-bit lanes of four codes each would do; eight lanes keep the shifts simple.
            let nibbles =
                _mm256_srlv_epi32(_mm256_set1_epi32(low as i32), _mm256_set_epi32(28, 24, 20, 16, 12, 8, 4, 0));
            let tops = _mm256_srlv_epi32(_mm256_set1_epi32(high as i32), _mm256_set_epi32(14, 12, 10, 8, 6, 4, 2, 0));
            let top = _mm256_slli_epi32::<4>(_mm256_and_si256(tops, _mm256_set1_epi32(3)));
            let codes = _mm256_or_si256(_mm256_and_si256(nibbles, _mm256_set1_epi32(15)), top);
            let scale = _mm256_sub_epi32(codes, _mm256_set1_epi32(32));
            let word = _mm256_and_si256(scale, _mm256_set1_epi32(0xffff));
            (_mm256_or_si256(word, _mm256_slli_epi32::<16>(word)), _mm256_setzero_si256())
        }
    }
}

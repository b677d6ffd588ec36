//! Codes and scales of 256-weight blocks in vectors.

use super::unpack32::iq4_table;
use crate::cpu::quant::block256::{Block256, Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use std::arch::x86_64::*;

/// A format whose blocks can be unpacked 64 weights at a time.
pub(super) trait Unpack256: Block256 {
    /// Codes of weights `64 · part` to `64 · part + 63`.
    ///
    /// # Safety
    /// The block must be readable; the caller has the instructions.
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m512i;

    /// Scale and minimum of each 16 weights, as 16-bit numbers.
    ///
    /// # Safety
    /// As above.
    unsafe fn vector_scales(block: *const u8) -> (__m256i, __m256i);

    /// Offset of the half-precision factor of the scales; that of the minima follows it.
    const D_AT: usize;
}

/// 32 bytes in both halves, shifted right by `low` and `high` bits.
#[inline(always)]
unsafe fn shifted(p: *const u8, low: i32, high: i32) -> __m512i {
    // SAFETY: 32 bytes are readable; the caller has the instructions.
    unsafe {
        let both = _mm512_broadcast_i64x4(_mm256_loadu_si256(p.cast()));
        let counts = _mm512_inserti64x4::<1>(_mm512_set1_epi32(low), _mm256_set1_epi32(high));
        _mm512_srlv_epi32(both, counts)
    }
}

#[inline(always)]
unsafe fn masked(v: __m512i, mask: i8) -> __m512i {
    // SAFETY: the caller has the instructions.
    unsafe { _mm512_and_si512(v, _mm512_set1_epi8(mask)) }
}

/// Bits `64 · part` to `64 · part + 63` of a bit field of `[bit][32 elements]`, one in each byte's bit `to`.
#[inline(always)]
unsafe fn bit_plane(p: *const u8, part: usize, to: i32) -> __m512i {
    // SAFETY: 32 bytes are readable; the caller has the instructions.
    unsafe {
        let bit = 2 * part as i32;
        let one = masked(shifted(p, bit, bit + 1), 1);
        _mm512_sllv_epi32(one, _mm512_set1_epi32(to))
    }
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

impl Unpack256 for Q4K {
    const D_AT: usize = 0;
    #[inline(always)]
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m512i {
        // SAFETY: as the trait says.
        unsafe { masked(shifted(block.add(16 + 32 * part), 0, 4), 15) }
    }
    #[inline(always)]
    unsafe fn vector_scales(block: *const u8) -> (__m256i, __m256i) {
        // SAFETY: as the trait says.
        unsafe { six_bit_scales(block.add(4)) }
    }
}

impl Unpack256 for Q5K {
    const D_AT: usize = 0;
    #[inline(always)]
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m512i {
        // SAFETY: as the trait says.
        unsafe {
            let nibbles = masked(shifted(block.add(48 + 32 * part), 0, 4), 15);
            _mm512_or_si512(nibbles, bit_plane(block.add(16), part, 4))
        }
    }
    #[inline(always)]
    unsafe fn vector_scales(block: *const u8) -> (__m256i, __m256i) {
        // SAFETY: as the trait says.
        unsafe { six_bit_scales(block.add(4)) }
    }
}

impl Unpack256 for Q6K {
    const D_AT: usize = 208;
    #[inline(always)]
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m512i {
        let (half, high_nibbles) = (part / 2, part % 2 == 1);
        // SAFETY: as the trait says.
        unsafe {
            let packed = _mm512_loadu_si512(block.add(64 * half).cast());
            let low = masked(if high_nibbles { _mm512_srli_epi16::<4>(packed) } else { packed }, 15);
            let shift = if high_nibbles { 4 } else { 0 };
            let high = masked(shifted(block.add(128 + 32 * half), shift, shift + 2), 3);
            _mm512_or_si512(low, _mm512_slli_epi16::<4>(high))
        }
    }
    #[inline(always)]
    unsafe fn vector_scales(block: *const u8) -> (__m256i, __m256i) {
        // SAFETY: as the trait says.
        unsafe { (_mm256_cvtepi8_epi16(_mm_loadu_si128(block.add(192).cast())), _mm256_setzero_si256()) }
    }
}

impl Unpack256 for Q2K {
    const D_AT: usize = 80;
    #[inline(always)]
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m512i {
        let shift = part as i32 % 2 * 4;
        // SAFETY: as the trait says.
        unsafe { masked(shifted(block.add(16 + 32 * (part / 2)), shift, shift + 2), 3) }
    }
    #[inline(always)]
    unsafe fn vector_scales(block: *const u8) -> (__m256i, __m256i) {
        // SAFETY: as the trait says.
        unsafe {
            let packed = _mm256_cvtepu8_epi16(_mm_loadu_si128(block.cast()));
            (_mm256_and_si256(packed, _mm256_set1_epi16(15)), _mm256_srli_epi16::<4>(packed))
        }
    }
}

impl Unpack256 for Q3K {
    const D_AT: usize = 108;
    #[inline(always)]
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m512i {
        let shift = part as i32 % 2 * 4;
        // SAFETY: as the trait says.
        unsafe {
            let low = masked(shifted(block.add(32 + 32 * (part / 2)), shift, shift + 2), 3);
            _mm512_or_si512(low, bit_plane(block, part, 2))
        }
    }
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

impl Unpack256 for Iq4Xs {
    const D_AT: usize = 0;
    #[inline(always)]
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m512i {
        // SAFETY: as the trait says.
        unsafe {
            // Sixteen bytes hold 32 weights: low nibbles, then high ones.
            let packed = _mm256_loadu_si256(block.add(8 + 32 * part).cast());
            let twice =
                _mm512_permutexvar_epi64(_mm512_set_epi64(3, 2, 3, 2, 1, 0, 1, 0), _mm512_castsi256_si512(packed));
            let counts = _mm512_set_epi32(4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0);
            _mm512_shuffle_epi8(iq4_table(), masked(_mm512_srlv_epi32(twice, counts), 15))
        }
    }
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

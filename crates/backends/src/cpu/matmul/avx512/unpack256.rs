//! Codes of 256-weight blocks in vectors.

use super::unpack32::iq4_table;
use crate::cpu::matmul::x86::scales::VectorScales;
use crate::cpu::quant::block256::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use std::arch::x86_64::*;

/// A format whose blocks can be unpacked 64 weights at a time.
pub(super) trait Unpack256: VectorScales {
    /// Codes of weights `64 · part` to `64 · part + 63`.
    ///
    /// # Safety
    /// The block must be readable; the caller has the instructions.
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m512i;
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

impl Unpack256 for Q4K {
    #[inline(always)]
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m512i {
        // SAFETY: as the trait says.
        unsafe { masked(shifted(block.add(16 + 32 * part), 0, 4), 15) }
    }
}

impl Unpack256 for Q5K {
    #[inline(always)]
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m512i {
        // SAFETY: as the trait says.
        unsafe {
            let nibbles = masked(shifted(block.add(48 + 32 * part), 0, 4), 15);
            _mm512_or_si512(nibbles, bit_plane(block.add(16), part, 4))
        }
    }
}

impl Unpack256 for Q6K {
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
}

impl Unpack256 for Q2K {
    #[inline(always)]
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m512i {
        let shift = part as i32 % 2 * 4;
        // SAFETY: as the trait says.
        unsafe { masked(shifted(block.add(16 + 32 * (part / 2)), shift, shift + 2), 3) }
    }
}

impl Unpack256 for Q3K {
    #[inline(always)]
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m512i {
        let shift = part as i32 % 2 * 4;
        // SAFETY: as the trait says.
        unsafe {
            let low = masked(shifted(block.add(32 + 32 * (part / 2)), shift, shift + 2), 3);
            _mm512_or_si512(low, bit_plane(block, part, 2))
        }
    }
}

impl Unpack256 for Iq4Xs {
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
}

//! Codes of 32-weight blocks in vectors.

use crate::cpu::quant::block32::{Block32, IQ4_CODES, Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use std::arch::x86_64::*;

/// A format whose blocks can be unpacked two at a time.
pub(super) trait Unpack32: Block32 {
    /// Codes of the block at `p`, then of the one at `q`.
    ///
    /// # Safety
    /// The blocks must be readable; the caller has the instructions.
    unsafe fn pair_codes(p: *const u8, q: *const u8) -> __m512i;
}

/// Low nibbles in even 128-bit lanes, high nibbles in odd ones; the packed bytes stand `at` bytes into the blocks.
#[inline(always)]
unsafe fn nibbles(p: *const u8, q: *const u8, at: usize) -> __m512i {
    // SAFETY: sixteen bytes are readable at both; the caller has the instructions.
    unsafe {
        let twice = |p: *const u8| _mm256_broadcastsi128_si256(_mm_loadu_si128(p.add(at).cast()));
        let both = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(twice(p)), twice(q));
        let counts = _mm512_set_epi32(4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0);
        _mm512_and_si512(_mm512_srlv_epi32(both, counts), _mm512_set1_epi8(15))
    }
}

/// Adds the fifth bits, 32 of them `at` bytes into each block.
#[inline(always)]
unsafe fn fifth_bits(p: *const u8, q: *const u8, at: usize, codes: __m512i) -> __m512i {
    // SAFETY: the bits lie inside the blocks; the caller has the instructions.
    unsafe {
        let bits = |p: *const u8| u64::from(p.add(at).cast::<u32>().read_unaligned());
        _mm512_mask_add_epi8(codes, bits(p) | bits(q) << 32, codes, _mm512_set1_epi8(16))
    }
}

macro_rules! unpack32 {
    ($($format:ident, $p:ident, $q:ident => $codes:expr;)*) => {$(
        impl Unpack32 for $format {
            #[inline(always)]
            unsafe fn pair_codes($p: *const u8, $q: *const u8) -> __m512i {
                // SAFETY: as the trait says.
                unsafe { $codes }
            }
        }
    )*};
}
unpack32! {
    Q4_0, p, q => nibbles(p, q, 2);
    Q4_1, p, q => nibbles(p, q, 4);
    Q5_0, p, q => fifth_bits(p, q, 2, nibbles(p, q, 6));
    Q5_1, p, q => fifth_bits(p, q, 4, nibbles(p, q, 8));
    Q8_0, p, q => {
        let (first, second) = (_mm256_loadu_si256(p.add(2).cast()), _mm256_loadu_si256(q.add(2).cast()));
        let signed = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
        _mm512_xor_si512(signed, _mm512_set1_epi8(-128))
    };
    Iq4Nl, p, q => _mm512_shuffle_epi8(iq4_table(), nibbles(p, q, 2));
}

/// The table of the non-linear formats in every 128-bit lane.
#[inline(always)]
pub(super) unsafe fn iq4_table() -> __m512i {
    // SAFETY: the table has 16 bytes; the caller has the instructions.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(IQ4_CODES.as_ptr().cast())) }
}

//! Codes of blocks in vectors.

use crate::cpu::matmul::x86::scales::VectorScales;
use crate::cpu::quant::block32::{Block32, IQ4_CODES, Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::cpu::quant::block256::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use std::arch::x86_64::*;

/// A format of 32-weight blocks.
pub(super) trait Unpack32: Block32 {
    /// The codes of a block.
    ///
    /// # Safety
    /// The block must be readable; the caller has the instructions.
    unsafe fn vector_codes(block: *const u8) -> __m256i;
}

/// A format of 256-weight blocks.
pub(super) trait Unpack256: VectorScales {
    /// The codes of weights `32 · part` to `32 · part + 31`.
    ///
    /// # Safety
    /// The block must be readable; the caller has the instructions.
    unsafe fn vector_codes(block: *const u8, part: usize) -> __m256i;
}

/// Sixteen bytes: low nibbles, then high nibbles.
#[inline(always)]
unsafe fn nibbles(p: *const u8) -> __m256i {
    // SAFETY: sixteen bytes are readable; the caller has the instructions.
    unsafe {
        let packed = _mm_loadu_si128(p.cast());
        let both = _mm256_set_m128i(_mm_srli_epi16::<4>(packed), packed);
        _mm256_and_si256(both, _mm256_set1_epi8(15))
    }
}

/// 32 bits, one in each byte, as 16 or 0.
#[inline(always)]
unsafe fn fifth_bits(p: *const u8) -> __m256i {
    // SAFETY: four bytes are readable; the caller has the instructions.
    unsafe {
        let bits = _mm256_set1_epi32(p.cast::<i32>().read_unaligned());
        let bytes = _mm256_set_epi64x(0x0303_0303_0303_0303, 0x0202_0202_0202_0202, 0x0101_0101_0101_0101, 0);
        let wanted = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
        let spread = _mm256_and_si256(_mm256_shuffle_epi8(bits, bytes), wanted);
        _mm256_and_si256(_mm256_cmpeq_epi8(spread, wanted), _mm256_set1_epi8(16))
    }
}

/// Nibbles to the codes of the table.
#[inline(always)]
unsafe fn iq4_codes(nibbles: __m256i) -> __m256i {
    // SAFETY: the table has 16 bytes; the caller has the instructions.
    unsafe {
        let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(IQ4_CODES.as_ptr().cast()));
        _mm256_shuffle_epi8(table, nibbles)
    }
}

/// Bits `shift` and up of 32 bytes, as far as `mask` goes.
#[inline(always)]
unsafe fn bits(p: *const u8, shift: usize, mask: i8) -> __m256i {
    // SAFETY: 32 bytes are readable; the caller has the instructions.
    unsafe {
        let bytes = _mm256_loadu_si256(p.cast());
        let shifted = _mm256_srl_epi16(bytes, _mm_cvtsi32_si128(shift as i32));
        _mm256_and_si256(shifted, _mm256_set1_epi8(mask))
    }
}

macro_rules! unpack32 {
    ($($format:ident, $block:ident => $codes:expr;)*) => {$(
        impl Unpack32 for $format {
            #[inline(always)]
            unsafe fn vector_codes($block: *const u8) -> __m256i {
                // SAFETY: as the trait says.
                unsafe { $codes }
            }
        }
    )*};
}
unpack32! {
    Q4_0, block => nibbles(block.add(2));
    Q4_1, block => nibbles(block.add(4));
    Q5_0, block => _mm256_or_si256(nibbles(block.add(6)), fifth_bits(block.add(2)));
    Q5_1, block => _mm256_or_si256(nibbles(block.add(8)), fifth_bits(block.add(4)));
    Q8_0, block => _mm256_xor_si256(_mm256_loadu_si256(block.add(2).cast()), _mm256_set1_epi8(-128));
    Iq4Nl, block => iq4_codes(nibbles(block.add(2)));
}

macro_rules! unpack256 {
    ($($format:ident, $block:ident, $part:ident => $codes:expr;)*) => {$(
        impl Unpack256 for $format {
            #[inline(always)]
            unsafe fn vector_codes($block: *const u8, $part: usize) -> __m256i {
                // SAFETY: as the trait says.
                unsafe { $codes }
            }
        }
    )*};
}
unpack256! {
    Q2K, block, part => bits(block.add(16 + part / 4 * 32), part % 4 * 2, 3);
    Q3K, block, part => {
        let low = bits(block.add(32 + part / 4 * 32), part % 4 * 2, 3);
        _mm256_or_si256(low, _mm256_slli_epi16::<2>(bits(block, part, 1)))
    };
    Q4K, block, part => bits(block.add(16 + part / 2 * 32), part % 2 * 4, 15);
    Q5K, block, part => {
        let low = bits(block.add(48 + part / 2 * 32), part % 2 * 4, 15);
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(bits(block.add(16), part, 1)))
    };
    Q6K, block, part => {
        let (half, j) = (part / 4, part % 4);
        let low = bits(block.add(half * 64 + j % 2 * 32), j / 2 * 4, 15);
        _mm256_or_si256(low, _mm256_slli_epi16::<4>(bits(block.add(128 + half * 32), j * 2, 3)))
    };
    Iq4Xs, block, part => iq4_codes(nibbles(block.add(8 + part * 16)));
}

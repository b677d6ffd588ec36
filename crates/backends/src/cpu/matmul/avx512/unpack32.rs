//! Codes of 32-weight blocks in vectors.

use crate::cpu::quant::block32::{Block32, IQ4_CODES, Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use std::arch::x86_64::*;

/// A format whose blocks can be unpacked two at a time.
pub(super) trait Unpack32: Block32 {
    /// Codes of the block at `p` and, if `two`, of the one after it (otherwise the upper half is unspecified).
    ///
    /// # Safety
    /// One or two blocks must be readable at `p`, `raw` be what `window` gives for them; the caller has the
    /// instructions.
    unsafe fn vector_codes(p: *const u8, window: &Window, raw: __m512i, two: bool) -> __m512i;
}

/// Which 64 bytes of a row are loaded for a pair of blocks.
///
/// Loads stay inside the row without masks: those that miss the cache are several times slower with one. Only rows
/// shorter than a vector need it.
#[derive(Clone, Copy)]
pub(super) struct Window {
    /// First byte of the load in the row.
    pub(super) start: usize,
    /// Where the pair begins in the loaded bytes.
    pub(super) skip: usize,
    mask: u64,
}

impl Window {
    /// The window of pair `pair` in rows of `blocks` blocks.
    #[inline(always)]
    pub(super) fn of<B: Block32>(pair: usize, blocks: usize) -> Self {
        let (row, at) = (blocks * B::SIZE, pair * 2 * B::SIZE);
        if at + 64 <= row {
            Self { start: at, skip: 0, mask: !0 }
        } else if row >= 64 {
            Self { start: row - 64, skip: at + 64 - row, mask: !0 }
        } else {
            Self { start: at, skip: 0, mask: (1 << (row - at)) - 1 }
        }
    }

    /// # Safety
    /// The row must be readable; the caller has the instructions.
    #[inline(always)]
    pub(super) unsafe fn load(&self, row: *const u8) -> __m512i {
        // SAFETY: the bytes of the mask lie inside the row.
        unsafe {
            let p = row.add(self.start);
            if self.mask == !0 { _mm512_loadu_si512(p.cast()) } else { _mm512_maskz_loadu_epi8(self.mask, p.cast()) }
        }
    }
}

/// Byte indices that bring the 16 packed bytes of each block, twice, into place.
const fn spread(size: usize, at: usize) -> [u8; 64] {
    let mut index = [0; 64];
    let mut i = 0;
    while i < 64 {
        index[i] = (i / 32 * size + at + i % 16) as u8;
        i += 1;
    }
    index
}

/// Low nibbles in even 128-bit lanes, high nibbles in odd ones.
#[inline(always)]
unsafe fn nibbles(window: &Window, raw: __m512i, index: &[u8; 64]) -> __m512i {
    // SAFETY: the caller has the instructions.
    unsafe {
        let index = _mm512_add_epi8(_mm512_loadu_si512(index.as_ptr().cast()), _mm512_set1_epi8(window.skip as i8));
        let spread = _mm512_permutexvar_epi8(index, raw);
        let counts = _mm512_set_epi32(4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0);
        _mm512_and_si512(_mm512_srlv_epi32(spread, counts), _mm512_set1_epi8(15))
    }
}

/// Adds the fifth bits, 32 of them `at` bytes into each block.
#[inline(always)]
unsafe fn fifth_bits<B: Block32>(p: *const u8, at: usize, two: bool, codes: __m512i) -> __m512i {
    // SAFETY: the bits lie inside the blocks; the caller has the instructions.
    unsafe {
        let first = p.add(at).cast::<u32>().read_unaligned();
        let second = if two { p.add(B::SIZE + at).cast::<u32>().read_unaligned() } else { 0 };
        let bits = u64::from(first) | u64::from(second) << 32;
        _mm512_mask_add_epi8(codes, bits, codes, _mm512_set1_epi8(16))
    }
}

impl Unpack32 for Q4_0 {
    #[inline(always)]
    unsafe fn vector_codes(_: *const u8, window: &Window, raw: __m512i, _: bool) -> __m512i {
        const INDEX: [u8; 64] = spread(Q4_0::SIZE, 2);
        // SAFETY: as the trait says.
        unsafe { nibbles(window, raw, &INDEX) }
    }
}

impl Unpack32 for Q4_1 {
    #[inline(always)]
    unsafe fn vector_codes(_: *const u8, window: &Window, raw: __m512i, _: bool) -> __m512i {
        const INDEX: [u8; 64] = spread(Q4_1::SIZE, 4);
        // SAFETY: as the trait says.
        unsafe { nibbles(window, raw, &INDEX) }
    }
}

impl Unpack32 for Q5_0 {
    #[inline(always)]
    unsafe fn vector_codes(p: *const u8, window: &Window, raw: __m512i, two: bool) -> __m512i {
        const INDEX: [u8; 64] = spread(Q5_0::SIZE, 6);
        // SAFETY: as the trait says.
        unsafe { fifth_bits::<Self>(p, 2, two, nibbles(window, raw, &INDEX)) }
    }
}

impl Unpack32 for Q5_1 {
    #[inline(always)]
    unsafe fn vector_codes(p: *const u8, window: &Window, raw: __m512i, two: bool) -> __m512i {
        const INDEX: [u8; 64] = spread(Q5_1::SIZE, 8);
        // SAFETY: as the trait says.
        unsafe { fifth_bits::<Self>(p, 4, two, nibbles(window, raw, &INDEX)) }
    }
}

impl Unpack32 for Q8_0 {
    #[inline(always)]
    unsafe fn vector_codes(p: *const u8, _: &Window, _: __m512i, two: bool) -> __m512i {
        // SAFETY: as the trait says.
        unsafe {
            let first = _mm256_loadu_si256(p.add(2).cast());
            let second = if two { _mm256_loadu_si256(p.add(36).cast()) } else { first };
            let signed = _mm512_inserti64x4::<1>(_mm512_castsi256_si512(first), second);
            _mm512_xor_si512(signed, _mm512_set1_epi8(-128))
        }
    }
}

impl Unpack32 for Iq4Nl {
    #[inline(always)]
    unsafe fn vector_codes(_: *const u8, window: &Window, raw: __m512i, _: bool) -> __m512i {
        const INDEX: [u8; 64] = spread(Iq4Nl::SIZE, 2);
        // SAFETY: as the trait says.
        unsafe { _mm512_shuffle_epi8(iq4_table(), nibbles(window, raw, &INDEX)) }
    }
}

/// The table of the non-linear formats in every 128-bit lane.
#[inline(always)]
pub(super) unsafe fn iq4_table() -> __m512i {
    // SAFETY: the table has 16 bytes; the caller has the instructions.
    unsafe { _mm512_broadcast_i32x4(_mm_loadu_si128(IQ4_CODES.as_ptr().cast())) }
}

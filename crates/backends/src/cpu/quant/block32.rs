//! Formats with one scale for 32 weights.

use super::read_f16;

/// Weights of a block.
pub(crate) const LEN: usize = 32;

/// A format of 32-weight blocks: half scale first, then (if it has one) the half minimum.
pub(crate) trait Block32: Copy + Send + Sync + 'static {
    /// Bytes of a block.
    const SIZE: usize;
    /// The code that stands for zero.
    const ZERO: u8;
    /// Whether a minimum is added to every weight.
    const HAS_MIN: bool;

    /// The codes in element order.
    fn codes(block: &[u8]) -> [u8; LEN];

    /// The scale.
    #[inline(always)]
    fn scale(block: &[u8]) -> f32 {
        read_f16(block)
    }
    /// The minimum; zero for formats without.
    #[inline(always)]
    fn minimum(block: &[u8]) -> f32 {
        if Self::HAS_MIN { read_f16(&block[2..]) } else { 0.0 }
    }
}

/// Low nibbles are the first half of the block, high nibbles the second.
#[inline(always)]
fn nibbles(packed: &[u8]) -> [u8; LEN] {
    std::array::from_fn(|i| if i < 16 { packed[i] & 15 } else { packed[i - 16] >> 4 })
}

/// Adds a fifth bit to nibbles: bit `i` of `high` belongs to element `i`.
#[inline(always)]
fn fifth_bit(mut codes: [u8; LEN], high: &[u8]) -> [u8; LEN] {
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= (high[i / 8] >> (i % 8) & 1) << 4;
    }
    codes
}

/// 4 bits.
#[derive(Clone, Copy)]
pub(crate) struct Q4_0;
/// 4 bits and a minimum.
#[derive(Clone, Copy)]
pub(crate) struct Q4_1;
/// 5 bits.
#[derive(Clone, Copy)]
pub(crate) struct Q5_0;
/// 5 bits and a minimum.
#[derive(Clone, Copy)]
pub(crate) struct Q5_1;
/// 8 bits.
#[derive(Clone, Copy)]
pub(crate) struct Q8_0;
/// 4 bits, values from a table.
#[derive(Clone, Copy)]
pub(crate) struct Iq4Nl;

impl Block32 for Q4_0 {
    const SIZE: usize = 18;
    const ZERO: u8 = 8;
    const HAS_MIN: bool = false;
    #[inline(always)]
    fn codes(block: &[u8]) -> [u8; LEN] {
        nibbles(&block[2..])
    }
}

impl Block32 for Q4_1 {
    const SIZE: usize = 20;
    const ZERO: u8 = 0;
    const HAS_MIN: bool = true;
    #[inline(always)]
    fn codes(block: &[u8]) -> [u8; LEN] {
        nibbles(&block[4..])
    }
}

impl Block32 for Q5_0 {
    const SIZE: usize = 22;
    const ZERO: u8 = 16;
    const HAS_MIN: bool = false;
    #[inline(always)]
    fn codes(block: &[u8]) -> [u8; LEN] {
        fifth_bit(nibbles(&block[6..]), &block[2..6])
    }
}

impl Block32 for Q5_1 {
    const SIZE: usize = 24;
    const ZERO: u8 = 0;
    const HAS_MIN: bool = true;
    #[inline(always)]
    fn codes(block: &[u8]) -> [u8; LEN] {
        fifth_bit(nibbles(&block[8..]), &block[4..8])
    }
}

impl Block32 for Q8_0 {
    const SIZE: usize = 34;
    const ZERO: u8 = 128;
    const HAS_MIN: bool = false;
    #[inline(always)]
    fn codes(block: &[u8]) -> [u8; LEN] {
        std::array::from_fn(|i| block[2 + i] ^ 0x80)
    }
}

/// The sixteen values of the non-linear 4-bit formats.
pub(crate) const IQ4_VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// [`IQ4_VALUES`] as codes around 128.
pub(crate) const IQ4_CODES: [u8; 16] = {
    let mut codes = [0; 16];
    let mut i = 0;
    while i < 16 {
        codes[i] = IQ4_VALUES[i] as u8 ^ 0x80;
        i += 1;
    }
    codes
};

impl Block32 for Iq4Nl {
    const SIZE: usize = 18;
    const ZERO: u8 = 128;
    const HAS_MIN: bool = false;
    #[inline(always)]
    fn codes(block: &[u8]) -> [u8; LEN] {
        nibbles(&block[2..]).map(|n| IQ4_CODES[usize::from(n)])
    }
}

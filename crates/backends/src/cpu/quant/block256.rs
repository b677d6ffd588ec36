//! Formats with 256 weights to a block, and integer scales for groups of 16 or 32 of them.

use super::block32::IQ4_CODES;
use super::read_f16;

/// Weights of a block.
pub(crate) const LEN: usize = 256;
/// Groups of 16 weights in a block.
pub(crate) const GROUPS: usize = 16;

/// The scales of a block. A group of 32 has its scale twice.
#[derive(Clone, Copy)]
pub(crate) struct Scales {
    /// Factor of every scale.
    pub(crate) d: f32,
    /// Factor of every minimum; zero for formats without.
    pub(crate) dmin: f32,
    /// A scale for each 16 weights.
    pub(crate) scale: [i16; GROUPS],
    /// A minimum for each 16 weights, to be subtracted.
    pub(crate) min: [i16; GROUPS],
}

/// How the sums of blocks are added up; `d` and `x` are the scales of weights and activations.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Adding {
    /// `acc += (d · x) · sum`, fused.
    Whole,
    /// For one column as [`Self::Whole`], for many the same after every 64 weights.
    Quarters,
    /// For one column in eight lanes, each as [`Self::Whole`]; for many `acc += (sum · d) · x`, fused. Only for formats
    /// without minimum.
    Eights,
}

/// A format of 256-weight blocks.
pub(crate) trait Block256: Copy + Send + Sync + 'static {
    /// Bytes of a block.
    const SIZE: usize;
    /// The code that stands for zero.
    const ZERO: u8;
    /// Weights that share an integer scale: 16 or 32.
    const GROUP: usize;
    /// Whether a minimum is subtracted from every weight.
    const HAS_MIN: bool;
    /// How the sums of blocks are added up.
    const ADDING: Adding = Adding::Whole;

    /// The codes in element order.
    fn codes(block: &[u8]) -> [u8; LEN];
    /// The scales.
    fn scales(block: &[u8]) -> Scales;
}

/// 2 bits, groups of 16.
#[derive(Clone, Copy)]
pub(crate) struct Q2K;
/// 3 bits, groups of 16.
#[derive(Clone, Copy)]
pub(crate) struct Q3K;
/// 4 bits, groups of 32.
#[derive(Clone, Copy)]
pub(crate) struct Q4K;
/// 5 bits, groups of 32.
#[derive(Clone, Copy)]
pub(crate) struct Q5K;
/// 6 bits, groups of 16.
#[derive(Clone, Copy)]
pub(crate) struct Q6K;
/// 4 bits, values from a table, groups of 32.
#[derive(Clone, Copy)]
pub(crate) struct Iq4Xs;

/// Two bits of each element: 32 bytes hold 128 elements, the first 32 in the lowest bits.
#[inline(always)]
fn two_bits(packed: &[u8]) -> [u8; LEN] {
    let mut codes = [0; LEN];
    for (part, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let bytes = &packed[part / 4 * 32..][..32];
        for (code, byte) in codes.iter_mut().zip(bytes) {
            *code = byte >> (part % 4 * 2) & 3;
        }
    }
    codes
}

/// Adds a bit to each code: bit n of 32 bytes belongs to the n-th 32 elements, and becomes bit `to`.
#[inline(always)]
fn add_bit(codes: &mut [u8; LEN], packed: &[u8], to: u32) {
    for (part, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (code, byte) in codes.iter_mut().zip(&packed[..32]) {
            *code |= (byte >> part & 1) << to;
        }
    }
}

impl Block256 for Q2K {
    const SIZE: usize = 84;
    const ZERO: u8 = 0;
    const GROUP: usize = 16;
    const HAS_MIN: bool = true;

    #[inline(always)]
    fn codes(block: &[u8]) -> [u8; LEN] {
        two_bits(&block[16..80])
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> Scales {
        Scales {
            d: read_f16(&block[80..]),
            dmin: read_f16(&block[82..]),
            scale: std::array::from_fn(|g| i16::from(block[g] & 15)),
            min: std::array::from_fn(|g| i16::from(block[g] >> 4)),
        }
    }
}

impl Block256 for Q3K {
    const SIZE: usize = 110;
    const ZERO: u8 = 4;
    const GROUP: usize = 16;
    const HAS_MIN: bool = false;

    #[inline(always)]
    fn codes(block: &[u8]) -> [u8; LEN] {
        let mut codes = two_bits(&block[32..96]);
        add_bit(&mut codes, block, 2);
        codes
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> Scales {
        let packed = &block[96..108];
        let scale = |g: usize| {
            let low = packed[g % 8] >> (g / 8 * 4) & 15;
            let high = packed[8 + g % 4] >> (g / 4 * 2) & 3;
            i16::from(low | high << 4) - 32
        };
        Scales { d: read_f16(&block[108..]), dmin: 0.0, scale: std::array::from_fn(scale), min: [0; GROUPS] }
    }
}

/// The eight 6-bit scales and minima of Q4_K and Q5_K: the first four of each in the low bits of four bytes each, the
/// others split between the last four bytes and the high bits of the first eight.
#[inline(always)]
pub(crate) fn six_bit_pairs(packed: &[u8]) -> ([u8; 8], [u8; 8]) {
    let scale = |g: usize| {
        if g < 4 { packed[g] & 63 } else { packed[g + 4] & 15 | packed[g - 4] >> 6 << 4 }
    };
    let min = |g: usize| {
        if g < 4 { packed[g + 4] & 63 } else { packed[g + 4] >> 4 | packed[g] >> 6 << 4 }
    };
    (std::array::from_fn(scale), std::array::from_fn(min))
}

#[inline(always)]
fn k4_scales(block: &[u8]) -> Scales {
    let (scale, min) = six_bit_pairs(&block[4..16]);
    Scales {
        d: read_f16(block),
        dmin: read_f16(&block[2..]),
        scale: std::array::from_fn(|g| i16::from(scale[g / 2])),
        min: std::array::from_fn(|g| i16::from(min[g / 2])),
    }
}

/// Nibbles: each 32 bytes hold 64 elements, the first 32 in the low ones.
#[inline(always)]
fn k4_nibbles(packed: &[u8]) -> [u8; LEN] {
    let mut codes = [0; LEN];
    for (part, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let bytes = &packed[part / 2 * 32..][..32];
        for (code, byte) in codes.iter_mut().zip(bytes) {
            *code = byte >> (part % 2 * 4) & 15;
        }
    }
    codes
}

impl Block256 for Q4K {
    const SIZE: usize = 144;
    const ZERO: u8 = 0;
    const GROUP: usize = 32;
    const HAS_MIN: bool = true;
    const ADDING: Adding = Adding::Quarters;

    #[inline(always)]
    fn codes(block: &[u8]) -> [u8; LEN] {
        k4_nibbles(&block[16..])
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> Scales {
        k4_scales(block)
    }
}

impl Block256 for Q5K {
    const SIZE: usize = 176;
    const ZERO: u8 = 0;
    const GROUP: usize = 32;
    const HAS_MIN: bool = true;

    #[inline(always)]
    fn codes(block: &[u8]) -> [u8; LEN] {
        let mut codes = k4_nibbles(&block[48..]);
        add_bit(&mut codes, &block[16..48], 4);
        codes
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> Scales {
        k4_scales(block)
    }
}

impl Block256 for Q6K {
    const SIZE: usize = 210;
    const ZERO: u8 = 32;
    const GROUP: usize = 16;
    const HAS_MIN: bool = false;
    const ADDING: Adding = Adding::Eights;

    #[inline(always)]
    fn codes(block: &[u8]) -> [u8; LEN] {
        let mut codes = [0; LEN];
        for (part, codes) in codes.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let (half, quarter) = (part / 4, part % 4);
            let low = &block[half * 64 + quarter % 2 * 32..][..32];
            let high = &block[128 + half * 32..][..32];
            for (code, (low, high)) in codes.iter_mut().zip(low.iter().zip(high)) {
                *code = low >> (quarter / 2 * 4) & 15 | (high >> (quarter * 2) & 3) << 4;
            }
        }
        codes
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> Scales {
        Scales {
            d: read_f16(&block[208..]),
            dmin: 0.0,
            scale: std::array::from_fn(|g| i16::from(block[192 + g] as i8)),
            min: [0; GROUPS],
        }
    }
}

impl Block256 for Iq4Xs {
    const SIZE: usize = 136;
    const ZERO: u8 = 128;
    const GROUP: usize = 32;
    const HAS_MIN: bool = false;

    #[inline(always)]
    fn codes(block: &[u8]) -> [u8; LEN] {
        std::array::from_fn(|i| {
            let nibble = block[8 + i / 32 * 16 + i % 16] >> (i % 32 / 16 * 4) & 15;
            IQ4_CODES[usize::from(nibble)]
        })
    }
    #[inline(always)]
    fn scales(block: &[u8]) -> Scales {
        let high = u16::from_le_bytes([block[2], block[3]]);
        let scale = |g: usize| {
            let low = block[4 + g / 2] >> (g % 2 * 4) & 15;
            i16::from(low | ((high >> (2 * g) & 3) as u8) << 4) - 32
        };
        Scales { d: read_f16(block), dmin: 0.0, scale: std::array::from_fn(|g| scale(g / 2)), min: [0; GROUPS] }
    }
}

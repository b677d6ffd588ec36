//! Element types, read one value at a time: written from the description of the formats, not from the kernels.

use crate::tensor::Random;
use loadmaster_graph::DType;

fn half(bytes: &[u8], at: usize) -> f64 {
    let bits = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        31 if fraction == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        e => (1024.0 + fraction) * 2f64.powi(e - 25),
    }
}

/// The half nearest to a value, by trying its neighbours.
pub fn to_half(value: f64) -> u16 {
    let truncated = {
        let m = value.abs();
        if m >= 65520.0 {
            return if value < 0.0 { 0xfc00 } else { 0x7c00 };
        }
        let e = (m.log2().floor().max(-14.0)) as i32;
        let units = m / 2f64.powi(e - 10);
        let (mut whole, rest) = (units.floor(), units - units.floor());
        if rest > 0.5 || (rest == 0.5 && whole % 2.0 == 1.0) {
            whole += 1.0;
        }
        // Counting halves upwards from zero: each step of the exponent adds 1024 of them.
        (whole as i64 + i64::from(e + 14) * 1024) as u16
    };
    truncated | if value.is_sign_negative() { 0x8000 } else { 0 }
}

const IQ4: [f64; 16] = [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];

fn nibble(bytes: &[u8], at: usize, high: bool) -> f64 {
    f64::from(if high { bytes[at] >> 4 } else { bytes[at] & 15 })
}

fn bit(bytes: &[u8], at: usize, i: usize) -> f64 {
    f64::from(bytes[at + i / 8] >> (i % 8) & 1)
}

/// 6-bit scale or minimum of Q4_K and Q5_K.
fn k_scale(scales: &[u8], g: usize, min: bool) -> f64 {
    let m = usize::from(min);
    let v = if g < 4 {
        scales[g + 4 * m] & 63
    } else {
        let low = if min { scales[g + 4] >> 4 } else { scales[g + 4] & 15 };
        low | (scales[g - 4 + 4 * m] >> 6) << 4
    };
    f64::from(v)
}

/// Value of element `i` of the block at the start of `b`.
pub fn value(dtype: DType, b: &[u8], i: usize) -> f64 {
    let hi = i >= 16;
    match dtype {
        DType::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        DType::F16 => half(b, 0),
        DType::Bf16 => f64::from(f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)),
        DType::I32 => f64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        DType::I64 => i64::from_le_bytes(b[..8].try_into().unwrap()) as f64,
        DType::Q4_0 => half(b, 0) * (nibble(b, 2 + i % 16, hi) - 8.0),
        DType::Q4_1 => half(b, 0) * nibble(b, 4 + i % 16, hi) + half(b, 2),
        DType::Q5_0 => half(b, 0) * (nibble(b, 6 + i % 16, hi) + 16.0 * bit(b, 2, i) - 16.0),
        DType::Q5_1 => half(b, 0) * (nibble(b, 8 + i % 16, hi) + 16.0 * bit(b, 4, i)) + half(b, 2),
        DType::Q8_0 => half(b, 0) * f64::from(b[2 + i] as i8),
        DType::Iq4Nl => half(b, 0) * IQ4[nibble(b, 2 + i % 16, hi) as usize],
        DType::Iq4Xs => {
            let g = i / 32;
            let low = nibble(b, 4 + g / 2, g % 2 == 1);
            let high = u16::from_le_bytes([b[2], b[3]]) >> (2 * g) & 3;
            let code = nibble(b, 8 + 16 * g + i % 16, i % 32 >= 16) as usize;
            half(b, 0) * (low + 16.0 * f64::from(high) - 32.0) * IQ4[code]
        }
        DType::Q2K => {
            let q = b[16 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3;
            let s = b[i / 16];
            half(b, 80) * f64::from(s & 15) * f64::from(q) - half(b, 82) * f64::from(s >> 4)
        }
        DType::Q3K => {
            let q = f64::from(b[32 + 32 * (i / 128) + i % 32] >> (2 * (i / 32 % 4)) & 3);
            let g = i / 16;
            let low = nibble(b, 96 + g % 8, g >= 8);
            let high = f64::from(b[104 + g % 4] >> (2 * (g / 4)) & 3);
            let set = b[i % 32] >> (i / 32) & 1 == 1;
            half(b, 108) * (low + 16.0 * high - 32.0) * (q - if set { 0.0 } else { 4.0 })
        }
        DType::Q4K => {
            let q = nibble(b, 16 + 32 * (i / 64) + i % 32, i % 64 >= 32);
            half(b, 0) * k_scale(&b[4..16], i / 32, false) * q - half(b, 2) * k_scale(&b[4..16], i / 32, true)
        }
        DType::Q5K => {
            let low = nibble(b, 48 + 32 * (i / 64) + i % 32, i % 64 >= 32);
            let q = low + 16.0 * f64::from(b[16 + i % 32] >> (i / 32) & 1);
            half(b, 0) * k_scale(&b[4..16], i / 32, false) * q - half(b, 2) * k_scale(&b[4..16], i / 32, true)
        }
        DType::Q6K => {
            let (h, j) = (i / 128, i % 128);
            let low = nibble(b, 64 * h + j % 64, j >= 64);
            let high = f64::from(b[128 + 32 * h + j % 32] >> (2 * (j / 32)) & 3);
            half(b, 208) * f64::from(b[192 + i / 16] as i8) * (low + 16.0 * high - 32.0)
        }
        _ => panic!("{dtype} has no reference"),
    }
}

/// Writes a float element, nearest even.
pub fn put(dtype: DType, b: &mut [u8], value: f64) {
    match dtype {
        DType::F32 => b[..4].copy_from_slice(&(value as f32).to_le_bytes()),
        DType::F16 => b[..2].copy_from_slice(&to_half(value).to_le_bytes()),
        DType::Bf16 => {
            let bits = (value as f32).to_bits();
            let rounded = bits + 0x7fff + (bits >> 16 & 1);
            b[..2].copy_from_slice(&((rounded >> 16) as u16).to_le_bytes());
        }
        _ => panic!("{dtype} is no float type"),
    }
}

/// Offsets of the half-precision scales in a block, and how large they may be for values around one.
fn scales(dtype: DType) -> (&'static [usize], f64) {
    match dtype {
        DType::Q4_0 | DType::Q5_0 | DType::Iq4Nl => (&[0], 0.1),
        DType::Q4_1 | DType::Q5_1 => (&[0, 2], 0.1),
        DType::Q8_0 => (&[0], 0.01),
        DType::Iq4Xs => (&[0], 0.001),
        DType::Q2K => (&[80, 82], 0.05),
        DType::Q3K => (&[108], 0.01),
        DType::Q4K | DType::Q5K => (&[0, 2], 0.003),
        DType::Q6K => (&[208], 0.001),
        _ => (&[], 0.0),
    }
}

/// Random contents: floats about normal, blocks with every code.
pub fn fill(dtype: DType, bytes: &mut [u8], rng: &mut Random) {
    let size = dtype.block_size().get() as usize;
    let (halves, scale) = scales(dtype);
    for block in bytes.chunks_exact_mut(size) {
        if dtype.block_len() == 1 {
            put(dtype, block, rng.normal());
            continue;
        }
        block.fill_with(|| rng.next() as u8);
        for &at in halves {
            block[at..at + 2].copy_from_slice(&to_half(scale * rng.normal()).to_le_bytes());
        }
    }
}

#[test]
fn halves_round_trip_through_the_reference() {
    for bits in (0..0x7c00u16).chain(0x8001..0xfc00) {
        assert_eq!(to_half(half(&bits.to_le_bytes(), 0)), bits);
    }
}

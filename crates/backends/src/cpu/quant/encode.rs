//! Plain quantizers of the 256-weight formats: scales from each group's range, nearest codes.

use super::block256::{Block256, GROUPS, Iq4Xs, LEN, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::f32_to_f16;
use super::quantize::{inverse, nearest_iq4};

/// How a format's block is filled.
pub(super) trait Encode: Block256 {
    /// Largest integer scale (and minimum).
    const TOP_SCALE: f32;
    /// Largest code.
    const TOP_CODE: f32;
    /// Writes a code into a zeroed block.
    fn put_code(block: &mut [u8], i: usize, code: u8);
    /// Writes the scale and minimum of a group of [`Block256::GROUP`] weights.
    fn put_scale(block: &mut [u8], group: usize, scale: i16, min: i16);
    /// Writes the factors.
    fn put_factors(block: &mut [u8], d: f32, dmin: f32);
}

fn put_f16(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&f32_to_f16(value).to_le_bytes());
}

fn for_blocks<E: Encode>(values: &[f32], out: &mut [u8], encode: impl Fn(&[f32; LEN], &mut [u8])) {
    for (x, block) in values.as_chunks::<LEN>().0.iter().zip(out.chunks_exact_mut(E::SIZE)) {
        block.fill(0);
        encode(x, block);
    }
}

fn put_scales<E: Encode>(block: &mut [u8], scales: &[f32], mins: &[f32]) {
    let largest = |v: &[f32]| v.iter().fold(0.0f32, |m, s| m.max(s.abs()));
    let (d, dmin) = (largest(scales) / E::TOP_SCALE, largest(mins) / E::TOP_SCALE);
    E::put_factors(block, d, dmin);
    for (g, (s, m)) in scales.iter().zip(mins).enumerate() {
        E::put_scale(block, g, (s * inverse(d)).round() as i16, (m * inverse(dmin)).round() as i16);
    }
}

/// Codes nearest to the values under the scales already in the block.
fn put_codes<E: Encode>(x: &[f32; LEN], block: &mut [u8]) {
    let s = E::scales(block);
    for (i, &v) in x.iter().enumerate() {
        let scale = s.d * f32::from(s.scale[i / 16]);
        let shifted = if E::HAS_MIN { v + s.dmin * f32::from(s.min[i / 16]) } else { v };
        let code = (shifted * inverse(scale) + f32::from(E::ZERO)).round().clamp(0.0, E::TOP_CODE);
        E::put_code(block, i, code as u8);
    }
}

/// Formats with minima: the range of each group, from at most zero.
pub(super) fn encode_min_k<E: Encode>(values: &[f32], out: &mut [u8]) {
    for_blocks::<E>(values, out, |x, block| {
        let (mut scales, mut mins) = (Vec::with_capacity(GROUPS), Vec::with_capacity(GROUPS));
        for group in x.chunks_exact(E::GROUP) {
            let low = group.iter().copied().fold(0.0, f32::min);
            let high = group.iter().copied().fold(0.0, f32::max);
            scales.push((high - low) / E::TOP_CODE);
            mins.push(-low);
        }
        put_scales::<E>(block, &scales, &mins);
        put_codes::<E>(x, block);
    });
}

/// Formats without minima: the largest magnitude of each group.
pub(super) fn encode_symmetric_k<E: Encode>(values: &[f32], out: &mut [u8]) {
    for_blocks::<E>(values, out, |x, block| {
        let amax = |g: &[f32]| g.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let scales: Vec<f32> = x.chunks_exact(E::GROUP).map(|g| amax(g) / f32::from(E::ZERO)).collect();
        put_scales::<E>(block, &scales, &vec![0.0; scales.len()]);
        put_codes::<E>(x, block);
    });
}

/// The format with a table of values.
pub(super) fn encode_codebook_k<E: Encode>(values: &[f32], out: &mut [u8]) {
    for_blocks::<E>(values, out, |x, block| {
        let amax = |g: &[f32]| g.iter().fold(0.0f32, |m, v| m.max(v.abs()));
        let scales: Vec<f32> = x.chunks_exact(E::GROUP).map(|g| amax(g) / 127.0).collect();
        put_scales::<E>(block, &scales, &vec![0.0; scales.len()]);
        let s = E::scales(block);
        for (i, &v) in x.iter().enumerate() {
            E::put_code(block, i, nearest_iq4(v * inverse(s.d * f32::from(s.scale[i / 16]))));
        }
    });
}

fn put_two_bits(packed: &mut [u8], i: usize, code: u8) {
    packed[i / 128 * 32 + i % 32] |= (code & 3) << (i % 128 / 32 * 2);
}

fn put_k4_nibble(packed: &mut [u8], i: usize, code: u8) {
    packed[i / 64 * 32 + i % 32] |= (code & 15) << (i % 64 / 32 * 4);
}

/// The inverse of [`super::block256::six_bit_pairs`] for one group.
fn put_six_bit_pair(packed: &mut [u8], g: usize, scale: u8, min: u8) {
    if g < 4 {
        packed[g] |= scale & 63;
        packed[g + 4] |= min & 63;
    } else {
        packed[g + 4] |= scale & 15 | min << 4;
        packed[g - 4] |= scale >> 4 << 6;
        packed[g] |= min >> 4 << 6;
    }
}

impl Encode for Q2K {
    const TOP_SCALE: f32 = 15.0;
    const TOP_CODE: f32 = 3.0;
    fn put_code(block: &mut [u8], i: usize, code: u8) {
        put_two_bits(&mut block[16..], i, code);
    }
    fn put_scale(block: &mut [u8], group: usize, scale: i16, min: i16) {
        block[group] = scale as u8 | (min as u8) << 4;
    }
    fn put_factors(block: &mut [u8], d: f32, dmin: f32) {
        put_f16(block, 80, d);
        put_f16(block, 82, dmin);
    }
}

impl Encode for Q3K {
    const TOP_SCALE: f32 = 31.0;
    const TOP_CODE: f32 = 7.0;
    fn put_code(block: &mut [u8], i: usize, code: u8) {
        put_two_bits(&mut block[32..], i, code);
        block[i % 32] |= (code >> 2 & 1) << (i / 32);
    }
    fn put_scale(block: &mut [u8], group: usize, scale: i16, _min: i16) {
        let code = (scale + 32) as u8;
        block[96 + group % 8] |= (code & 15) << (group / 8 * 4);
        block[104 + group % 4] |= (code >> 4) << (group / 4 * 2);
    }
    fn put_factors(block: &mut [u8], d: f32, _dmin: f32) {
        put_f16(block, 108, d);
    }
}

impl Encode for Q4K {
    const TOP_SCALE: f32 = 63.0;
    const TOP_CODE: f32 = 15.0;
    fn put_code(block: &mut [u8], i: usize, code: u8) {
        put_k4_nibble(&mut block[16..], i, code);
    }
    fn put_scale(block: &mut [u8], group: usize, scale: i16, min: i16) {
        put_six_bit_pair(&mut block[4..16], group, scale as u8, min as u8);
    }
    fn put_factors(block: &mut [u8], d: f32, dmin: f32) {
        put_f16(block, 0, d);
        put_f16(block, 2, dmin);
    }
}

impl Encode for Q5K {
    const TOP_SCALE: f32 = 63.0;
    const TOP_CODE: f32 = 31.0;
    fn put_code(block: &mut [u8], i: usize, code: u8) {
        put_k4_nibble(&mut block[48..], i, code);
        block[16 + i % 32] |= (code >> 4 & 1) << (i / 32);
    }
    fn put_scale(block: &mut [u8], group: usize, scale: i16, min: i16) {
        put_six_bit_pair(&mut block[4..16], group, scale as u8, min as u8);
    }
    fn put_factors(block: &mut [u8], d: f32, dmin: f32) {
        put_f16(block, 0, d);
        put_f16(block, 2, dmin);
    }
}

impl Encode for Q6K {
    const TOP_SCALE: f32 = 127.0;
    const TOP_CODE: f32 = 63.0;
    fn put_code(block: &mut [u8], i: usize, code: u8) {
        let (half, j) = (i / 128, i % 128);
        block[half * 64 + j % 64] |= (code & 15) << (j / 64 * 4);
        block[128 + half * 32 + j % 32] |= (code >> 4) << (j / 32 * 2);
    }
    fn put_scale(block: &mut [u8], group: usize, scale: i16, _min: i16) {
        block[192 + group] = scale as u8;
    }
    fn put_factors(block: &mut [u8], d: f32, _dmin: f32) {
        put_f16(block, 208, d);
    }
}

impl Encode for Iq4Xs {
    const TOP_SCALE: f32 = 31.0;
    const TOP_CODE: f32 = 15.0;
    fn put_code(block: &mut [u8], i: usize, code: u8) {
        block[8 + i / 32 * 16 + i % 16] |= (code & 15) << (i % 32 / 16 * 4);
    }
    fn put_scale(block: &mut [u8], group: usize, scale: i16, _min: i16) {
        let code = (scale + 32) as u8;
        block[4 + group / 2] |= (code & 15) << (group % 2 * 4);
        let high = u16::from_le_bytes([block[2], block[3]]) | u16::from(code >> 4) << (2 * group);
        block[2..4].copy_from_slice(&high.to_le_bytes());
    }
    fn put_factors(block: &mut [u8], d: f32, _dmin: f32) {
        put_f16(block, 0, d);
    }
}

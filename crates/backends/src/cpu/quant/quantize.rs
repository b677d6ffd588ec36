//! From floats to blocks.
//!
//! Q8_0 is what a KV cache is written in at run time and rounds as the x86 reference does. The other formats are for
//! tests and conversions: plain nearest-code quantizers, without the reference's search for better scales.

use super::block32::{IQ4_VALUES, LEN};
use super::block256::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::encode::{encode_codebook_k, encode_min_k, encode_symmetric_k};
use super::{f16_to_f32, f32_to_bf16, f32_to_f16};
use loadmaster_graph::DType;

/// Whether [`quantize_row`] writes this type.
#[must_use]
pub fn can_quantize(dtype: DType) -> bool {
    row_writer(dtype).is_some()
}

/// Writes a row of floats in a type. `false`, and nothing written, if the type is not supported, the elements are no
/// whole number of blocks, or `out` is shorter than the row. O(elements).
pub fn quantize_row(dtype: DType, values: &[f32], out: &mut [u8]) -> bool {
    let Some(write) = row_writer(dtype) else { return false };
    let fits = dtype.row_size(values.len() as u64).is_some_and(|size| size.get() <= out.len() as u64);
    if fits {
        write(values, out);
    }
    fits
}

/// Writes a row in a type: `out` has room for it.
pub(crate) type RowWriter = fn(values: &[f32], out: &mut [u8]);

/// The writer of a type.
pub(crate) fn row_writer(dtype: DType) -> Option<RowWriter> {
    Some(match dtype {
        DType::F32 => |values, out| plain(values, out, f32::to_le_bytes),
        DType::F16 => |values, out| plain(values, out, |v| f32_to_f16(v).to_le_bytes()),
        DType::Bf16 => |values, out| plain(values, out, |v| f32_to_bf16(v).to_le_bytes()),
        DType::Q4_0 => |values, out| blocks32(values, out, 18, |x, b| symmetric32(x, b, 8.0)),
        DType::Q4_1 => |values, out| blocks32(values, out, 20, |x, b| ranged32(x, b, 15.0)),
        DType::Q5_0 => |values, out| blocks32(values, out, 22, |x, b| symmetric32(x, b, 16.0)),
        DType::Q5_1 => |values, out| blocks32(values, out, 24, |x, b| ranged32(x, b, 31.0)),
        DType::Q8_0 => |values, out| blocks32(values, out, 34, q8_0_bytes),
        DType::Iq4Nl => |values, out| blocks32(values, out, 18, codebook32),
        DType::Q2K => encode_min_k::<Q2K>,
        DType::Q3K => encode_symmetric_k::<Q3K>,
        DType::Q4K => encode_min_k::<Q4K>,
        DType::Q5K => encode_min_k::<Q5K>,
        DType::Q6K => encode_symmetric_k::<Q6K>,
        DType::Iq4Xs => encode_codebook_k::<Iq4Xs>,
        _ => return None,
    })
}

fn plain<const N: usize>(values: &[f32], out: &mut [u8], write: impl Fn(f32) -> [u8; N]) {
    for (element, &value) in out.as_chunks_mut::<N>().0.iter_mut().zip(values) {
        *element = write(value);
    }
}

fn blocks32(values: &[f32], out: &mut [u8], size: usize, write: impl Fn(&[f32; LEN], &mut [u8])) {
    for (x, block) in values.as_chunks::<LEN>().0.iter().zip(out.chunks_exact_mut(size)) {
        write(x, block);
    }
}

/// 32 values rounded to 8 bits.
#[derive(Clone, Copy)]
pub(crate) struct Q8Block {
    /// The scale, before it is rounded to half.
    pub(crate) d: f32,
    /// The codes, within ±127.
    pub(crate) codes: [i8; LEN],
}

/// Rounds 32 values as the x86 reference does: scale `amax / 127`, codes `x · (127 / amax)` to nearest even.
#[inline(always)]
pub(crate) fn q8_0_block(x: &[f32; LEN]) -> Q8Block {
    let amax = absolute_maximum(x);
    let factor = if amax == 0.0 { 0.0 } else { 127.0 / amax };
    Q8Block { d: amax / 127.0, codes: x.map(|v| round_to_even(v * factor) as i8) }
}

/// The largest magnitude; NaN does not count.
#[inline(always)]
pub(crate) fn absolute_maximum<const N: usize>(x: &[f32; N]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [0.0f32; 8];
    for part in x.as_chunks::<8>().0 {
        for (lane, v) in lanes.iter_mut().zip(part) {
            *lane = larger(*lane, v.abs());
        }
    }
    lanes.into_iter().fold(0.0, larger)
}

/// Nearest integer, ties to even, for magnitudes below 2²².
#[inline(always)]
pub(crate) fn round_to_even(v: f32) -> i32 {
    const MAGIC: f32 = 12_582_912.0;
    (v + MAGIC).to_bits().wrapping_sub(MAGIC.to_bits()) as i32
}

fn q8_0_bytes(x: &[f32; LEN], block: &mut [u8]) {
    let q = q8_0_block(x);
    block[..2].copy_from_slice(&f32_to_f16(q.d).to_le_bytes());
    for (byte, code) in block[2..].iter_mut().zip(q.codes) {
        *byte = code as u8;
    }
}

/// The value of largest magnitude, with its sign.
fn extreme(x: &[f32]) -> f32 {
    x.iter().fold(0.0f32, |m, &v| if v.abs() > m.abs() { v } else { m })
}

pub(super) fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Scale such that the extreme value gets code 0: `zero` codes below zero, `zero` − 1 above.
fn symmetric32(x: &[f32; LEN], block: &mut [u8], zero: f32) {
    let d = extreme(x) / -zero;
    let factor = inverse(d);
    let top = 2.0 * zero - 1.0;
    block[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
    put_codes(&mut block[2..], x.map(|v| (v * factor + zero).round().clamp(0.0, top) as u8), zero > 8.0);
}

/// Scale and minimum from the range of the values.
fn ranged32(x: &[f32; LEN], block: &mut [u8], top: f32) {
    let low = x.iter().copied().fold(f32::INFINITY, f32::min);
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let d = (high - low) / top;
    let factor = inverse(d);
    block[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
    block[2..4].copy_from_slice(&f32_to_f16(low).to_le_bytes());
    put_codes(&mut block[4..], x.map(|v| ((v - low) * factor).round().clamp(0.0, top) as u8), top > 15.0);
}

fn put_codes(out: &mut [u8], codes: [u8; LEN], five_bits: bool) {
    let nibbles = if five_bits {
        let high = codes.iter().enumerate().fold(0u32, |h, (i, c)| h | u32::from(c >> 4 & 1) << i);
        out[..4].copy_from_slice(&high.to_le_bytes());
        &mut out[4..]
    } else {
        out
    };
    for (i, byte) in nibbles.iter_mut().enumerate() {
        *byte = codes[i] & 15 | codes[i + 16] << 4;
    }
}

/// Index of the nearest table value.
pub(super) fn nearest_iq4(v: f32) -> u8 {
    let distance = |i: &u8| (v - f32::from(IQ4_VALUES[usize::from(*i)])).abs();
    (0..16).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap_or(0)
}

fn codebook32(x: &[f32; LEN], block: &mut [u8]) {
    let d = f16_to_f32(f32_to_f16(extreme(x) / -127.0));
    let factor = inverse(d);
    block[..2].copy_from_slice(&f32_to_f16(d).to_le_bytes());
    put_codes(&mut block[2..], x.map(|v| nearest_iq4(v * factor)), false);
}

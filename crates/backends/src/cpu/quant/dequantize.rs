//! From blocks to floats.

use super::block32::{self, Block32, Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use super::block256::{self, Block256, Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use super::{bf16_to_f32, f16_to_f32};
use loadmaster_graph::DType;

/// Whether [`dequantize_row`] reads this type.
#[must_use]
pub fn can_dequantize(dtype: DType) -> bool {
    row_reader(dtype).is_some()
}

/// Writes the elements of a row as floats. `false`, and nothing written, if the type is not supported or `bytes` is
/// shorter than the row of `out.len()` elements. O(elements).
pub fn dequantize_row(dtype: DType, bytes: &[u8], out: &mut [f32]) -> bool {
    let Some(read) = row_reader(dtype) else { return false };
    let fits = dtype.row_size(out.len() as u64).is_some_and(|size| size.get() <= bytes.len() as u64);
    if fits {
        read(bytes, out);
    }
    fits
}

/// Reads a row of a type: `bytes` holds at least the row that `out` has room for.
pub(crate) type RowReader = fn(bytes: &[u8], out: &mut [f32]);

/// The reader of a type.
pub(crate) fn row_reader(dtype: DType) -> Option<RowReader> {
    Some(match dtype {
        DType::F32 => |bytes, out| plain(bytes, out, f32::from_le_bytes),
        DType::F16 => |bytes, out| plain(bytes, out, |b| f16_to_f32(u16::from_le_bytes(b))),
        DType::Bf16 => |bytes, out| plain(bytes, out, |b| bf16_to_f32(u16::from_le_bytes(b))),
        DType::Q4_0 => blocks32::<Q4_0>,
        DType::Q4_1 => blocks32::<Q4_1>,
        DType::Q5_0 => blocks32::<Q5_0>,
        DType::Q5_1 => blocks32::<Q5_1>,
        DType::Q8_0 => blocks32::<Q8_0>,
        DType::Iq4Nl => blocks32::<Iq4Nl>,
        DType::Q2K => blocks256::<Q2K>,
        DType::Q3K => blocks256::<Q3K>,
        DType::Q4K => blocks256::<Q4K>,
        DType::Q5K => blocks256::<Q5K>,
        DType::Q6K => blocks256::<Q6K>,
        DType::Iq4Xs => blocks256::<Iq4Xs>,
        _ => return None,
    })
}

fn plain<const N: usize>(bytes: &[u8], out: &mut [f32], read: impl Fn([u8; N]) -> f32) {
    for (value, element) in out.iter_mut().zip(bytes.as_chunks::<N>().0) {
        *value = read(*element);
    }
}

fn blocks32<B: Block32>(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.chunks_exact(B::SIZE).zip(out.chunks_exact_mut(block32::LEN)) {
        let (d, m) = (B::scale(block), B::minimum(block));
        for (value, code) in values.iter_mut().zip(B::codes(block)) {
            let scaled = d * f32::from(i16::from(code) - i16::from(B::ZERO));
            *value = if B::HAS_MIN { scaled + m } else { scaled };
        }
    }
}

fn blocks256<B: Block256>(bytes: &[u8], out: &mut [f32]) {
    for (block, values) in bytes.chunks_exact(B::SIZE).zip(out.chunks_exact_mut(block256::LEN)) {
        let s = B::scales(block);
        for (i, (value, code)) in values.iter_mut().zip(B::codes(block)).enumerate() {
            let scaled = s.d * f32::from(s.scale[i / 16]) * f32::from(i16::from(code) - i16::from(B::ZERO));
            *value = if B::HAS_MIN { scaled - s.dmin * f32::from(s.min[i / 16]) } else { scaled };
        }
    }
}

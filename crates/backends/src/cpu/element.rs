//! Single elements and rows of plain types.

use super::isa::multiversion;
use super::quant::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use loadmaster_graph::DType;

/// A plain type that arithmetic reads and writes through `f32`.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// Its value.
    fn to_f32(self) -> f32;
    /// The nearest element.
    fn from_f32(value: f32) -> Self;
}

impl Element for f32 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        value
    }
}

/// Bits of an IEEE half.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct F16(pub(crate) u16);

impl Element for F16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16_to_f32(self.0)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self(f32_to_f16(value))
    }
}

/// Bits of a bfloat16.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Bf16(pub(crate) u16);

impl Element for Bf16 {
    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16_to_f32(self.0)
    }
    #[inline(always)]
    fn from_f32(value: f32) -> Self {
        Self(f32_to_bf16(value))
    }
}

/// Calls a generic function with the Rust type of a plain float type; `$none` for other types.
macro_rules! with_element {
    ($dtype:expr, $name:ident => $then:expr, else $none:expr) => {
        match $dtype {
            loadmaster_graph::DType::F32 => {
                type $name = f32;
                $then
            }
            loadmaster_graph::DType::F16 => {
                type $name = $crate::cpu::element::F16;
                $then
            }
            loadmaster_graph::DType::Bf16 => {
                type $name = $crate::cpu::element::Bf16;
                $then
            }
            _ => $none,
        }
    };
}
pub(crate) use with_element;

/// F32, F16 or BF16.
pub(crate) fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

multiversion! {
    /// Rounds floats to halves (nearest even).
    ///
    /// # Safety
    /// `src` must be valid for `n` reads and `dst` for `n` writes, without overlap.
    pub(crate) unsafe fn f32_to_f16_row(src: *const f32, dst: *mut u16, n: usize) = f16_row_body;
}

#[inline(always)]
unsafe fn f16_row_body(src: *const f32, dst: *mut u16, n: usize) {
    for i in 0..n {
        // SAFETY: i < n.
        unsafe { dst.add(i).write_unaligned(round_half(src.add(i).read_unaligned())) };
    }
}

/// [`f32_to_f16`] without branches, so that loops over it become vector code.
#[inline(always)]
pub(crate) fn round_half(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    // Normal results: rebias the exponent and round the 13 dropped bits to even; carries run into the exponent.
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    // Subnormal results: adding 0.5 lets the addition itself round at the right place.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let special = if magnitude > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    let half = if magnitude >= 143 << 23 { special } else { finite };
    sign | half as u16
}

/// Reads one element of any plain type as a float.
///
/// # Safety
/// `at` must be valid for reading an element of `dtype`.
#[inline]
pub(crate) unsafe fn load(dtype: DType, at: *const u8) -> Option<f32> {
    // SAFETY: the caller vouches for the element.
    Some(unsafe {
        match dtype {
            DType::F32 => at.cast::<f32>().read_unaligned(),
            DType::F16 => f16_to_f32(at.cast::<u16>().read_unaligned()),
            DType::Bf16 => bf16_to_f32(at.cast::<u16>().read_unaligned()),
            _ => return None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_as_the_scalar_conversion_does() {
        let check = |value: f32| {
            let (found, expected) = (round_half(value), f32_to_f16(value));
            assert!(found == expected || value.is_nan(), "{value:e}: {found:#x} {expected:#x}");
        };
        for i in 0..=u32::from(u16::MAX) {
            // Every half, and points around the middle to the next.
            for low in [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff] {
                check(f32::from_bits(f16_to_f32(i as u16).to_bits() + low));
            }
            check(f32::from_bits(i.wrapping_mul(0x9e37_79b9)));
        }
        assert!(f16_to_f32(round_half(f32::NAN)).is_nan());
    }
}

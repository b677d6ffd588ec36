//! 16-bit floats, rounded to nearest even as the hardware does.

/// IEEE half to single, exact.
#[inline(always)]
pub(crate) fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let rest = u32::from(bits & 0x7fff);
    // Moving exponent and fraction into place leaves the value 2¹¹² times too small, subnormals included.
    let scaled = f32::from_bits(rest << 13) * f32::from_bits(0x7780_0000);
    let special = if rest >= 0x7c00 { 0x7f80_0000 } else { 0 };
    f32::from_bits(sign | scaled.to_bits() | special)
}

/// Single to IEEE half, nearest even; overflow gives infinity.
#[inline]
pub(crate) fn f32_to_f16(value: f32) -> u16 {
    ::half::f16::from_f32_const(value).to_bits()
}

/// bfloat16 to single, exact.
#[inline(always)]
pub(crate) fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Single to bfloat16, nearest even; a NaN stays one (quiet).
#[inline(always)]
pub(crate) fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let nan = bits & 0x7fff_ffff > 0x7f80_0000;
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if nan { (bits >> 16) as u16 | 64 } else { rounded as u16 }
}

/// The half at the start of `bytes`.
#[inline(always)]
pub(crate) fn read_f16(bytes: &[u8]) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_converts_as_the_reference_crate_does() {
        for bits in 0..=u16::MAX {
            let expected = ::half::f16::from_bits(bits).to_f32_const();
            let found = f16_to_f32(bits);
            assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()), "{bits:#x}");
            let wide = ::half::bf16::from_bits(bits);
            assert!(bf16_to_f32(bits).to_bits() == wide.to_f32_const().to_bits() || bf16_to_f32(bits).is_nan());
        }
    }

    #[test]
    fn singles_round_to_the_nearest_even_bfloat() {
        for i in 0..200_000u32 {
            let value = f32::from_bits(i.wrapping_mul(0x9e37_79b9));
            let expected = ::half::bf16::from_f32_const(value);
            let found = f32_to_bf16(value);
            assert!(found == expected.to_bits() || (value.is_nan() && bf16_to_f32(found).is_nan()), "{value}");
        }
    }
}

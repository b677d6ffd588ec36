//! Horizontal sums and transpositions shared by the kernels.

use std::arch::x86_64::*;

/// Sums within each 128-bit lane of four vectors: lane L of the result is `[Σa, Σb, Σc, Σd]` over lane L.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn quad_sums(a: __m512i, b: __m512i, c: __m512i, d: __m512i) -> __m512i {
    let ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    let cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd))
}

/// For eight vectors whose halves are to be summed: `[low sums 0–3, high sums 0–3, low sums 4–7, high sums 4–7]`.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn half_sums(v: &[__m512i; 8]) -> __m512i {
    let first = quad_sums(v[0], v[1], v[2], v[3]);
    let second = quad_sums(v[4], v[5], v[6], v[7]);
    let even = _mm512_shuffle_i32x4::<0b10_00_10_00>(first, second);
    let odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(first, second);
    _mm512_add_epi32(even, odd)
}

/// The sums of eight vectors, in order.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn whole_sums(v: &[__m512i; 8]) -> __m256i {
    let halves = half_sums(v);
    let sums = _mm512_add_epi32(halves, _mm512_shuffle_i32x4::<0b11_11_01_01>(halves, halves));
    let packed = _mm512_shuffle_i32x4::<0b10_00_10_00>(sums, sums);
    _mm512_castsi512_si256(packed)
}

/// The sums of eight half vectors, in order.
#[target_feature(enable = "avx512f,avx2")]
#[inline]
pub(super) fn whole_sums_256(v: &[__m256i; 8]) -> __m256i {
    let first = quad_sums_256(v[0], v[1], v[2], v[3]);
    let second = quad_sums_256(v[4], v[5], v[6], v[7]);
    let low = _mm256_permute2x128_si256::<0x20>(first, second);
    let high = _mm256_permute2x128_si256::<0x31>(first, second);
    _mm256_add_epi32(low, high)
}

#[target_feature(enable = "avx512f,avx2")]
#[inline]
fn quad_sums_256(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> __m256i {
    let ab = _mm256_add_epi32(_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
    let cd = _mm256_add_epi32(_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
    _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd))
}

/// Transposes sixteen rows of sixteen 32-bit elements.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn transpose(v: &mut [__m512i; 16]) {
    let mut t = *v;
    for i in 0..4 {
        let [a, b, c, d] = [v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]];
        let (ab_low, ab_high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        t[4 * i] = _mm512_unpacklo_epi64(ab_low, cd_low);
        t[4 * i + 1] = _mm512_unpackhi_epi64(ab_low, cd_low);
        t[4 * i + 2] = _mm512_unpacklo_epi64(ab_high, cd_high);
        t[4 * i + 3] = _mm512_unpackhi_epi64(ab_high, cd_high);
    }
    // Now lane L of t[4 i + j] is column 4 L + j of rows 4 i to 4 i + 3.
    for j in 0..4 {
        let [a, b, c, d] = [t[j], t[4 + j], t[8 + j], t[12 + j]];
        let ab_even = _mm512_shuffle_i32x4::<0b10_00_10_00>(a, b);
        let ab_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(a, b);
        let cd_even = _mm512_shuffle_i32x4::<0b10_00_10_00>(c, d);
        let cd_odd = _mm512_shuffle_i32x4::<0b11_01_11_01>(c, d);
        v[j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_even, cd_even);
        v[4 + j] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab_odd, cd_odd);
        v[8 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_even, cd_even);
        v[12 + j] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab_odd, cd_odd);
    }
}

/// Mask of the first `n` of 16 lanes.
#[inline]
pub(super) fn first_lanes(n: usize) -> __mmask16 {
    if n >= 16 { !0 } else { (1 << n) - 1 }
}

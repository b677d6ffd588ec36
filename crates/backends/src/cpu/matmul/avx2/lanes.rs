//! Horizontal sums, transpositions and exact products shared by the kernels.

use std::arch::x86_64::*;

/// The sums of four vectors, in order.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn four_sums(v: &[__m256i; 4]) -> __m128i {
    let ab = _mm256_add_epi32(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    let cd = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    let quads = _mm256_add_epi32(_mm256_unpacklo_epi64(ab, cd), _mm256_unpackhi_epi64(ab, cd));
    _mm_add_epi32(_mm256_castsi256_si128(quads), _mm256_extracti128_si256::<1>(quads))
}

/// Transposes eight rows of eight 32-bit elements.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn transpose(v: &mut [__m256i; 8]) {
    let mut t = *v;
    for i in 0..2 {
        let [a, b, c, d] = [v[4 * i], v[4 * i + 1], v[4 * i + 2], v[4 * i + 3]];
        let (ab_low, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd_low, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        t[4 * i] = _mm256_unpacklo_epi64(ab_low, cd_low);
        t[4 * i + 1] = _mm256_unpackhi_epi64(ab_low, cd_low);
        t[4 * i + 2] = _mm256_unpacklo_epi64(ab_high, cd_high);
        t[4 * i + 3] = _mm256_unpackhi_epi64(ab_high, cd_high);
    }
    // Now lane L of t[4 i + j] is column 4 L + j of rows 4 i to 4 i + 3.
    for j in 0..4 {
        v[j] = _mm256_permute2x128_si256::<0x20>(t[j], t[4 + j]);
        v[4 + j] = _mm256_permute2x128_si256::<0x31>(t[j], t[4 + j]);
    }
}

/// Sums of adjacent products `(code − zero) · input` as 16-bit numbers, where `WIDE` codes have zero 128; the zero of
/// narrow codes (at most 63) is not taken away.
///
/// They fit: wide codes go in as magnitudes of at most 128 with the sign moved to the inputs (within ±127).
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn pair_products<const WIDE: bool>(codes: __m256i, inputs: __m256i) -> __m256i {
    if !WIDE {
        return _mm256_maddubs_epi16(codes, inputs);
    }
    let signed = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(inputs, signed))
}

/// [`pair_products`] of pairs, as 32-bit numbers.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn quad_products<const WIDE: bool>(codes: __m256i, inputs: __m256i) -> __m256i {
    _mm256_madd_epi16(pair_products::<WIDE>(codes, inputs), _mm256_set1_epi16(1))
}

/// Four halves that lie apart, as singles.
///
/// # Safety
/// A half must be readable `at` bytes after each pointer.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) unsafe fn four_halves(p: &[*const u8; 4], at: usize) -> __m128 {
    // SAFETY: as above.
    let half = |i: usize| i64::from(unsafe { p[i].add(at).cast::<u16>().read_unaligned() });
    _mm_cvtph_ps(_mm_cvtsi64_si128(half(0) | half(1) << 16 | half(2) << 32 | half(3) << 48))
}

/// Writes the first `count` lanes.
///
/// # Safety
/// They must be writable.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn store_first(to: *mut f32, values: __m256, count: usize) {
    let index = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
    let mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), index);
    // SAFETY: as above.
    unsafe { _mm256_maskstore_ps(to, mask, values) };
}

/// Each of four lanes in all lanes of a vector.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn broadcasts(v: __m128) -> [__m256; 4] {
    let twice = _mm256_set_m128(v, v);
    [
        _mm256_permute_ps::<0b00_00_00_00>(twice),
        _mm256_permute_ps::<0b01_01_01_01>(twice),
        _mm256_permute_ps::<0b10_10_10_10>(twice),
        _mm256_permute_ps::<0b11_11_11_11>(twice),
    ]
}

/// The sums of four vectors, in order: lane j with j + 4, then + 2, + 1.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn fold_rows(v: &[__m256; 4]) -> __m128 {
    let mut four = [_mm_setzero_ps(); 4];
    for (four, v) in four.iter_mut().zip(v) {
        *four = _mm_add_ps(_mm256_castps256_ps128(*v), _mm256_extractf128_ps::<1>(*v));
    }
    let [a, b, c, d] = four;
    // Transposed, so that the last two steps add whole vectors.
    let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
    let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
    _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab))
}

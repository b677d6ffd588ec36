//! One or two columns with blocks of 32, eight rows and two blocks at a time.

use super::lanes::half_sums;
use super::unpack32::{Unpack32, Window};
use crate::cpu::matmul::activation::Q8x32;
use crate::cpu::matmul::x86::ahead::Ahead;
use crate::cpu::matmul::{Column, Weights};
use std::arch::x86_64::*;
use std::ops::Range;

/// Where the words of a row's scales and minima go: rows 0–3 to the first lanes, their second block four lanes on,
/// rows 4–7 eight lanes on; minima in the upper half.
const fn scale_lanes(row: usize) -> u32 {
    let lane = row % 4 + row / 4 * 8;
    (1 << lane | 1 << (lane + 4)) * 0x1_0001
}

/// The lanes of the first block.
const FIRST_BLOCK: u32 = 0x0f0f_0f0f;

/// The word each of those lanes takes: scales of both blocks, then minima.
const fn scale_words(size: usize) -> [u16; 32] {
    let mut words = [0; 32];
    let mut i = 0;
    while i < 32 {
        let second = i / 4 % 2;
        words[i] = (second * size / 2 + i / 16) as u16;
        i += 1;
    }
    words
}

struct Format<B>(B);

impl<B: Unpack32> Format<B> {
    const WORDS: [u16; 32] = scale_words(B::SIZE);
}

/// # Safety
/// The contract of [`super::super::RowsFn`] for `C` columns; the machine has the instructions.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
pub(super) unsafe fn rows<B: Unpack32, const C: usize>(w: &Weights, rows: Range<usize>, columns: [&Column; C]) {
    // SAFETY: row pointers are clamped to existing rows; results are written for those of the range only.
    unsafe {
        let x: [Q8x32; C] = std::array::from_fn(|c| Q8x32::view(columns[c].record, w.k));
        for first in rows.clone().step_by(8) {
            let count = (rows.end - first).min(8);
            let at: [*const u8; 8] = std::array::from_fn(|r| w.data.add((first + r.min(count - 1)) * w.stride));
            let sums = eight_rows::<B, C>(&at, w.stride, w.k / 32, &x);
            for c in 0..C {
                let to = columns[c].dst.add(first);
                _mm256_mask_storeu_ps(to, ((1u16 << count) - 1) as u8, sums[c]);
            }
        }
    }
}

#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[inline]
unsafe fn eight_rows<B: Unpack32, const C: usize>(
    at: &[*const u8; 8],
    stride: usize,
    blocks: usize,
    x: &[Q8x32; C],
) -> [__m256; C] {
    let mut acc = [_mm512_setzero_ps(); C];
    let mut minima = [_mm512_setzero_ps(); C];
    let pairs = blocks.div_ceil(2);
    let mut ahead = Ahead::new(at[0], 8, stride, pairs);
    for pair in 0..pairs {
        ahead.step();
        // SAFETY: one or both blocks exist; the records are padded with zeros.
        unsafe { two_blocks::<B, C>(at, pair, blocks, x, &mut acc, &mut minima) };
    }
    let mut sums = [_mm256_setzero_ps(); C];
    for c in 0..C {
        let sum = if B::HAS_MIN { _mm512_add_ps(acc[c], minima[c]) } else { acc[c] };
        sums[c] = _mm512_castps512_ps256(_mm512_shuffle_f32x4::<0b10_00_10_00>(sum, sum));
    }
    sums
}

/// Adds blocks `2 · pair` and (if there is one) the next. Lanes 0–3 and 8–11 of the sums are the rows.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[inline]
unsafe fn two_blocks<B: Unpack32, const C: usize>(
    at: &[*const u8; 8],
    pair: usize,
    blocks: usize,
    x: &[Q8x32; C],
    acc: &mut [__m512; C],
    minima: &mut [__m512; C],
) {
    // SAFETY: the blocks exist in every row; record parts are padded to whole vectors.
    unsafe {
        let window = Window::of::<B>(pair, blocks);
        let two = pair * 2 + 1 < blocks;
        let words = _mm512_loadu_si512(Format::<B>::WORDS.as_ptr().cast());
        let words = _mm512_add_epi16(words, _mm512_set1_epi16((window.skip / 2) as i16));
        let wanted = if two { !0 } else { FIRST_BLOCK };
        let mut scales = _mm512_setzero_si512();
        let mut codes = [_mm512_setzero_si512(); 8];
        for r in 0..8 {
            let raw = window.load(at[r]);
            codes[r] = B::vector_codes(at[r].add(pair * 2 * B::SIZE), &window, raw, two);
            scales = _mm512_mask_permutexvar_epi16(scales, scale_lanes(r) & wanted, words, raw);
        }
        let d = _mm512_cvtph_ps(_mm512_castsi512_si256(scales));
        for c in 0..C {
            let input = _mm512_loadu_si512(x[c].codes.add(pair * 64).cast());
            let mut dots = [_mm512_setzero_si512(); 8];
            for r in 0..8 {
                dots[r] = _mm512_dpbusd_epi32(dots[r], codes[r], input);
            }
            let zero = i32::from(B::ZERO);
            let sums = _mm512_sub_epi32(
                half_sums(&dots),
                _mm512_mullo_epi32(both(x[c].sum.add(pair * 2)), _mm512_set1_epi32(zero)),
            );
            let factor = _mm512_mul_ps(d, _mm512_castsi512_ps(both(x[c].d.add(pair * 2).cast())));
            acc[c] = add_both(acc[c], _mm512_mul_ps(factor, _mm512_cvtepi32_ps(sums)));
            if B::HAS_MIN {
                let m = _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(scales));
                let s = _mm512_castsi512_ps(both(x[c].s.add(pair * 2).cast()));
                minima[c] = add_both(minima[c], _mm512_mul_ps(m, s));
            }
        }
    }
}

/// Two numbers, the first in lanes 0–3 and 8–11, the second in the others.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn both(p: *const i32) -> __m512i {
    let index = _mm512_set_epi32(1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0);
    // SAFETY: two numbers are readable.
    _mm512_permutexvar_epi32(index, _mm512_set1_epi64(unsafe { p.cast::<i64>().read_unaligned() }))
}

/// First the first block's numbers, then the second's.
#[target_feature(enable = "avx512f")]
#[inline]
fn add_both(acc: __m512, terms: __m512) -> __m512 {
    let second = _mm512_shuffle_f32x4::<0b11_11_01_01>(terms, terms);
    _mm512_add_ps(_mm512_add_ps(acc, terms), second)
}

//! Products with blocks of 32: eight rows in pairs by up to four columns.
//!
//! A vector holds the eight partial sums of one row, then those of the next.

use super::unpack32::Unpack32;
use crate::cpu::matmul::activation::Q8x32;
use crate::cpu::matmul::x86::ahead::Ahead;
use crate::cpu::matmul::{Column, Weights};
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows at a time.
const ROWS: usize = 8;

/// Columns of a tile.
const TILE: usize = 4;

/// # Safety
/// The contract of [`super::super::RowsFn`]; the machine has the instructions.
pub(super) unsafe fn rows<B: Unpack32>(w: &Weights, rows: Range<usize>, columns: &[Column], _panel: *mut u8) {
    for first in rows.clone().step_by(ROWS) {
        let count = (rows.end - first).min(ROWS);
        for tile in columns.chunks(TILE) {
            // SAFETY: the same contract.
            unsafe {
                match tile {
                    [a] => multiply::<B, 1>(w, first, count, [a]),
                    [a, b] => multiply::<B, 2>(w, first, count, [a, b]),
                    [a, b, c] => multiply::<B, 3>(w, first, count, [a, b, c]),
                    [a, b, c, d] => multiply::<B, 4>(w, first, count, [a, b, c, d]),
                    _ => {}
                }
            }
        }
    }
}

/// Sums of eight rows with a column.
#[derive(Clone, Copy)]
struct Sums {
    pairs: [__m512; ROWS / 2],
    minima: __m256,
}

/// Rows `first` to `first + count - 1` (at most eight) by `C` columns; rows beyond `count` repeat the last one.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
unsafe fn multiply<B: Unpack32, const C: usize>(w: &Weights, first: usize, count: usize, columns: [&Column; C]) {
    // SAFETY: the rows have that many blocks, as have the records; results exist for `count` rows.
    unsafe {
        let x: [Q8x32; C] = std::array::from_fn(|c| Q8x32::view(columns[c].record, w.k));
        let mut at: [*const u8; ROWS] = std::array::from_fn(|r| w.data.add((first + r.min(count - 1)) * w.stride));
        let mut sums = [Sums { pairs: [_mm512_setzero_ps(); ROWS / 2], minima: _mm256_setzero_ps() }; C];
        let blocks = w.k / 32;
        let mut ahead = Ahead::new(at[0], ROWS, w.stride, blocks);
        for b in 0..blocks {
            ahead.step();
            add_block::<B, C>(&at, &x, b, &mut sums);
            for p in &mut at {
                *p = p.add(B::SIZE);
            }
        }
        for c in 0..C {
            let mut rows = [_mm256_setzero_ps(); ROWS];
            for (pair, v) in sums[c].pairs.iter().enumerate() {
                rows[2 * pair] = _mm512_castps512_ps256(*v);
                rows[2 * pair + 1] = _mm512_extractf32x8_ps::<1>(*v);
            }
            let totals = fold_rows(&rows);
            let totals = if B::HAS_MIN { _mm256_add_ps(totals, sums[c].minima) } else { totals };
            _mm256_mask_storeu_ps(columns[c].dst.add(first), ((1u16 << count) - 1) as u8, totals);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
#[inline]
unsafe fn add_block<B: Unpack32, const C: usize>(
    at: &[*const u8; ROWS],
    x: &[Q8x32; C],
    b: usize,
    sums: &mut [Sums; C],
) {
    // SAFETY: the block exists in every row and record.
    unsafe {
        let (scales, minima) = factors::<B>(at);
        let mut inputs = [_mm512_setzero_si512(); C];
        let mut starts = [_mm512_setzero_si512(); C];
        let mut scaled = [_mm512_setzero_ps(); C];
        for c in 0..C {
            inputs[c] = _mm512_broadcast_i64x4(_mm256_loadu_si256(x[c].codes.add(b * 32).cast()));
            if B::ZERO != 0 {
                let zeros = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(B::ZERO as i8), inputs[c]);
                starts[c] = _mm512_sub_epi32(_mm512_setzero_si512(), zeros);
            }
            scaled[c] = _mm512_castps256_ps512(_mm256_mul_ps(scales, _mm256_set1_ps(*x[c].d.add(b))));
            if B::HAS_MIN {
                sums[c].minima = _mm256_fmadd_ps(minima, _mm256_set1_ps(*x[c].s.add(b)), sums[c].minima);
            }
        }
        for pair in 0..ROWS / 2 {
            let codes = B::pair_codes(at[2 * pair], at[2 * pair + 1]);
            let spread = _mm512_add_epi32(
                _mm512_set_epi32(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0),
                _mm512_set1_epi32(2 * pair as i32),
            );
            for c in 0..C {
                let dots = _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(starts[c], codes, inputs[c]));
                let factor = _mm512_permutexvar_ps(spread, scaled[c]);
                sums[c].pairs[pair] = _mm512_fmadd_ps(factor, dots, sums[c].pairs[pair]);
            }
        }
    }
}

/// Scales and minima of eight blocks.
#[target_feature(enable = "avx2,f16c")]
#[inline]
unsafe fn factors<B: Unpack32>(at: &[*const u8; ROWS]) -> (__m256, __m256) {
    // SAFETY: the blocks begin with these halves.
    unsafe {
        if !B::HAS_MIN {
            let half = |r: usize| at[r].cast::<i16>().read_unaligned();
            let all = _mm_set_epi16(half(7), half(6), half(5), half(4), half(3), half(2), half(1), half(0));
            return (_mm256_cvtph_ps(all), _mm256_setzero_ps());
        }
        let both = |r: usize| at[r].cast::<i32>().read_unaligned();
        let four = |r: usize| _mm_set_epi32(both(r + 3), both(r + 2), both(r + 1), both(r));
        let apart = _mm_set_epi8(15, 14, 11, 10, 7, 6, 3, 2, 13, 12, 9, 8, 5, 4, 1, 0);
        let (low, high) = (_mm_shuffle_epi8(four(0), apart), _mm_shuffle_epi8(four(4), apart));
        let scales = _mm256_cvtph_ps(_mm_unpacklo_epi64(low, high));
        (scales, _mm256_cvtph_ps(_mm_unpackhi_epi64(low, high)))
    }
}

/// The sums of eight vectors, in order: lane j with j + 4, then + 2, + 1.
#[target_feature(enable = "avx2,avx512f,avx512dq")]
#[inline]
pub(super) fn fold_rows(v: &[__m256; ROWS]) -> __m256 {
    let (mut low, mut high) = ([_mm_setzero_ps(); 4], [_mm_setzero_ps(); 4]);
    for i in 0..4 {
        low[i] = _mm_add_ps(_mm256_castps256_ps128(v[i]), _mm256_extractf128_ps::<1>(v[i]));
        high[i] = _mm_add_ps(_mm256_castps256_ps128(v[i + 4]), _mm256_extractf128_ps::<1>(v[i + 4]));
    }
    _mm256_set_m128(fold_four(&high), fold_four(&low))
}

/// The sums of four vectors: lane j with j + 2, then + 1.
#[target_feature(enable = "avx2,avx512f,avx512dq")]
#[inline]
pub(super) fn fold_four([a, b, c, d]: &[__m128; 4]) -> __m128 {
    // Transposed, so that both steps add whole vectors.
    let ab = _mm_add_ps(_mm_unpacklo_ps(*a, *b), _mm_unpackhi_ps(*a, *b));
    let cd = _mm_add_ps(_mm_unpacklo_ps(*c, *d), _mm_unpackhi_ps(*c, *d));
    _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab))
}

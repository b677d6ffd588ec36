//! Many columns with blocks of 256.
//!
//! A panel holds eight rows: codes as `[k / 4][row][4]`; for each block, integer scales as `[16][row]`, pairs of minima
//! as `[8][row][2]`, and the two factors of each row.

use super::lanes::{four_halves, quad_products, store_first, transpose};
use super::unpack::Unpack256;
use crate::cpu::matmul::activation::Q8x256;
use crate::cpu::matmul::x86::ahead::Ahead;
use crate::cpu::matmul::{Column, Order, Weights};
use crate::cpu::quant::block256::Adding;
use std::arch::x86_64::*;
use std::ops::Range;

/// Columns of a tile.
const TILE: usize = 4;

/// Bytes of a block's codes, scales and minima in a panel.
const CODES: usize = 2048;
const SCALES: usize = 512;
const MINIMA: usize = 256;
const BLOCK: usize = CODES + SCALES + MINIMA + 64;

/// # Safety
/// The contract of [`crate::cpu::matmul::RowsFn`]; the machine has the instructions.
pub(super) unsafe fn rows<B: Unpack256>(w: &Weights, rows: Range<usize>, columns: &[Column], panel: *mut u8) {
    let parts = if B::ADDING == Adding::Quarters && w.order == Order::Many { 4 } else { 1 };
    // SAFETY: the same contract; a panel's blocks fit it.
    unsafe {
        for first in rows.clone().step_by(8) {
            let count = (rows.end - first).min(8);
            let at: [*const u8; 8] = std::array::from_fn(|r| w.data.add((first + r.min(count - 1)) * w.stride));
            let mut ahead = Ahead::new(at[0], 8, w.stride, w.k / 256);
            for b in 0..w.k / 256 {
                ahead.step();
                pack::<B>(&at, b, panel.add(b * BLOCK));
            }
            for tile in columns.chunks(TILE) {
                match tile.len() {
                    1 => multiply::<B, 1>(panel, (w.k, parts), first, count, tile),
                    2 => multiply::<B, 2>(panel, (w.k, parts), first, count, tile),
                    3 => multiply::<B, 3>(panel, (w.k, parts), first, count, tile),
                    _ => multiply::<B, TILE>(panel, (w.k, parts), first, count, tile),
                }
            }
        }
    }
}

/// Unpacks block `b` of eight rows.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn pack<B: Unpack256>(at: &[*const u8; 8], b: usize, to: *mut u8) {
    // SAFETY: the block exists in every row; the panel has room for it.
    unsafe {
        let block = at.map(|p| p.add(b * B::SIZE));
        for part in 0..8 {
            let mut codes = [_mm256_setzero_si256(); 8];
            for r in 0..8 {
                codes[r] = B::vector_codes(block[r], part);
            }
            put_transposed(&mut codes, to.add(part * 256));
        }
        let mut low = [_mm256_setzero_si256(); 8];
        let mut high = low;
        let mut minima = low;
        for r in 0..8 {
            let (scale, min) = B::vector_scales(block[r]);
            low[r] = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(scale));
            high[r] = _mm256_cvtepi16_epi32(_mm256_extracti128_si256::<1>(scale));
            minima[r] = min;
        }
        put_transposed(&mut low, to.add(CODES));
        put_transposed(&mut high, to.add(CODES + 256));
        if B::HAS_MIN {
            put_transposed(&mut minima, to.add(CODES + SCALES));
        }
        let [p, q, r, s, t, u, v, x] = block;
        let factors = to.add(CODES + SCALES + MINIMA).cast::<f32>();
        for part in 0..if B::HAS_MIN { 2 } else { 1 } {
            let at = B::D_AT + 2 * part;
            _mm_storeu_ps(factors.add(8 * part), four_halves(&[p, q, r, s], at));
            _mm_storeu_ps(factors.add(8 * part + 4), four_halves(&[t, u, v, x], at));
        }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
unsafe fn put_transposed(v: &mut [__m256i; 8], to: *mut u8) {
    transpose(v);
    for (g, group) in v.iter().enumerate() {
        // SAFETY: the caller has room for eight vectors.
        unsafe { _mm256_storeu_si256(to.add(g * 32).cast(), *group) };
    }
}

/// Eight rows by `C` columns.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<B: Unpack256, const C: usize>(
    panel: *const u8,
    (k, parts): (usize, usize),
    first: usize,
    count: usize,
    columns: &[Column],
) {
    // SAFETY: the panel holds all blocks; the records are of `k` elements; results exist for `count` rows.
    unsafe {
        let x: [Q8x256; C] = std::array::from_fn(|c| Q8x256::view(columns[c].record, k));
        let mut acc = [_mm256_setzero_ps(); C];
        let mut minima = [_mm256_setzero_ps(); C];
        for b in 0..k / 256 {
            let block = panel.add(b * BLOCK);
            let factors = block.add(CODES + SCALES + MINIMA).cast::<f32>();
            let d = _mm256_loadu_ps(factors);
            for part in 0..parts {
                let sums = block_sums::<B, C>(block, b, &x, 16 / parts * part..16 / parts * (part + 1));
                for c in 0..C {
                    let (xd, sum) = (_mm256_set1_ps(*x[c].d.add(b)), _mm256_cvtepi32_ps(sums[c]));
                    acc[c] = if B::ADDING == Adding::Eights {
                        _mm256_fmadd_ps(_mm256_mul_ps(sum, d), xd, acc[c])
                    } else {
                        _mm256_fmadd_ps(_mm256_mul_ps(d, xd), sum, acc[c])
                    };
                    if B::HAS_MIN {
                        let factor = _mm256_mul_ps(_mm256_loadu_ps(factors.add(8)), xd);
                        let pairs = 8 / parts * part..8 / parts * (part + 1);
                        let sum = _mm256_cvtepi32_ps(block_minima(block, x[c].sums.add(b * 16), pairs));
                        minima[c] = _mm256_fmadd_ps(factor, sum, minima[c]);
                    }
                }
            }
        }
        for c in 0..C {
            let sum = if B::HAS_MIN { _mm256_sub_ps(acc[c], minima[c]) } else { acc[c] };
            store_first(columns[c].dst.add(first), sum, count);
        }
    }
}

/// Exact sums of scaled products of some groups of a block.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn block_sums<B: Unpack256, const C: usize>(
    block: *const u8,
    b: usize,
    x: &[Q8x256; C],
    groups: Range<usize>,
) -> [__m256i; C] {
    let mut sums = [_mm256_setzero_si256(); C];
    for group in groups {
        // SAFETY: the group lies inside the block and the records.
        unsafe {
            let mut dots = [_mm256_setzero_si256(); C];
            if B::ZERO != 0 && B::ZERO != 128 {
                for c in 0..C {
                    let sum = i32::from(*x[c].sums.add(b * 16 + group));
                    dots[c] = _mm256_set1_epi32(-i32::from(B::ZERO) * sum);
                }
            }
            for g in 0..4 {
                let at = group * 4 + g;
                let w = _mm256_loadu_si256(block.add(at * 32).cast());
                for c in 0..C {
                    let inputs = _mm256_set1_epi32(x[c].codes.add(b * 256 + at * 4).cast::<i32>().read_unaligned());
                    let products = if B::ZERO == 128 {
                        quad_products::<true>(w, inputs)
                    } else {
                        quad_products::<false>(w, inputs)
                    };
                    dots[c] = _mm256_add_epi32(dots[c], products);
                }
            }
            let scale = _mm256_loadu_si256(block.add(CODES + group * 32).cast());
            for c in 0..C {
                sums[c] = _mm256_add_epi32(sums[c], _mm256_mullo_epi32(dots[c], scale));
            }
        }
    }
    sums
}

/// Exact sum of `minimum · sum of codes` of some 32s of a block.
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn block_minima(block: *const u8, sums: *const i16, thirty_twos: Range<usize>) -> __m256i {
    let mut total = _mm256_setzero_si256();
    for g in thirty_twos {
        // SAFETY: there are eight pairs of minima and of sums.
        unsafe {
            let min = _mm256_loadu_si256(block.add(CODES + SCALES + g * 32).cast());
            let pair = _mm256_set1_epi32(sums.add(2 * g).cast::<i32>().read_unaligned());
            total = _mm256_add_epi32(total, _mm256_madd_epi16(min, pair));
        }
    }
    total
}

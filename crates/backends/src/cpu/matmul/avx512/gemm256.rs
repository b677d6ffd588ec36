//! Many columns with blocks of 256.
//!
//! A panel holds sixteen rows: codes as `[k / 4][row][4]`; for each block, integer scales as `[16][row]`, pairs of
//! minima as `[8][row][2]`, and the two factors of each row.

use super::lanes::{first_lanes, transpose};
use super::unpack256::Unpack256;
use crate::cpu::matmul::activation::Q8x256;
use crate::cpu::matmul::x86::ahead::Ahead;
use crate::cpu::matmul::{Column, Order, Weights};
use crate::cpu::quant::block256::Adding;
use std::arch::x86_64::*;
use std::ops::Range;

/// Columns of a tile.
const TILE: usize = 8;

/// Bytes of a block's codes, scales, minima and factors in a panel.
const CODES: usize = 4096;
const SCALES: usize = 1024;
const MINIMA: usize = 512;
const BLOCK: usize = CODES + SCALES + MINIMA + 128;

/// # Safety
/// The contract of [`super::super::RowsFn`]; the machine has the instructions.
pub(super) unsafe fn rows<B: Unpack256>(w: &Weights, rows: Range<usize>, columns: &[Column], panel: *mut u8) {
    let parts = if B::ADDING == Adding::Quarters && w.order == Order::Many { 4 } else { 1 };
    // SAFETY: the same contract.
    unsafe {
        for first in rows.clone().step_by(16) {
            let count = (rows.end - first).min(16);
            let at: [*const u8; 16] = std::array::from_fn(|r| w.data.add((first + r.min(count - 1)) * w.stride));
            let mut ahead = Ahead::new(at[0], 16, w.stride, w.k / 256);
            for b in 0..w.k / 256 {
                ahead.step();
                pack::<B>(&at, b, panel.add(b * BLOCK));
            }
            for tile in columns.chunks(TILE) {
                match tile.len() {
                    1 => multiply::<B, 1>(panel, (w.k, parts), first, count, tile),
                    2 => multiply::<B, 2>(panel, (w.k, parts), first, count, tile),
                    3 => multiply::<B, 3>(panel, (w.k, parts), first, count, tile),
                    4 => multiply::<B, 4>(panel, (w.k, parts), first, count, tile),
                    5 => multiply::<B, 5>(panel, (w.k, parts), first, count, tile),
                    6 => multiply::<B, 6>(panel, (w.k, parts), first, count, tile),
                    7 => multiply::<B, 7>(panel, (w.k, parts), first, count, tile),
                    _ => multiply::<B, TILE>(panel, (w.k, parts), first, count, tile),
                }
            }
        }
    }
}

/// Unpacks block `b` of sixteen rows.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
unsafe fn pack<B: Unpack256>(at: &[*const u8; 16], b: usize, to: *mut u8) {
    // SAFETY: the block exists in every row; the panel has room for it.
    unsafe {
        let block = at.map(|p| p.add(b * B::SIZE));
        for part in 0..4 {
            let mut codes = [_mm512_setzero_si512(); 16];
            for r in 0..16 {
                codes[r] = B::vector_codes(block[r], part);
            }
            transpose(&mut codes);
            for (g, group) in codes.iter().enumerate() {
                _mm512_store_si512(to.add(part * 1024 + g * 64).cast(), *group);
            }
        }
        let mut scales = [_mm512_setzero_si512(); 16];
        let mut minima = [_mm512_setzero_si512(); 16];
        for r in 0..16 {
            let (scale, min) = B::vector_scales(block[r]);
            scales[r] = _mm512_cvtepi16_epi32(scale);
            minima[r] = _mm512_castsi256_si512(min);
        }
        transpose(&mut scales);
        for (g, group) in scales.iter().enumerate() {
            _mm512_store_si512(to.add(CODES + g * 64).cast(), *group);
        }
        if B::HAS_MIN {
            transpose(&mut minima);
            for (g, group) in minima[..8].iter().enumerate() {
                _mm512_store_si512(to.add(CODES + SCALES + g * 64).cast(), *group);
            }
        }
        for part in 0..if B::HAS_MIN { 2 } else { 1 } {
            let halves = block.map(|p| p.add(B::D_AT + 2 * part).cast::<i16>().read_unaligned());
            let factors = _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast()));
            _mm512_store_ps(to.add(CODES + SCALES + MINIMA + 64 * part).cast(), factors);
        }
    }
}

/// Sixteen rows by `C` columns.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
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
        let mut acc = [_mm512_setzero_ps(); C];
        let mut minima = [_mm512_setzero_ps(); C];
        for b in 0..k / 256 {
            let block = panel.add(b * BLOCK);
            let factors = block.add(CODES + SCALES + MINIMA).cast::<f32>();
            let d = _mm512_load_ps(factors);
            for part in 0..parts {
                let sums = block_sums::<B, C>(block, b, &x, 8 / parts * part..8 / parts * (part + 1));
                for c in 0..C {
                    let (xd, sum) = (_mm512_set1_ps(*x[c].d.add(b)), _mm512_cvtepi32_ps(sums[c]));
                    acc[c] = if B::ADDING == Adding::Eights {
                        _mm512_fmadd_ps(_mm512_mul_ps(sum, d), xd, acc[c])
                    } else {
                        _mm512_fmadd_ps(_mm512_mul_ps(d, xd), sum, acc[c])
                    };
                }
                if B::HAS_MIN {
                    let dmin = _mm512_load_ps(factors.add(16));
                    for c in 0..C {
                        let factor = _mm512_mul_ps(dmin, _mm512_set1_ps(*x[c].d.add(b)));
                        let pairs = 8 / parts * part..8 / parts * (part + 1);
                        let sum = _mm512_cvtepi32_ps(block_minima(block, x[c].sums.add(b * 16), pairs));
                        minima[c] = _mm512_fmadd_ps(factor, sum, minima[c]);
                    }
                }
            }
        }
        for c in 0..C {
            let sum = if B::HAS_MIN { _mm512_sub_ps(acc[c], minima[c]) } else { acc[c] };
            _mm512_mask_storeu_ps(columns[c].dst.add(first), first_lanes(count), sum);
        }
    }
}

/// Exact sums of scaled products of some 32s of a block.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
unsafe fn block_sums<B: Unpack256, const C: usize>(
    block: *const u8,
    b: usize,
    x: &[Q8x256; C],
    thirty_twos: Range<usize>,
) -> [__m512i; C] {
    let mut sums = [_mm512_setzero_si512(); C];
    let sixteens = B::GROUP / 16;
    for group in thirty_twos.start * 2 / sixteens..thirty_twos.end * 2 / sixteens {
        // SAFETY: the group lies inside the block and the records.
        unsafe {
            let mut dots = [_mm512_setzero_si512(); C];
            if B::ZERO != 0 {
                for c in 0..C {
                    let sum = x[c].sums.add(b * 16 + group * sixteens);
                    let second = if sixteens == 2 { *sum.add(1) } else { 0 };
                    let total = i32::from(*sum) + i32::from(second);
                    dots[c] = _mm512_set1_epi32(-i32::from(B::ZERO) * total);
                }
            }
            for g in 0..4 * sixteens {
                let at = group * 4 * sixteens + g;
                let w = _mm512_load_si512(block.add(at * 64).cast());
                for c in 0..C {
                    let input = x[c].codes.add(b * 256 + at * 4).cast::<i32>().read_unaligned();
                    dots[c] = _mm512_dpbusd_epi32(dots[c], w, _mm512_set1_epi32(input));
                }
            }
            let scale = _mm512_load_si512(block.add(CODES + group * sixteens * 64).cast());
            for c in 0..C {
                sums[c] = _mm512_add_epi32(sums[c], _mm512_mullo_epi32(dots[c], scale));
            }
        }
    }
    sums
}

/// Exact sum of `minimum · sum of codes` of some 32s of a block.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
unsafe fn block_minima(block: *const u8, sums: *const i16, thirty_twos: Range<usize>) -> __m512i {
    let mut total = _mm512_setzero_si512();
    for g in thirty_twos {
        // SAFETY: there are eight pairs of minima and of sums.
        unsafe {
            let min = _mm512_load_si512(block.add(CODES + SCALES + g * 64).cast());
            let pair = _mm512_set1_epi32(sums.add(2 * g).cast::<i32>().read_unaligned());
            total = _mm512_dpwssd_epi32(total, min, pair);
        }
    }
    total
}

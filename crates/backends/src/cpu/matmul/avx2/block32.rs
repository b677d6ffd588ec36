//! Products with blocks of 32: four rows by one or two columns. A vector holds the eight partial sums of a row.

use super::lanes::{broadcasts, fold_rows, four_halves, quad_products, store_first};
use super::unpack::Unpack32;
use crate::cpu::matmul::activation::Q8x32;
use crate::cpu::matmul::x86::ahead::Ahead;
use crate::cpu::matmul::{Column, Weights};
use std::arch::x86_64::*;
use std::ops::Range;

/// Rows at a time.
const ROWS: usize = 4;

/// # Safety
/// The contract of [`crate::cpu::matmul::RowsFn`]; the machine has the instructions.
pub(super) unsafe fn rows<B: Unpack32>(w: &Weights, rows: Range<usize>, columns: &[Column], _panel: *mut u8) {
    for first in rows.clone().step_by(ROWS) {
        let count = (rows.end - first).min(ROWS);
        for tile in columns.chunks(2) {
            // SAFETY: the same contract.
            unsafe {
                match tile {
                    [a] => multiply::<B, 1>(w, first, count, [a]),
                    [a, b] => multiply::<B, 2>(w, first, count, [a, b]),
                    _ => {}
                }
            }
        }
    }
}

/// Sums of four rows with a column.
#[derive(Clone, Copy)]
struct Sums {
    rows: [__m256; ROWS],
    minima: __m128,
}

/// Rows `first` to `first + count - 1` (at most four) by `C` columns; rows beyond `count` repeat the last one.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<B: Unpack32, const C: usize>(w: &Weights, first: usize, count: usize, columns: [&Column; C]) {
    // SAFETY: the rows have that many blocks, as have the records; results exist for `count` rows.
    unsafe {
        let x: [Q8x32; C] = std::array::from_fn(|c| Q8x32::view(columns[c].record, w.k));
        let mut at: [*const u8; ROWS] = std::array::from_fn(|r| w.data.add((first + r.min(count - 1)) * w.stride));
        let mut sums = [Sums { rows: [_mm256_setzero_ps(); ROWS], minima: _mm_setzero_ps() }; C];
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
            let totals = fold_rows(&sums[c].rows);
            let totals = if B::HAS_MIN { _mm_add_ps(totals, sums[c].minima) } else { totals };
            store_first(columns[c].dst.add(first), _mm256_zextps128_ps256(totals), count);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
unsafe fn add_block<B: Unpack32, const C: usize>(
    at: &[*const u8; ROWS],
    x: &[Q8x32; C],
    b: usize,
    sums: &mut [Sums; C],
) {
    // SAFETY: the block exists in every row and record.
    unsafe {
        let scales = four_halves(at, 0);
        let mut codes = [_mm256_setzero_si256(); ROWS];
        for r in 0..ROWS {
            codes[r] = B::vector_codes(at[r]);
        }
        for c in 0..C {
            let inputs = _mm256_loadu_si256(x[c].codes.add(b * 32).cast());
            let scaled = _mm_mul_ps(scales, _mm_set1_ps(*x[c].d.add(b)));
            let factors = broadcasts(scaled);
            for r in 0..ROWS {
                let dots = _mm256_cvtepi32_ps(dots::<B>(codes[r], inputs));
                sums[c].rows[r] = _mm256_fmadd_ps(factors[r], dots, sums[c].rows[r]);
            }
            if B::HAS_MIN {
                sums[c].minima = _mm_fmadd_ps(four_halves(at, 2), _mm_set1_ps(*x[c].s.add(b)), sums[c].minima);
            }
        }
    }
}

/// Exact sums of four adjacent products `(code − zero) · input` each.
#[target_feature(enable = "avx2")]
#[inline]
fn dots<B: Unpack32>(codes: __m256i, inputs: __m256i) -> __m256i {
    if B::ZERO == 128 {
        return quad_products::<true>(codes, inputs);
    }
    let products = quad_products::<false>(codes, inputs);
    if B::ZERO == 0 {
        return products;
    }
    _mm256_sub_epi32(products, quad_products::<false>(_mm256_set1_epi8(B::ZERO as i8), inputs))
}

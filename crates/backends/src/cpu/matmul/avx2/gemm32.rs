//! Many columns with blocks of 32.
//!
//! A panel holds eight rows: codes as `[k / 4][row][4]`, then scales and minima as `[block][row]`.

use super::lanes::{four_halves, quad_products, store_first, transpose};
use super::unpack::Unpack32;
use crate::cpu::matmul::activation::Q8x32;
use crate::cpu::matmul::x86::ahead::Ahead;
use crate::cpu::matmul::{Column, Weights};
use std::arch::x86_64::*;
use std::ops::Range;

/// Columns of a tile.
const TILE: usize = 4;

struct Panel {
    codes: *mut u8,
    d: *mut f32,
    m: *mut f32,
    blocks: usize,
}

/// # Safety
/// The contract of [`crate::cpu::matmul::RowsFn`]; the machine has the instructions.
pub(super) unsafe fn rows<B: Unpack32>(w: &Weights, rows: Range<usize>, columns: &[Column], panel: *mut u8) {
    let blocks = w.k / 32;
    // SAFETY: the same contract; 8 · k bytes of codes and twice 8 · 4 bytes a block fit the panel.
    unsafe {
        let d = panel.add(blocks * 256).cast::<f32>();
        let panel = Panel { codes: panel, d, m: d.add(blocks * 8), blocks };
        for first in rows.clone().step_by(8) {
            let count = (rows.end - first).min(8);
            pack::<B>(w, first, count, &panel);
            for tile in columns.chunks(TILE) {
                match tile.len() {
                    1 => multiply::<B, 1>(&panel, w.k, first, count, tile),
                    2 => multiply::<B, 2>(&panel, w.k, first, count, tile),
                    3 => multiply::<B, 3>(&panel, w.k, first, count, tile),
                    _ => multiply::<B, TILE>(&panel, w.k, first, count, tile),
                }
            }
        }
    }
}

/// Unpacks eight rows; rows beyond `count` repeat the last one.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn pack<B: Unpack32>(w: &Weights, first: usize, count: usize, panel: &Panel) {
    // SAFETY: the rows exist and have that many blocks, for which the panel has room.
    unsafe {
        let at: [*const u8; 8] = std::array::from_fn(|r| w.data.add((first + r.min(count - 1)) * w.stride));
        let mut ahead = Ahead::new(at[0], 8, w.stride, panel.blocks);
        for b in 0..panel.blocks {
            ahead.step();
            let block = at.map(|p| p.add(b * B::SIZE));
            let mut codes = [_mm256_setzero_si256(); 8];
            for r in 0..8 {
                codes[r] = B::vector_codes(block[r]);
            }
            transpose(&mut codes);
            for (g, group) in codes.iter().enumerate() {
                _mm256_storeu_si256(panel.codes.add(b * 256 + g * 32).cast(), *group);
            }
            let [p, q, r, s, t, u, v, x] = block;
            for half in 0..2 {
                let four = if half == 0 { [p, q, r, s] } else { [t, u, v, x] };
                _mm_storeu_ps(panel.d.add(b * 8 + half * 4), four_halves(&four, 0));
                if B::HAS_MIN {
                    _mm_storeu_ps(panel.m.add(b * 8 + half * 4), four_halves(&four, 2));
                }
            }
        }
    }
}

/// Eight rows by `C` columns.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn multiply<B: Unpack32, const C: usize>(
    panel: &Panel,
    k: usize,
    first: usize,
    count: usize,
    columns: &[Column],
) {
    // SAFETY: the panel holds all blocks; the records are of `k` elements; results exist for `count` rows.
    unsafe {
        let x: [Q8x32; C] = std::array::from_fn(|c| Q8x32::view(columns[c].record, k));
        let mut acc = [_mm256_setzero_ps(); C];
        let mut minima = [_mm256_setzero_ps(); C];
        for b in 0..panel.blocks {
            let mut sums = [_mm256_setzero_si256(); C];
            if B::ZERO != 0 && B::ZERO != 128 {
                for c in 0..C {
                    sums[c] = _mm256_set1_epi32(-i32::from(B::ZERO) * *x[c].sum.add(b));
                }
            }
            for g in 0..8 {
                let w = _mm256_loadu_si256(panel.codes.add(b * 256 + g * 32).cast());
                for c in 0..C {
                    let inputs = _mm256_set1_epi32(x[c].codes.add(b * 32 + g * 4).cast::<i32>().read_unaligned());
                    let products = if B::ZERO == 128 {
                        quad_products::<true>(w, inputs)
                    } else {
                        quad_products::<false>(w, inputs)
                    };
                    sums[c] = _mm256_add_epi32(sums[c], products);
                }
            }
            let d = _mm256_loadu_ps(panel.d.add(b * 8));
            for c in 0..C {
                let factor = _mm256_mul_ps(d, _mm256_set1_ps(*x[c].d.add(b)));
                acc[c] = _mm256_add_ps(acc[c], _mm256_mul_ps(factor, _mm256_cvtepi32_ps(sums[c])));
                if B::HAS_MIN {
                    let m = _mm256_loadu_ps(panel.m.add(b * 8));
                    minima[c] = _mm256_add_ps(minima[c], _mm256_mul_ps(m, _mm256_set1_ps(*x[c].s.add(b))));
                }
            }
        }
        for c in 0..C {
            let sum = if B::HAS_MIN { _mm256_add_ps(acc[c], minima[c]) } else { acc[c] };
            store_first(columns[c].dst.add(first), sum, count);
        }
    }
}

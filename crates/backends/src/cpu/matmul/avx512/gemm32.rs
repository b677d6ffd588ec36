//! Many columns with blocks of 32.
//!
//! A panel holds sixteen rows: codes as `[k / 4][row][4]`, then scales and minima as `[block][row]`.

use super::lanes::{first_lanes, transpose};
use super::unpack32::{Unpack32, Window};
use crate::cpu::matmul::activation::Q8x32;
use crate::cpu::matmul::x86::ahead::Ahead;
use crate::cpu::matmul::{Column, Weights};
use std::arch::x86_64::*;
use std::ops::Range;

/// Columns of a tile.
const TILE: usize = 8;

struct Panel {
    codes: *mut u8,
    d: *mut f32,
    m: *mut f32,
    blocks: usize,
}

impl Panel {
    /// # Safety
    /// `data` must hold [`super::super::panel_bytes`] bytes, aligned to 64.
    unsafe fn new(data: *mut u8, k: usize) -> Self {
        let pairs = k.div_ceil(64);
        // SAFETY: the parts lie inside the panel.
        unsafe {
            let d = data.add(pairs * 1024).cast::<f32>();
            Self { codes: data, d, m: d.add(pairs * 32), blocks: k / 32 }
        }
    }
}

/// # Safety
/// The contract of [`super::super::RowsFn`]; the machine has the instructions.
pub(super) unsafe fn rows<B: Unpack32>(w: &Weights, rows: Range<usize>, columns: &[Column], panel: *mut u8) {
    // SAFETY: the same contract.
    unsafe {
        let panel = Panel::new(panel, w.k);
        for first in rows.clone().step_by(16) {
            let count = (rows.end - first).min(16);
            pack::<B>(w, first, count, &panel);
            for tile in columns.chunks(TILE) {
                match tile.len() {
                    1 => multiply::<B, 1>(&panel, w.k, first, count, tile),
                    2 => multiply::<B, 2>(&panel, w.k, first, count, tile),
                    3 => multiply::<B, 3>(&panel, w.k, first, count, tile),
                    4 => multiply::<B, 4>(&panel, w.k, first, count, tile),
                    5 => multiply::<B, 5>(&panel, w.k, first, count, tile),
                    6 => multiply::<B, 6>(&panel, w.k, first, count, tile),
                    7 => multiply::<B, 7>(&panel, w.k, first, count, tile),
                    _ => multiply::<B, TILE>(&panel, w.k, first, count, tile),
                }
            }
        }
    }
}

/// Unpacks sixteen rows; rows beyond `count` repeat the last one.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
unsafe fn pack<B: Unpack32>(w: &Weights, first: usize, count: usize, panel: &Panel) {
    // SAFETY: the rows exist and have that many blocks; the panel has room for whole pairs.
    unsafe {
        let at: [*const u8; 16] = std::array::from_fn(|r| w.data.add((first + r.min(count - 1)) * w.stride));
        let mut ahead = Ahead::new(at[0], 16, w.stride, panel.blocks.div_ceil(2));
        for pair in 0..panel.blocks.div_ceil(2) {
            ahead.step();
            let two = pair * 2 + 1 < panel.blocks;
            let window = Window::of::<B>(pair, panel.blocks);
            let mut codes = [_mm512_setzero_si512(); 16];
            for r in 0..16 {
                codes[r] = B::vector_codes(at[r].add(pair * 2 * B::SIZE), &window, window.load(at[r]), two);
            }
            transpose(&mut codes);
            for (g, group) in codes.iter().enumerate() {
                _mm512_store_si512(panel.codes.add(pair * 1024 + g * 64).cast(), *group);
            }
            for b in pair * 2..(pair * 2 + 2).min(panel.blocks) {
                let word = |r: usize, part: usize| at[r].add(b * B::SIZE + part).cast::<i16>().read_unaligned();
                let halves: [i16; 16] = std::array::from_fn(|r| word(r, 0));
                _mm512_store_ps(panel.d.add(b * 16), _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast())));
                if B::HAS_MIN {
                    let halves: [i16; 16] = std::array::from_fn(|r| word(r, 2));
                    _mm512_store_ps(panel.m.add(b * 16), _mm512_cvtph_ps(_mm256_loadu_si256(halves.as_ptr().cast())));
                }
            }
        }
    }
}

/// Sixteen rows by `C` columns.
#[target_feature(enable = "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")]
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
        let mut acc = [_mm512_setzero_ps(); C];
        let mut minima = [_mm512_setzero_ps(); C];
        for b in 0..panel.blocks {
            let mut sums = [_mm512_setzero_si512(); C];
            if B::ZERO != 0 {
                for c in 0..C {
                    sums[c] = _mm512_set1_epi32(-i32::from(B::ZERO) * *x[c].sum.add(b));
                }
            }
            for g in 0..8 {
                let w = _mm512_load_si512(panel.codes.add((b * 8 + g) * 64).cast());
                for c in 0..C {
                    let input = _mm512_set1_epi32(x[c].codes.add(b * 32 + g * 4).cast::<i32>().read_unaligned());
                    sums[c] = _mm512_dpbusd_epi32(sums[c], w, input);
                }
            }
            let d = _mm512_load_ps(panel.d.add(b * 16));
            for c in 0..C {
                let factor = _mm512_mul_ps(d, _mm512_set1_ps(*x[c].d.add(b)));
                acc[c] = _mm512_add_ps(acc[c], _mm512_mul_ps(factor, _mm512_cvtepi32_ps(sums[c])));
                if B::HAS_MIN {
                    let m = _mm512_load_ps(panel.m.add(b * 16));
                    minima[c] = _mm512_add_ps(minima[c], _mm512_mul_ps(m, _mm512_set1_ps(*x[c].s.add(b))));
                }
            }
        }
        for c in 0..C {
            let sum = if B::HAS_MIN { _mm512_add_ps(acc[c], minima[c]) } else { acc[c] };
            _mm512_mask_storeu_ps(columns[c].dst.add(first), first_lanes(count), sum);
        }
    }
}

//! Products in plain Rust: the definition that vector kernels reproduce bit for bit.

use super::activation::{Q8x32, Q8x256};
use super::values::{Sum, Values, ValuesFn};
use super::{Column, RowsFn, Weights};
use crate::cpu::element::{Bf16, Element, F16};
use crate::cpu::math::{LANES, fold_lanes};
use crate::cpu::quant::block32::{self, Block32, Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::cpu::quant::block256::{self, Block256, Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use loadmaster_graph::DType;
use std::ops::Range;

/// The kernel for a weight type.
pub(crate) fn rows_fn(dtype: DType) -> Option<RowsFn> {
    Some(match dtype {
        DType::F32 => float_rows::<f32>,
        DType::F16 => float_rows::<F16>,
        DType::Bf16 => float_rows::<Bf16>,
        DType::Q4_0 => rows32::<Q4_0>,
        DType::Q4_1 => rows32::<Q4_1>,
        DType::Q5_0 => rows32::<Q5_0>,
        DType::Q5_1 => rows32::<Q5_1>,
        DType::Q8_0 => rows32::<Q8_0>,
        DType::Iq4Nl => rows32::<Iq4Nl>,
        DType::Q2K => rows256::<Q2K>,
        DType::Q3K => rows256::<Q3K>,
        DType::Q4K => rows256::<Q4K>,
        DType::Q5K => rows256::<Q5K>,
        DType::Q6K => rows256::<Q6K>,
        DType::Iq4Xs => rows256::<Iq4Xs>,
        _ => return None,
    })
}

/// The kernel that adds up value rows of a plain float type.
pub(crate) fn values_fn(dtype: DType) -> Option<ValuesFn> {
    Some(match dtype {
        DType::F32 => add_values::<f32>,
        DType::F16 => add_values::<F16>,
        DType::Bf16 => add_values::<Bf16>,
        _ => return None,
    })
}

unsafe fn add_values<T: Element>(values: &Values, keys: &[u32], sums: &[Sum]) {
    for &key in keys {
        for sum in sums {
            // SAFETY: the contract of `ValuesFn`.
            unsafe {
                let row = values.data.add(key as usize * values.stride).cast::<T>();
                let weight = sum.weights.add(key as usize).read_unaligned();
                for i in 0..values.len {
                    let to = sum.to.add(i);
                    to.write_unaligned(weight.mul_add(row.add(i).read_unaligned().to_f32(), to.read_unaligned()));
                }
            }
        }
    }
}

unsafe fn float_rows<T: Element>(w: &Weights, rows: Range<usize>, columns: &[Column], _panel: *mut u8) {
    for row in rows {
        for column in columns {
            // SAFETY: the contract of `RowsFn`.
            unsafe {
                let value = dot::<T>(w.data.add(row * w.stride).cast(), column.record.cast(), w.k);
                column.dst.add(row).write_unaligned(value);
            }
        }
    }
}

/// Sixteen partial sums by fused multiply-add.
unsafe fn dot<T: Element>(w: *const T, x: *const f32, k: usize) -> f32 {
    let mut acc = [0.0f32; LANES];
    let whole = k / LANES * LANES;
    for i in (0..whole).step_by(LANES) {
        for (j, lane) in acc.iter_mut().enumerate() {
            // SAFETY: i + j < k.
            *lane = unsafe { w.add(i + j).read_unaligned().to_f32().mul_add(x.add(i + j).read_unaligned(), *lane) };
        }
    }
    for i in whole..k {
        let lane = &mut acc[i - whole];
        // SAFETY: i < k.
        *lane = unsafe { w.add(i).read_unaligned().to_f32().mul_add(x.add(i).read_unaligned(), *lane) };
    }
    fold_lanes(acc)
}

/// Columns that share an unpacked block.
const TILE: usize = 8;

/// Two running sums of a column.
#[derive(Clone, Copy, Default)]
struct Sums {
    acc: f32,
    minima: f32,
}

unsafe fn rows32<B: Block32>(w: &Weights, rows: Range<usize>, columns: &[Column], _panel: *mut u8) {
    for row in rows {
        for tile in columns.chunks(TILE) {
            let mut sums = [Sums::default(); TILE];
            for b in 0..w.k / block32::LEN {
                // SAFETY: the contract of `RowsFn`: the row has that many blocks.
                let block = unsafe { std::slice::from_raw_parts(w.data.add(row * w.stride + b * B::SIZE), B::SIZE) };
                let codes = B::codes(block);
                for (column, sums) in tile.iter().zip(&mut sums) {
                    // SAFETY: the record has that many parts.
                    unsafe { add_block32::<B>(block, &codes, &Q8x32::view(column.record, w.k), b, sums) };
                }
            }
            for (column, sums) in tile.iter().zip(&sums) {
                let value = if B::HAS_MIN { sums.acc + sums.minima } else { sums.acc };
                // SAFETY: the result exists.
                unsafe { column.dst.add(row).write_unaligned(value) };
            }
        }
    }
}

#[inline(always)]
unsafe fn add_block32<B: Block32>(block: &[u8], codes: &[u8; 32], x: &Q8x32, b: usize, sums: &mut Sums) {
    // SAFETY: block b of the record exists.
    unsafe {
        let inputs = x.codes.add(b * block32::LEN).cast::<[i8; block32::LEN]>().read_unaligned();
        let sum = codes_dot(codes, &inputs) - i32::from(B::ZERO) * *x.sum.add(b);
        sums.acc += B::scale(block) * *x.d.add(b) * sum as f32;
        if B::HAS_MIN {
            sums.minima += B::minimum(block) * *x.s.add(b);
        }
    }
}

/// Exact sum of products.
#[inline(always)]
fn codes_dot(w: &[u8], x: &[i8]) -> i32 {
    w.iter().zip(x).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum()
}

unsafe fn rows256<B: Block256>(w: &Weights, rows: Range<usize>, columns: &[Column], _panel: *mut u8) {
    for row in rows {
        for tile in columns.chunks(TILE) {
            let mut sums = [Sums::default(); TILE];
            for b in 0..w.k / block256::LEN {
                // SAFETY: the contract of `RowsFn`: the row has that many blocks.
                let block = unsafe { std::slice::from_raw_parts(w.data.add(row * w.stride + b * B::SIZE), B::SIZE) };
                let (codes, scales) = (B::codes(block), B::scales(block));
                for (column, sums) in tile.iter().zip(&mut sums) {
                    // SAFETY: the record has that many parts.
                    unsafe { add_block256::<B>(&codes, &scales, &Q8x256::view(column.record, w.k), b, sums) };
                }
            }
            for (column, sums) in tile.iter().zip(&sums) {
                let value = if B::HAS_MIN { sums.acc - sums.minima } else { sums.acc };
                // SAFETY: the result exists.
                unsafe { column.dst.add(row).write_unaligned(value) };
            }
        }
    }
}

#[inline(always)]
unsafe fn add_block256<B: Block256>(
    codes: &[u8; block256::LEN],
    scales: &block256::Scales,
    x: &Q8x256,
    b: usize,
    sums: &mut Sums,
) {
    // SAFETY: block b of the record exists.
    unsafe {
        let inputs = x.codes.add(b * block256::LEN).cast::<[i8; block256::LEN]>().read_unaligned();
        let input_sums = x.sums.add(b * block256::GROUPS).cast::<[i16; block256::GROUPS]>().read_unaligned();
        let d = *x.d.add(b);
        let (sum, min) = block_sums::<B>(codes, scales, &inputs, &input_sums);
        sums.acc += scales.d * d * sum as f32;
        if B::HAS_MIN {
            sums.minima += scales.dmin * d * min as f32;
        }
    }
}

/// Exact sums of scaled products and of minima.
#[inline(always)]
fn block_sums<B: Block256>(w: &[u8], scales: &block256::Scales, x: &[i8], sums: &[i16; 16]) -> (i32, i32) {
    let (mut sum, mut min) = (0, 0);
    for (g, (w, x)) in w.chunks_exact(16).zip(x.chunks_exact(16)).enumerate() {
        let dot = codes_dot(w, x) - i32::from(B::ZERO) * i32::from(sums[g]);
        sum += i32::from(scales.scale[g]) * dot;
        min += i32::from(scales.min[g]) * i32::from(sums[g]);
    }
    (sum, min)
}

//! Products in plain Rust: the definition that vector kernels reproduce bit for bit.

use super::activation::{Q8x32, Q8x256};
use super::values::{Sum, Values, ValuesFn};
use super::{Column, Order, RowsFn, SPREAD, Weights};
use crate::cpu::element::{Bf16, Element, F16};
use crate::cpu::math::{LANES, fold_lanes};
use crate::cpu::quant::block32::{self, Block32, Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::cpu::quant::block256::{self, Adding, Block256, Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
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
    let dot = match w.order {
        Order::One => spread_dot::<T>,
        Order::Many => dot::<T>,
    };
    for row in rows {
        for column in columns {
            // SAFETY: the contract of `RowsFn`.
            unsafe {
                let value = dot(w.data.add(row * w.stride).cast(), column.record.cast(), w.k);
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
        // SAFETY: sixteen elements exist from i on.
        unsafe { add_lanes(&mut acc, w.add(i), x.add(i)) };
    }
    for i in whole..k {
        let lane = &mut acc[i - whole];
        // SAFETY: i < k.
        *lane = unsafe { w.add(i).read_unaligned().to_f32().mul_add(x.add(i).read_unaligned(), *lane) };
    }
    fold_lanes(acc)
}

/// Four times sixteen partial sums, the first two added to the last two before folding; then the elements that are left.
unsafe fn spread_dot<T: Element>(w: *const T, x: *const f32, k: usize) -> f32 {
    let mut acc = [[0.0f32; LANES]; SPREAD];
    let whole = k / (SPREAD * LANES) * (SPREAD * LANES);
    for i in (0..whole).step_by(SPREAD * LANES) {
        for (j, acc) in acc.iter_mut().enumerate() {
            // SAFETY: 64 elements exist from i on.
            unsafe { add_lanes(acc, w.add(i + j * LANES), x.add(i + j * LANES)) };
        }
    }
    let [a, b, c, d] = acc;
    let sum = fold_lanes(std::array::from_fn(|j| (a[j] + c[j]) + (b[j] + d[j])));
    // SAFETY: the elements exist.
    unsafe { add_rest(sum, w.add(whole), x.add(whole), k - whole) }
}

#[inline(always)]
unsafe fn add_lanes<T: Element>(acc: &mut [f32; LANES], w: *const T, x: *const f32) {
    for (j, lane) in acc.iter_mut().enumerate() {
        // SAFETY: the caller vouches for sixteen elements.
        *lane = unsafe { w.add(j).read_unaligned().to_f32().mul_add(x.add(j).read_unaligned(), *lane) };
    }
}

/// Adds fewer than 64 products one by one: singles in single precision and fused, others in double.
///
/// # Safety
/// `n` elements must be readable in both.
pub(super) unsafe fn add_rest<T: Element>(sum: f32, w: *const T, x: *const f32, n: usize) -> f32 {
    // SAFETY: i < n.
    let pair = |i: usize| unsafe { (w.add(i).read_unaligned().to_f32(), x.add(i).read_unaligned()) };
    if size_of::<T>() == size_of::<f32>() {
        return (0..n).map(pair).fold(sum, |sum, (w, x)| w.mul_add(x, sum));
    }
    (0..n).map(pair).fold(f64::from(sum), |sum, (w, x)| sum + f64::from(w * x)) as f32
}

/// Columns that share an unpacked block.
const TILE: usize = 8;

/// Eight running sums of a column (or one, the first), and that of the minima.
#[derive(Clone, Copy, Default)]
struct Sums {
    lanes: [f32; 8],
    minima: f32,
}

impl Sums {
    /// Lane j with j + 4, then + 2, + 1.
    fn folded(&self) -> f32 {
        let four: [f32; 4] = std::array::from_fn(|j| self.lanes[j] + self.lanes[j + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
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
                let total = if B::HAS_MIN { sums.folded() + sums.minima } else { sums.folded() };
                // SAFETY: the result exists.
                unsafe { column.dst.add(row).write_unaligned(total) };
            }
        }
    }
}

/// Lane j takes the elements 4 j to 4 j + 3 of every block.
#[inline(always)]
unsafe fn add_block32<B: Block32>(block: &[u8], codes: &[u8; 32], x: &Q8x32, b: usize, sums: &mut Sums) {
    // SAFETY: block b of the record exists.
    unsafe {
        let inputs = x.codes.add(b * block32::LEN).cast::<[i8; block32::LEN]>().read_unaligned();
        let factor = B::scale(block) * *x.d.add(b);
        for (j, lane) in sums.lanes.iter_mut().enumerate() {
            let products =
                (4 * j..4 * j + 4).map(|i| (i32::from(codes[i]) - i32::from(B::ZERO)) * i32::from(inputs[i]));
            *lane = factor.mul_add(products.sum::<i32>() as f32, *lane);
        }
        if B::HAS_MIN {
            sums.minima = B::minimum(block).mul_add(*x.s.add(b), sums.minima);
        }
    }
}

/// Exact sum of products.
#[inline(always)]
fn codes_dot(w: &[u8], x: &[i8]) -> i32 {
    w.iter().zip(x).map(|(&w, &x)| i32::from(w) * i32::from(x)).sum()
}

unsafe fn rows256<B: Block256>(w: &Weights, rows: Range<usize>, columns: &[Column], _panel: *mut u8) {
    let eights = B::ADDING == Adding::Eights && w.order == Order::One;
    let quarters = if B::ADDING == Adding::Quarters && w.order == Order::Many { 4 } else { 1 };
    for row in rows {
        for tile in columns.chunks(TILE) {
            let mut sums = [Sums::default(); TILE];
            for b in 0..w.k / block256::LEN {
                // SAFETY: the contract of `RowsFn`: the row has that many blocks.
                let block = unsafe { std::slice::from_raw_parts(w.data.add(row * w.stride + b * B::SIZE), B::SIZE) };
                let (codes, scales) = (B::codes(block), B::scales(block));
                for (column, sums) in tile.iter().zip(&mut sums) {
                    // SAFETY: the record has that many parts.
                    unsafe {
                        let x = Q8x256::view(column.record, w.k);
                        if eights {
                            add_eights::<B>(&codes, &scales, &x, b, sums);
                        } else {
                            add_block256::<B>(&codes, &scales, &x, (b, quarters), sums);
                        }
                    }
                }
            }
            for (column, sums) in tile.iter().zip(&sums) {
                let total = if eights { sums.folded() } else { sums.lanes[0] };
                // SAFETY: the result exists.
                unsafe { column.dst.add(row).write_unaligned(if B::HAS_MIN { total - sums.minima } else { total }) };
            }
        }
    }
}

/// Adds block `b` in `quarters` parts.
#[inline(always)]
unsafe fn add_block256<B: Block256>(
    codes: &[u8; block256::LEN],
    scales: &block256::Scales,
    x: &Q8x256,
    (b, quarters): (usize, usize),
    sums: &mut Sums,
) {
    // SAFETY: block b of the record exists.
    unsafe {
        let inputs = x.codes.add(b * block256::LEN).cast::<[i8; block256::LEN]>().read_unaligned();
        let input_sums = x.sums.add(b * block256::GROUPS).cast::<[i16; block256::GROUPS]>().read_unaligned();
        let d = *x.d.add(b);
        let groups = block256::GROUPS / quarters;
        for first in (0..block256::GROUPS).step_by(groups) {
            let (sum, min) = group_sums::<B>(codes, scales, &inputs, &input_sums, first..first + groups);
            let acc = &mut sums.lanes[0];
            *acc = if B::ADDING == Adding::Eights {
                (sum as f32 * scales.d).mul_add(d, *acc)
            } else {
                (scales.d * d).mul_add(sum as f32, *acc)
            };
            if B::HAS_MIN {
                sums.minima = (scales.dmin * d).mul_add(min as f32, sums.minima);
            }
        }
    }
}

/// Lane j takes the elements 4 j to 4 j + 3 of every 32, and what the zero takes away of groups 2 j and 2 j + 1.
#[inline(always)]
unsafe fn add_eights<B: Block256>(
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
        let factor = scales.d * *x.d.add(b);
        for (j, lane) in sums.lanes.iter_mut().enumerate() {
            let four =
                |at: usize| i32::from(scales.scale[at / 16]) * codes_dot(&codes[at..at + 4], &inputs[at..at + 4]);
            let zero = |g: usize| i32::from(scales.scale[g]) * i32::from(input_sums[g]) * i32::from(B::ZERO);
            let dot: i32 = (4 * j..block256::LEN).step_by(32).map(four).sum();
            *lane = factor.mul_add((dot - zero(2 * j) - zero(2 * j + 1)) as f32, *lane);
        }
    }
}

/// Exact sums of scaled products and of minima of some groups of 16.
#[inline(always)]
fn group_sums<B: Block256>(
    w: &[u8],
    scales: &block256::Scales,
    x: &[i8],
    sums: &[i16; 16],
    groups: Range<usize>,
) -> (i32, i32) {
    let (mut sum, mut min) = (0, 0);
    for g in groups {
        let elements = 16 * g..16 * g + 16;
        let dot = codes_dot(&w[elements.clone()], &x[elements]) - i32::from(B::ZERO) * i32::from(sums[g]);
        sum += i32::from(scales.scale[g]) * dot;
        min += i32::from(scales.min[g]) * i32::from(sums[g]);
    }
    (sum, min)
}

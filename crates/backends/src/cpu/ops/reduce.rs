//! Operations that shrink or order rows: SUM_ROWS, MEAN, SUM, ARGMAX, ARGSORT.

use super::each_row;
use crate::cpu::ctx::{Cost, Env, Shared};
use crate::cpu::error::KernelError;
use crate::cpu::isa::multiversion;
use crate::cpu::math::{fold_lanes, lanes};
use crate::cpu::tensor::{NodeArgs, row_at};
use loadmaster_graph::Op;

multiversion! {
    unsafe fn sum_row(x: *const f32, n: usize) -> f64 = sum_body;
}

#[inline(always)]
unsafe fn sum_body(x: *const f32, n: usize) -> f64 {
    // SAFETY: the caller vouches for the row.
    fold_lanes(unsafe { lanes(x, n, 0.0f64, |acc, v| acc + f64::from(v)) })
}

/// SUM_ROWS and MEAN: one number per row.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn sum_rows(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (x, dst) = (node.src(0)?, node.dst);
    node.require(dst.ne == [1, x.ne[1], x.ne[2], x.ne[3]], "the result must have one element per row")?;
    node.require(x.packed_rows(), "rows must be packed")?;
    let (isa, n) = (env.isa, x.ne[0] as usize);
    let divisor = if node.op == Op::Mean { n as f64 } else { 1.0 };
    each_row(env, &x.ne, Cost(1), |_, at| {
        // SAFETY: the row exists in both.
        unsafe { dst.row(at).cast::<f32>().write_unaligned((sum_row(isa, x.row(at).cast(), n) / divisor) as f32) };
    });
    Ok(())
}

/// SUM: one number for everything, rows in order.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn sum(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (x, dst) = (node.src(0)?, node.dst);
    node.require(dst.ne == [1; 4], "the result must have one element")?;
    node.require(x.packed_rows(), "rows must be packed")?;
    let mut total = 0.0;
    for row in 0..x.rows() {
        // SAFETY: the row exists.
        total += unsafe { sum_row(env.isa, x.row(row_at(&x.ne, row)).cast(), x.ne[0] as usize) };
    }
    // SAFETY: the result has one element.
    unsafe { dst.base().cast::<f32>().write_unaligned(total as f32) };
    Ok(())
}

/// ARGMAX: index of the largest element of each row, the first one on a tie.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn argmax(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (x, dst) = (node.src(0)?, node.dst);
    node.require(dst.ne == [x.rows(), 1, 1, 1] && dst.packed_rows(), "the result must have one element per row")?;
    node.require(x.packed_rows() && x.ne[0] > 0, "rows must be packed and not empty")?;
    each_row(env, &x.ne, Cost(2), |_, at| {
        let row = at[0] + x.ne[1] * (at[1] + x.ne[2] * at[2]);
        // SAFETY: the row and the result element exist.
        unsafe {
            let values = x.row(at).cast::<f32>();
            let value = |i: usize| values.add(i).read_unaligned();
            let best = (1..x.ne[0] as usize).fold(0, |best, i| if value(i) > value(best) { i } else { best });
            dst.base().cast::<i32>().add(row as usize).write_unaligned(best as i32);
        }
    });
    Ok(())
}

/// ARGSORT: indices that sort each row, ascending (word 0 = 0) or descending (1); equal elements keep their order.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn argsort(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (x, dst) = (node.src(0)?, node.dst);
    node.require(x.ne == dst.ne, "source and result must have the same extents")?;
    node.require(x.packed_rows() && dst.packed_rows(), "rows must be packed")?;
    let descending = match node.word(0) {
        0 => false,
        1 => true,
        _ => return Err(node.bad_word(0, "the order must be 0 (ascending) or 1 (descending)")),
    };
    let n = x.ne[0] as usize;
    let keys = Shared(env.scratch.per_slot.bytes(env.team.threads() * n * 8).cast::<u64>());
    each_row(env, &x.ne, Cost(40), |slot, at| {
        // SAFETY: the row exists in both; each slot has its own keys, aligned to 8.
        unsafe {
            let keys = std::slice::from_raw_parts_mut(keys.get().add(slot * n), n);
            let values = x.row(at).cast::<f32>();
            for (i, key) in keys.iter_mut().enumerate() {
                let ordered = ordered_bits(values.add(i).read_unaligned());
                let ordered = if descending { !ordered } else { ordered };
                *key = u64::from(ordered) << 32 | i as u64;
            }
            keys.sort_unstable();
            let out = dst.row(at).cast::<i32>();
            for (i, key) in keys.iter().enumerate() {
                out.add(i).write_unaligned(*key as u32 as i32);
            }
        }
    });
    Ok(())
}

/// Bits that sort as the float does; zeros are equal.
fn ordered_bits(value: f32) -> u32 {
    let bits = (value + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

//! NORM, RMS_NORM, L2_NORM: rows scaled by a statistic of theirs. Word 0 is epsilon.

use super::each_row;
use crate::cpu::ctx::{Cost, Env};
use crate::cpu::error::KernelError;
use crate::cpu::isa::multiversion;
use crate::cpu::math::{fold_lanes, lanes, map_row};
use crate::cpu::tensor::NodeArgs;
use loadmaster_graph::Op;

multiversion! {
    unsafe fn rms_norm_row(x: *const f32, y: *mut f32, n: usize, eps: f32) = rms_norm_body;
}
multiversion! {
    unsafe fn l2_norm_row(x: *const f32, y: *mut f32, n: usize, eps: f32) = l2_norm_body;
}
multiversion! {
    unsafe fn norm_row(x: *const f32, y: *mut f32, n: usize, eps: f32) = norm_body;
}

/// Sum of squares: each square in single, the sum in double precision.
#[inline(always)]
unsafe fn sum_of_squares(x: *const f32, n: usize) -> f64 {
    // SAFETY: the caller vouches for the row.
    fold_lanes(unsafe { lanes(x, n, 0.0f64, |acc, v| acc + f64::from(v * v)) })
}

#[inline(always)]
unsafe fn rms_norm_body(x: *const f32, y: *mut f32, n: usize, eps: f32) {
    // SAFETY: the caller vouches for both rows.
    unsafe {
        let mean = (sum_of_squares(x, n) / n as f64) as f32;
        let scale = 1.0 / (mean + eps).sqrt();
        map_row(x, y, n, |v| v * scale);
    }
}

#[inline(always)]
unsafe fn l2_norm_body(x: *const f32, y: *mut f32, n: usize, eps: f32) {
    // SAFETY: the caller vouches for both rows.
    unsafe {
        let length = sum_of_squares(x, n).sqrt() as f32;
        let scale = 1.0 / length.max(eps);
        map_row(x, y, n, |v| v * scale);
    }
}

#[inline(always)]
unsafe fn norm_body(x: *const f32, y: *mut f32, n: usize, eps: f32) {
    // SAFETY: the caller vouches for both rows.
    unsafe {
        let mean = (fold_lanes(lanes(x, n, 0.0f64, |acc, v| acc + f64::from(v))) / n as f64) as f32;
        let spread = |acc: f64, v: f32| acc + f64::from((v - mean) * (v - mean));
        let variance = (fold_lanes(lanes(x, n, 0.0f64, spread)) / n as f64) as f32;
        let scale = 1.0 / (variance + eps).sqrt();
        map_row(x, y, n, |v| (v - mean) * scale);
    }
}

/// `dst = src0` with every row normalised.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn norm(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (x, dst) = (node.src(0)?, node.dst);
    node.require(x.ne == dst.ne, "source and result must have the same extents")?;
    node.require(x.packed_rows() && dst.packed_rows(), "rows must be packed")?;
    let eps = node.float(0);
    if eps.is_nan() || eps < 0.0 {
        return Err(node.bad_word(0, "epsilon must not be negative"));
    }
    let row = match node.op {
        Op::RmsNorm => rms_norm_row,
        Op::L2Norm => l2_norm_row,
        _ => norm_row,
    };
    let isa = env.isa;
    each_row(env, &dst.ne, Cost(2), |_, at| {
        // SAFETY: the row exists in both.
        unsafe { row(isa, x.row(at).cast(), dst.row(at).cast(), dst.ne[0] as usize, eps) };
    });
    Ok(())
}

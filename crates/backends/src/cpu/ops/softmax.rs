//! SOFT_MAX: `softmax(src0 · scale + slope · mask)`, with an optional sink per head that only takes weight away.

use super::each_row;
use crate::cpu::ctx::{Cost, Env};
use crate::cpu::element::{Element, F16};
use crate::cpu::error::KernelError;
use crate::cpu::isa::multiversion;
use crate::cpu::math::{LANES, exp, fold_lanes, lanes, map_row, zip_rows};
use crate::cpu::tensor::{NodeArgs, TensorRef};
use loadmaster_graph::DType;

/// Slopes of ALiBi: a geometric sequence over the heads, in two interleaved parts where their number is no power of two.
#[derive(Clone, Copy)]
pub(crate) struct Slopes {
    max_bias: f32,
    /// Heads in the first part.
    pub(crate) whole: u32,
    /// What the first part's slopes are powers of.
    pub(crate) m0: f32,
    /// What the second part's are odd powers of.
    pub(crate) m1: f32,
}

impl Slopes {
    /// For `heads` heads; `max_bias` 0 means slope 1 for all.
    pub(crate) fn new(max_bias: f32, heads: u64) -> Self {
        let whole = 1u32 << heads.max(1).ilog2().min(31);
        let base = |bias: f32| 2.0f32.powf(-bias / whole as f32);
        Self { max_bias, whole, m0: base(max_bias), m1: base(max_bias / 2.0) }
    }

    /// The slope of a head.
    pub(crate) fn of(&self, head: u64) -> f32 {
        if self.max_bias <= 0.0 {
            return 1.0;
        }
        let whole = u64::from(self.whole);
        if head < whole { self.m0.powf((head + 1) as f32) } else { self.m1.powf((2 * (head - whole) + 1) as f32) }
    }
}

/// The types a soft maximum takes.
pub(crate) fn types_fit(x: DType, mask: Option<DType>, sinks: Option<DType>, dst: DType) -> bool {
    x == DType::F32
        && dst == DType::F32
        && mask.is_none_or(|m| matches!(m, DType::F32 | DType::F16))
        && sinks.is_none_or(|s| s == DType::F32)
}

multiversion! {
    unsafe fn biased_f32(x: *const f32, mask: *const u8, y: *mut f32, n: usize, scale: f32, slope: f32) = biased::<f32>;
}
multiversion! {
    unsafe fn biased_f16(x: *const f32, mask: *const u8, y: *mut f32, n: usize, scale: f32, slope: f32) = biased::<F16>;
}

/// y = x · scale + slope · mask, and −∞ where the mask is, whatever stands in a masked cell of a cache that was never
/// written. y may stand on x, or on a mask of the same type.
#[inline(always)]
unsafe fn biased<M: Element>(x: *const f32, mask: *const u8, y: *mut f32, n: usize, scale: f32, slope: f32) {
    // SAFETY: the same contract.
    unsafe { zip_rows(x, mask.cast::<M>(), y, n, |v, bias| masked(v * scale, slope, bias.to_f32())) };
}

#[inline(always)]
fn masked(score: f32, slope: f32, bias: f32) -> f32 {
    if bias == f32::NEG_INFINITY { bias } else { score + slope * bias }
}

multiversion! {
    unsafe fn scaled(x: *const f32, y: *mut f32, n: usize, scale: f32) = scaled_body;
}

#[inline(always)]
unsafe fn scaled_body(x: *const f32, y: *mut f32, n: usize, scale: f32) {
    // SAFETY: the same contract.
    unsafe { map_row(x, y, n, |v| v * scale) };
}

multiversion! {
    /// Turns a row of scores into weights in place. A row without any score above −∞ becomes zeros.
    ///
    /// # Safety
    /// `y` must be valid for `n` reads and writes.
    pub(crate) unsafe fn weights_in_place(y: *mut f32, n: usize, sink: f32) = weights_body;
}

#[inline(always)]
unsafe fn weights_body(y: *mut f32, n: usize, sink: f32) {
    // SAFETY: the caller vouches for the row.
    unsafe {
        let max = maximum(y, n, sink);
        if max == f32::NEG_INFINITY {
            map_row(y, y, n, |_| 0.0);
            return;
        }
        map_row(y, y, n, |v| exp(v - max));
        let sum = sum_of_weights(y, n) + f64::from(exp(sink - max));
        let inverse = (1.0 / sum) as f32;
        map_row(y, y, n, |v| v * inverse);
    }
}

/// Sixteen weights at a time in single, their sums in double precision, as the reference does. Zeros behind the row do
/// not change the sum.
#[inline(always)]
unsafe fn sum_of_weights(y: *const f32, n: usize) -> f64 {
    let whole = n / LANES * LANES;
    // SAFETY: the caller vouches for the row.
    unsafe {
        let mut sum = 0.0;
        for i in (0..whole).step_by(LANES) {
            sum += f64::from(fold_lanes(y.add(i).cast::<[f32; LANES]>().read_unaligned()));
        }
        let mut rest = [0.0f32; LANES];
        for i in whole..n {
            rest[i - whole] = y.add(i).read_unaligned();
        }
        sum + f64::from(fold_lanes(rest))
    }
}

/// The largest score, the sink's included; NaN does not count.
#[inline(always)]
pub(crate) unsafe fn maximum(y: *const f32, n: usize, sink: f32) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    // SAFETY: the caller vouches for the row.
    unsafe { lanes(y, n, f32::NEG_INFINITY, larger) }.into_iter().fold(sink, larger)
}

/// Words: scale, max_bias. Sources: scores, mask (rows and heads repeat), sinks (one per head).
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn soft_max(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (x, mask, sinks, dst) = (node.src(0)?, node.optional(1), node.optional(2), node.dst);
    node.require(x.ne == dst.ne, "source and result must have the same extents")?;
    node.require(x.packed_rows() && dst.packed_rows(), "rows must be packed")?;
    if let Some(m) = mask {
        node.require(m.packed_rows() && m.ne[0] >= dst.ne[0] && m.ne[1] >= dst.ne[1], "the mask must cover a head")?;
        node.require(m.ne[2] > 0 && m.ne[3] > 0, "the mask must not be empty")?;
    }
    if let Some(s) = sinks {
        node.require(s.packed_rows() && s.ne[0] >= dst.ne[2], "there must be a sink for each head")?;
    }
    let (scale, slopes) = (node.float(0), Slopes::new(node.float(1), dst.ne[2]));
    let (isa, n) = (env.isa, dst.ne[0] as usize);
    each_row(env, &dst.ne, Cost(6), |_, at| {
        // SAFETY: the row exists; mask indices wrap; there is a sink for each head.
        unsafe {
            let (from, to) = (x.row(at).cast::<f32>(), dst.row(at).cast::<f32>());
            match mask {
                None => scaled(isa, from, to, n, scale),
                Some(m) => {
                    let bias = mask_row(&m, at);
                    let slope = slopes.of(at[1]);
                    match m.dtype {
                        DType::F16 => biased_f16(isa, from, bias, to, n, scale, slope),
                        _ => biased_f32(isa, from, bias, to, n, scale, slope),
                    }
                }
            }
            let sink = sinks.map_or(f32::NEG_INFINITY, |s| s.base().cast::<f32>().add(at[1] as usize).read_unaligned());
            weights_in_place(isa, to, n, sink);
        }
    });
    Ok(())
}

/// The mask's row for a row of scores: same row, head and batch repeated.
unsafe fn mask_row(m: &TensorRef, at: [u64; 3]) -> *const u8 {
    // SAFETY: the row is below the extent (checked), the others are reduced.
    unsafe { m.row([at[0], at[1] % m.ne[2], at[2] % m.ne[3]]) }
}

multiversion! {
    /// Scores of one query to unnormalised weights in place: `e^(score · scale + slope · mask − max)`. Returns the sum,
    /// the sink's weight included; 0 if no key may be seen. `mask` (halves) may be null.
    ///
    /// # Safety
    /// `y` must be valid for `n` reads and writes, `mask` for `n` reads unless null.
    pub(crate) unsafe fn scores_to_weights(
        y: *mut f32,
        n: usize,
        scale: f32,
        mask: *const u16,
        slope: f32,
        sink: Option<f32>,
    ) -> f32 = scores_body;
}

#[inline(always)]
unsafe fn scores_body(y: *mut f32, n: usize, scale: f32, mask: *const u16, slope: f32, sink: Option<f32>) -> f32 {
    // SAFETY: the caller vouches for the row and the mask.
    unsafe {
        if mask.is_null() {
            map_row(y, y, n, |v| v * scale);
        } else {
            biased::<F16>(y, mask.cast(), y, n, scale, slope);
        }
        let max = maximum(y, n, sink.unwrap_or(f32::NEG_INFINITY));
        if max == f32::NEG_INFINITY {
            map_row(y, y, n, |_| 0.0);
            return 0.0;
        }
        map_row(y, y, n, |v| exp(v - max));
        let sum = sum_of_weights(y, n);
        (sum + sink.map_or(0.0, |s| f64::from(exp(s - max)))) as f32
    }
}

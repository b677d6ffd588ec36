//! Element-wise operations of one source, SCALE and CLAMP.

use super::each_row;
use crate::cpu::ctx::{Cost, Env};
use crate::cpu::element::{Element, is_float, with_element};
use crate::cpu::error::KernelError;
use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::math::{self, map_row};
use crate::cpu::quant::{f16_to_f32, f32_to_f16};
use crate::cpu::tensor::{NodeArgs, TensorMut, TensorRef};
use loadmaster_graph::{DType, Op};
use std::sync::LazyLock;

type Row = unsafe fn(Isa, *const f32, *mut f32, usize);

/// An operation on rows with what one element costs.
#[derive(Clone, Copy)]
struct Kernel {
    row: Row,
    one: fn(f32) -> f32,
    cost: u64,
}

macro_rules! kernels {
    ($($op:ident, $row:ident, $body:ident, $cost:literal: $f:expr;)*) => {
        $(
            multiversion! {
                unsafe fn $row(x: *const f32, y: *mut f32, n: usize) = $body;
            }
            #[inline(always)]
            unsafe fn $body(x: *const f32, y: *mut f32, n: usize) {
                // SAFETY: the same contract.
                unsafe { map_row(x, y, n, $f) };
            }
        )*
        fn kernel(op: Op) -> Option<Kernel> {
            Some(match op {
                $(Op::$op => Kernel { row: $row, one: $f, cost: $cost },)*
                _ => return None,
            })
        }
    };
}
kernels! {
    Abs, abs_row, abs_body, 1: |x| x.abs();
    Sgn, sgn_row, sgn_body, 1: |x| if x > 0.0 { 1.0 } else if x < 0.0 { -1.0 } else { 0.0 };
    Neg, neg_row, neg_body, 1: |x| -x;
    Step, step_row, step_body, 1: |x| if x > 0.0 { 1.0 } else { 0.0 };
    Relu, relu_row, relu_body, 1: |x| if x > 0.0 { x } else { 0.0 };
    Sqr, sqr_row, sqr_body, 1: |x| x * x;
    Sqrt, sqrt_row, sqrt_body, 4: |x| x.sqrt();
    Floor, floor_row, floor_body, 2: |x| x.floor();
    Ceil, ceil_row, ceil_body, 2: |x| x.ceil();
    Round, round_row, round_body, 2: |x| x.round();
    Trunc, trunc_row, trunc_body, 2: |x| x.trunc();
    Exp, exp_row, exp_body, 4: math::exp;
    Expm1, expm1_row, expm1_body, 4: |x| math::exp(x) - 1.0;
    Sigmoid, sigmoid_row, sigmoid_body, 5: math::sigmoid;
    Silu, silu_row, silu_body, 5: math::silu;
    Tanh, tanh_row, tanh_body, 30: |x| x.tanh();
    Elu, elu_row, elu_body, 30: |x| if x > 0.0 { x } else { x.exp_m1() };
    Log, log_row, log_body, 20: |x| x.ln();
    Sin, sin_row, sin_body, 20: |x| x.sin();
    Cos, cos_row, cos_body, 20: |x| x.cos();
    Softplus, softplus_row, softplus_body, 30: |x| if x > 20.0 { x } else { math::exp(x).ln_1p() };
    Hardswish, hardswish_row, hardswish_body, 4: |x| x * ((x + 3.0) / 6.0).clamp(0.0, 1.0);
    Hardsigmoid, hardsigmoid_row, hardsigmoid_body, 4: |x| ((x + 3.0) / 6.0).clamp(0.0, 1.0);
    Gelu, gelu_row, gelu_body, 8: gelu;
    GeluQuick, gelu_quick_row, gelu_quick_body, 8: gelu_quick;
    GeluErf, gelu_erf_row, gelu_erf_body, 60: gelu_erf;
}

type HalfTable = Box<[u16]>;

fn table(f: impl Fn(f32) -> f32) -> HalfTable {
    (0..=u16::MAX).map(|bits| f32_to_f16(f(f16_to_f32(bits)))).collect()
}

/// GELU through a table over halves, as the reference does: argument and result are rounded to half.
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    static TABLE: LazyLock<HalfTable> = LazyLock::new(|| table(math::gelu_tanh));
    if x <= -10.0 {
        0.0
    } else if x >= 10.0 {
        x
    } else {
        f16_to_f32(TABLE[usize::from(f32_to_f16(x))])
    }
}

/// x · sigmoid(1.702 x) through a table over halves.
#[inline(always)]
pub(crate) fn gelu_quick(x: f32) -> f32 {
    static TABLE: LazyLock<HalfTable> = LazyLock::new(|| table(math::gelu_sigmoid));
    f16_to_f32(TABLE[usize::from(f32_to_f16(x))])
}

/// GELU by the error function.
#[inline(always)]
pub(crate) fn gelu_erf(x: f32) -> f32 {
    (0.5 * f64::from(x) * (1.0 + math::erf(f64::from(x) * std::f64::consts::FRAC_1_SQRT_2))) as f32
}

/// Whether `op` stands in this table.
pub(crate) fn is_unary(op: Op) -> bool {
    kernel(op).is_some()
}

/// Types the element-wise operations take.
pub(crate) fn types_fit(src: DType, dst: DType) -> bool {
    is_float(src) && is_float(dst)
}

/// `dst = f(src0)`.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn unary(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let Some(kernel) = kernel(node.op) else { return Err(node.unsupported()) };
    let row = |isa: Isa, x: *const f32, y: *mut f32, n: usize| {
        // SAFETY: `apply` passes rows.
        unsafe { (kernel.row)(isa, x, y, n) }
    };
    // SAFETY: the same contract.
    unsafe { apply(env, node, Cost(kernel.cost), row, kernel.one) }
}

multiversion! {
    /// y = x · s + b.
    ///
    /// # Safety
    /// As [`map_row`].
    pub(crate) unsafe fn scale_row(x: *const f32, y: *mut f32, n: usize, s: f32, b: f32) = scale_body;
}

#[inline(always)]
unsafe fn scale_body(x: *const f32, y: *mut f32, n: usize, s: f32, b: f32) {
    // SAFETY: the same contract.
    unsafe {
        if b == 0.0 {
            map_row(x, y, n, |x| x * s);
        } else {
            map_row(x, y, n, |x| x * s + b);
        }
    }
}

/// `dst = src0 · word0 + word1`.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn scale(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (s, b) = (node.float(0), node.float(1));
    let row = |isa: Isa, x: *const f32, y: *mut f32, n: usize| {
        // SAFETY: `apply` passes rows.
        unsafe { scale_row(isa, x, y, n, s, b) }
    };
    // SAFETY: the same contract.
    unsafe { apply(env, node, Cost(1), row, |x| if b == 0.0 { x * s } else { x * s + b }) }
}

multiversion! {
    unsafe fn clamp_row(x: *const f32, y: *mut f32, n: usize, low: f32, high: f32) = clamp_body;
}

#[inline(always)]
fn clamp_one(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

#[inline(always)]
unsafe fn clamp_body(x: *const f32, y: *mut f32, n: usize, low: f32, high: f32) {
    // SAFETY: the same contract.
    unsafe { map_row(x, y, n, |x| clamp_one(x, low, high)) };
}

/// `dst = src0` limited to word0..=word1.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn clamp(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (low, high) = (node.float(0), node.float(1));
    let row = |isa: Isa, x: *const f32, y: *mut f32, n: usize| {
        // SAFETY: `apply` passes rows.
        unsafe { clamp_row(isa, x, y, n, low, high) }
    };
    // SAFETY: the same contract.
    unsafe { apply(env, node, Cost(1), row, |x| clamp_one(x, low, high)) }
}

/// `dst = word0` everywhere.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn fill(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (value, dst) = (node.float(0), node.dst);
    with_element!(dst.dtype, D => {
        each_row(env, &dst.ne, Cost(1), |_, at| for i in 0..dst.ne[0] {
            // SAFETY: the element exists.
            unsafe { dst.row(at).add((i * dst.nb[0]) as usize).cast::<D>().write_unaligned(D::from_f32(value)) };
        });
        Ok(())
    }, else Err(node.unsupported()))
}

/// Applies a function to every element: by rows for packed F32, one by one otherwise.
unsafe fn apply(
    env: &Env<'_>,
    node: &NodeArgs<'_>,
    cost: Cost,
    row: impl Fn(Isa, *const f32, *mut f32, usize) + Sync,
    one: impl Fn(f32) -> f32 + Sync,
) -> Result<(), KernelError> {
    let (x, dst) = (node.src(0)?, node.dst);
    node.require(x.ne == dst.ne, "source and result must have the same extents")?;
    let isa = env.isa;
    if (x.dtype, dst.dtype) != (DType::F32, DType::F32) || !x.packed_rows() || !dst.packed_rows() {
        with_element!(x.dtype, X => with_element!(dst.dtype, D =>
            // SAFETY: the types are those of the tensors.
            unsafe { one_by_one::<X, D>(env, x, dst, one) },
            else ()), else ());
        return Ok(());
    }
    if x.contiguous() && dst.contiguous() {
        env.team.split(dst.elements() as usize, 256, cost, |_, range| {
            // SAFETY: the range lies inside both tensors.
            unsafe {
                row(isa, x.base().add(range.start * 4).cast(), dst.base().add(range.start * 4).cast(), range.len());
            }
        });
        return Ok(());
    }
    each_row(env, &dst.ne, cost, |_, at| {
        // SAFETY: the row exists in both.
        unsafe { row(isa, x.row(at).cast(), dst.row(at).cast(), dst.ne[0] as usize) };
    });
    Ok(())
}

unsafe fn one_by_one<X: Element, D: Element>(
    env: &Env<'_>,
    x: TensorRef,
    dst: TensorMut,
    f: impl Fn(f32) -> f32 + Sync,
) {
    each_row(env, &dst.ne, Cost(8), |_, at| {
        for i in 0..dst.ne[0] {
            // SAFETY: i is below the extent; the row exists in both.
            unsafe {
                let value = x.row(at).add((i * x.nb[0]) as usize).cast::<X>().read_unaligned().to_f32();
                dst.row(at).add((i * dst.nb[0]) as usize).cast::<D>().write_unaligned(D::from_f32(f(value)));
            }
        }
    });
}

//! Gated linear units: `dst = f(x) · g`, halves of one source or two sources.

use super::each_row;
use super::unary::{gelu, gelu_erf, gelu_quick};
use crate::cpu::ctx::{Cost, Env};
use crate::cpu::error::KernelError;
use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::math::{self, zip_rows};
use crate::cpu::tensor::{NodeArgs, TensorRef};
use loadmaster_graph::{DType, Op};

type Row = unsafe fn(Isa, *const f32, *const f32, *mut f32, usize, f32, f32);

macro_rules! gates {
    ($($op:ident, $row:ident, $body:ident: $f:expr;)*) => {
        $(
            multiversion! {
                unsafe fn $row(x: *const f32, g: *const f32, y: *mut f32, n: usize, alpha: f32, limit: f32) = $body;
            }
            #[inline(always)]
            unsafe fn $body(x: *const f32, g: *const f32, y: *mut f32, n: usize, alpha: f32, limit: f32) {
                let f = $f(alpha, limit);
                // SAFETY: the same contract.
                unsafe { zip_rows(x, g, y, n, f) };
            }
        )*
        fn kernel(op: Op) -> Option<Row> {
            Some(match op {
                $(Op::$op => $row,)*
                _ => return None,
            })
        }
    };
}
gates! {
    Reglu, reglu_row, reglu_body: |_, _| |x: f32, g: f32| if x > 0.0 { x * g } else { 0.0 };
    Geglu, geglu_row, geglu_body: |_, _| |x: f32, g: f32| gelu(x) * g;
    GegluErf, geglu_erf_row, geglu_erf_body: |_, _| |x: f32, g: f32| gelu_erf(x) * g;
    GegluQuick, geglu_quick_row, geglu_quick_body: |_, _| |x: f32, g: f32| gelu_quick(x) * g;
    Swiglu, swiglu_row, swiglu_body: |_, _| |x: f32, g: f32| math::silu(x) * g;
    SwigluOai, swiglu_oai_row, swiglu_oai_body: |alpha: f32, limit: f32| move |x: f32, g: f32| {
        let x = at_most(x, limit);
        x / (1.0 + math::exp(alpha * -x)) * (within(g, limit) + 1.0)
    };
    SwigluClamp, swiglu_clamp_row, swiglu_clamp_body: |_, limit: f32| move |x: f32, g: f32| {
        math::silu(at_most(x, limit)) * within(g, limit)
    };
}

#[inline(always)]
fn at_most(x: f32, limit: f32) -> f32 {
    if x > limit { limit } else { x }
}

#[inline(always)]
fn within(x: f32, limit: f32) -> f32 {
    let x = at_most(x, limit);
    if x < -limit { -limit } else { x }
}

/// Types a gate takes.
pub(crate) fn types_fit(x: DType, g: Option<DType>, dst: DType) -> bool {
    x == DType::F32 && g.unwrap_or(x) == DType::F32 && dst == DType::F32
}

/// Word 1: halves swapped; words 2 and 3: alpha and limit.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn glu(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let Some(row) = kernel(node.op) else { return Err(node.unsupported()) };
    let dst = node.dst;
    let (x, g) = operands(node)?;
    node.require(x.packed_rows() && g.packed_rows() && dst.packed_rows(), "rows must be packed")?;
    let (isa, alpha, limit) = (env.isa, node.float(2), node.float(3));
    each_row(env, &dst.ne, Cost(6), |_, at| {
        // SAFETY: the row exists in all three.
        unsafe { row(isa, x.row(at).cast(), g.row(at).cast(), dst.row(at).cast(), dst.ne[0] as usize, alpha, limit) };
    });
    Ok(())
}

/// What goes through the function and what multiplies it, both with the result's extents.
fn operands(node: &NodeArgs<'_>) -> Result<(TensorRef, TensorRef), KernelError> {
    let (a, dst) = (node.src(0)?, node.dst);
    if let Some(b) = node.optional(1) {
        node.require(a.ne == dst.ne && b.ne == dst.ne, "both sources must have the result's extents")?;
        return Ok((a, b));
    }
    let halved = [a.ne[0] / 2, a.ne[1], a.ne[2], a.ne[3]];
    node.require(a.ne[0] % 2 == 0 && halved == dst.ne, "the result must be half as wide as the source")?;
    let first = TensorRef { ne: halved, ..a };
    // SAFETY: the second half of every row lies inside the source.
    let second = TensorRef { data: unsafe { a.base().add((halved[0] * a.nb[0]) as usize) }, ..first };
    Ok(if node.int(1) == 0 { (first, second) } else { (second, first) })
}

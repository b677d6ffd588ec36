//! ADD, SUB, MUL, DIV with broadcasting, and ADD_ID.

use super::each_row;
use crate::cpu::ctx::{Cost, Env};
use crate::cpu::element::{self, Element, with_element};
use crate::cpu::error::KernelError;
use crate::cpu::isa::{Isa, multiversion};
use crate::cpu::math::{map_row, zip_rows};
use crate::cpu::tensor::{NodeArgs, TensorMut, TensorRef, repeats_into};
use loadmaster_graph::{DType, Op};

type PairRow = unsafe fn(Isa, *const f32, *const f32, *mut f32, usize);
type ScalarRow = unsafe fn(Isa, *const f32, f32, *mut f32, usize);

macro_rules! pair_rows {
    ($($pair:ident, $pair_body:ident, $scalar:ident, $scalar_body:ident: $op:tt;)*) => {$(
        multiversion! {
            unsafe fn $pair(a: *const f32, b: *const f32, y: *mut f32, n: usize) = $pair_body;
        }
        multiversion! {
            unsafe fn $scalar(a: *const f32, b: f32, y: *mut f32, n: usize) = $scalar_body;
        }
        #[inline(always)]
        unsafe fn $pair_body(a: *const f32, b: *const f32, y: *mut f32, n: usize) {
            // SAFETY: the same contract.
            unsafe { zip_rows(a, b, y, n, |a, b| a $op b) };
        }
        #[inline(always)]
        unsafe fn $scalar_body(a: *const f32, b: f32, y: *mut f32, n: usize) {
            // SAFETY: the same contract.
            unsafe { map_row(a, y, n, |a| a $op b) };
        }
    )*};
}
pair_rows! {
    add_rows, add_rows_body, add_scalar, add_scalar_body: +;
    sub_rows, sub_rows_body, sub_scalar, sub_scalar_body: -;
    mul_rows, mul_rows_body, mul_scalar, mul_scalar_body: *;
    div_rows, div_rows_body, div_scalar, div_scalar_body: /;
}

#[derive(Clone, Copy)]
struct Kernel {
    pair: PairRow,
    scalar: ScalarRow,
    one: fn(f32, f32) -> f32,
}

fn kernel(op: Op) -> Kernel {
    match op {
        Op::Sub => Kernel { pair: sub_rows, scalar: sub_scalar, one: |a, b| a - b },
        Op::Mul => Kernel { pair: mul_rows, scalar: mul_scalar, one: |a, b| a * b },
        Op::Div => Kernel { pair: div_rows, scalar: div_scalar, one: |a, b| a / b },
        _ => Kernel { pair: add_rows, scalar: add_scalar, one: |a, b| a + b },
    }
}

/// Types the element-wise pairs take.
pub(crate) fn types_fit(a: DType, b: DType, dst: DType) -> bool {
    [a, b, dst].into_iter().all(element::is_float)
}

/// `dst = src0 ∘ src1`, src1 repeated over dst.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn pair(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (a, b, dst) = (node.src(0)?, node.src(1)?, node.dst);
    node.require(a.ne == dst.ne, "the first source must have the result's extents")?;
    node.require(repeats_into(&b.ne, &dst.ne), "the second source must repeat into the result")?;
    let kernel = kernel(node.op);
    let all_f32 = [a.dtype, b.dtype, dst.dtype] == [DType::F32; 3];
    let packed = a.packed_rows() && b.packed_rows() && dst.packed_rows();
    if !(all_f32 && packed) {
        // SAFETY: the same contract.
        unsafe { strided(env, node.op, a, b, dst) };
        return Ok(());
    }
    let isa = env.isa;
    if a.ne == b.ne && a.contiguous() && b.contiguous() && dst.contiguous() {
        env.team.split(dst.elements() as usize, 256, Cost(1), |_, range| {
            let (at, n) = (range.start * 4, range.len());
            // SAFETY: the range lies inside all three tensors.
            unsafe {
                (kernel.pair)(isa, a.base().add(at).cast(), b.base().add(at).cast(), dst.base().add(at).cast(), n);
            }
        });
        return Ok(());
    }
    let width = b.ne[0] as usize;
    each_row(env, &dst.ne, Cost(1), |_, at| {
        // SAFETY: the row exists in all three; src1's indices wrap.
        unsafe {
            let (x, w, y) = (a.row(at).cast::<f32>(), b.row_broadcast(at).cast::<f32>(), dst.row(at).cast::<f32>());
            if width == 1 {
                (kernel.scalar)(isa, x, w.read_unaligned(), y, dst.ne[0] as usize);
                return;
            }
            for start in (0..dst.ne[0] as usize).step_by(width) {
                (kernel.pair)(isa, x.add(start), w, y.add(start), width);
            }
        }
    });
    Ok(())
}

/// Any float types and strides, element by element.
unsafe fn strided(env: &Env<'_>, op: Op, a: TensorRef, b: TensorRef, dst: TensorMut) {
    let f = kernel(op).one;
    with_element!(a.dtype, A => with_element!(b.dtype, B => with_element!(dst.dtype, D =>
        // SAFETY: the types are those of the tensors.
        unsafe { strided_typed::<A, B, D>(env, f, a, b, dst) },
        else ()), else ()), else ());
}

unsafe fn strided_typed<A: Element, B: Element, D: Element>(
    env: &Env<'_>,
    f: fn(f32, f32) -> f32,
    a: TensorRef,
    b: TensorRef,
    dst: TensorMut,
) {
    each_row(env, &dst.ne, Cost(8), |_, at| {
        for i in 0..dst.ne[0] {
            let j = i % b.ne[0];
            // SAFETY: i and j are below the extents; the row exists in all three.
            unsafe {
                let x = a.row(at).add((i * a.nb[0]) as usize).cast::<A>().read_unaligned().to_f32();
                let w = b.row_broadcast(at).add((j * b.nb[0]) as usize).cast::<B>().read_unaligned().to_f32();
                dst.row(at).add((i * dst.nb[0]) as usize).cast::<D>().write_unaligned(D::from_f32(f(x, w)));
            }
        }
    });
}

/// `dst[:, i, t] = src0[:, i, t] + src1[:, src2[i, t]]`.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn add_id(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (a, b, ids, dst) = (node.src(0)?, node.src(1)?, node.src(2)?, node.dst);
    node.require(a.ne == dst.ne, "the first source must have the result's extents")?;
    node.require(b.ne[0] == dst.ne[0], "rows of the second source must be as long as the result's")?;
    node.require(ids.ne[0] == dst.ne[1] && ids.ne[1] == dst.ne[2], "there must be an index for each row")?;
    node.require(a.packed_rows() && b.packed_rows() && dst.packed_rows(), "rows must be packed")?;
    // SAFETY: the index tensor is valid for its layout.
    unsafe { check_ids(node, &ids, b.ne[1])? };
    let isa = env.isa;
    each_row(env, &dst.ne, Cost(1), |_, at| {
        // SAFETY: the row exists, and its index was checked.
        unsafe {
            let id = ids.base().add((at[0] * ids.nb[0] + at[1] * ids.nb[1]) as usize).cast::<i32>().read_unaligned();
            let w = b.row([id as u64, 0, 0]).cast();
            add_rows(isa, a.row(at).cast(), w, dst.row(at).cast(), dst.ne[0] as usize);
        }
    });
    Ok(())
}

/// Every index of a two-dimensional I32 tensor (operand 2) must name a row.
///
/// # Safety
/// `ids` must be valid for its layout.
pub(crate) unsafe fn check_ids(node: &NodeArgs<'_>, ids: &TensorRef, rows: u64) -> Result<(), KernelError> {
    for t in 0..ids.ne[1] {
        for i in 0..ids.ne[0] {
            // SAFETY: both indices are below the extents.
            let id = unsafe { ids.base().add((i * ids.nb[0] + t * ids.nb[1]) as usize).cast::<i32>().read_unaligned() };
            if !u64::try_from(id).is_ok_and(|id| id < rows) {
                return Err(node.bad_index(2, i64::from(id), rows));
            }
        }
    }
    Ok(())
}

//! From an operation and its types to a kernel.

use super::ctx::{ComputeCtx, Env};
use super::error::KernelError;
use super::tensor::NodeArgs;
use super::{attention, element, matmul, ops};
use loadmaster_graph::{DType, Op, OpKind};

/// A kernel. Its contract is that of [`compute`].
type Kernel = unsafe fn(&mut Env<'_>, &NodeArgs<'_>) -> Result<(), KernelError>;

/// The types of a node, missing sources as `None`.
struct Signature<'a> {
    src: &'a [Option<DType>],
    dst: DType,
}

impl Signature<'_> {
    fn src(&self, i: usize) -> Option<DType> {
        self.src.get(i).copied().flatten()
    }
    /// Whether source 0 is there and passes.
    fn one(&self, fits: impl Fn(DType, DType) -> bool) -> bool {
        self.src(0).is_some_and(|a| fits(a, self.dst))
    }
    /// Whether sources 0 and 1 are there and pass.
    fn two(&self, fits: impl Fn(DType, DType, DType) -> bool) -> bool {
        self.src(0).zip(self.src(1)).is_some_and(|(a, b)| fits(a, b, self.dst))
    }
}

/// The kernel of a node, if there is one for its types.
fn kernel(op: Op, types: &Signature<'_>) -> Option<Kernel> {
    let f32_only = |a: DType, dst: DType| a == DType::F32 && dst == DType::F32;
    let (fits, kernel): (bool, Kernel) = match op {
        Op::None | Op::View | Op::Reshape | Op::Permute | Op::Transpose => (true, nothing),
        Op::Add | Op::Sub | Op::Mul | Op::Div => (types.two(ops::binary::types_fit), ops::binary::pair),
        Op::AddId => {
            let ids = types.src(2) == Some(DType::I32);
            (ids && types.two(|a, b, d| [a, b, d] == [DType::F32; 3]), ops::binary::add_id)
        }
        Op::Scale => (types.one(ops::unary::types_fit), ops::unary::scale),
        Op::Clamp => (types.one(ops::unary::types_fit), ops::unary::clamp),
        Op::Fill => (element::is_float(types.dst), ops::unary::fill),
        Op::Norm | Op::RmsNorm | Op::L2Norm => (types.one(f32_only), ops::norm::norm),
        Op::Dup | Op::Cpy | Op::Cont => (types.one(ops::copy::types_fit), ops::copy::copy),
        Op::GetRows => (types.two(ops::rows::get_types_fit), ops::rows::get_rows),
        Op::SetRows => (types.two(ops::rows::set_types_fit), ops::rows::set_rows),
        Op::Repeat => (types.one(ops::layout::types_fit), ops::layout::repeat),
        Op::Concat => (types.two(|a, b, d| ops::layout::types_fit(a, d) && a == b), ops::layout::concat),
        Op::SumRows | Op::Mean => (types.one(f32_only), ops::reduce::sum_rows),
        Op::Sum => (types.one(f32_only), ops::reduce::sum),
        Op::Argmax => (types.one(|a, d| a == DType::F32 && d == DType::I32), ops::reduce::argmax),
        Op::Argsort => (types.one(|a, d| a == DType::F32 && d == DType::I32), ops::reduce::argsort),
        Op::SoftMax => {
            let (mask, sinks) = (types.src(1), types.src(2));
            (types.one(|a, d| ops::softmax::types_fit(a, mask, sinks, d)), ops::softmax::soft_max)
        }
        Op::Rope => {
            let factors = types.src(2);
            (types.two(|x, pos, d| ops::rope::types_fit(x, pos, factors, d)), ops::rope::rope)
        }
        Op::MulMat => (types.two(matmul::types_fit), matmul::mul_mat),
        Op::MulMatId => (types.src(2) == Some(DType::I32) && types.two(matmul::types_fit), matmul::mul_mat_id),
        Op::FlashAttnExt => {
            let (v, mask) = (types.src(2), types.src(3));
            let fits = |q, k, d| v.is_some_and(|v| attention::types_fit(q, k, v, mask, d));
            (types.two(fits), attention::flash_attn)
        }
        _ if ops::unary::is_unary(op) => (types.one(ops::unary::types_fit), ops::unary::unary),
        _ if op.kind() == OpKind::Glu => {
            let gate = types.src(1);
            (types.one(|x, d| ops::glu::types_fit(x, gate, d)), ops::glu::glu)
        }
        _ => return None,
    };
    fits.then_some(kernel)
}

/// Operations that only rename bytes.
unsafe fn nothing(_: &mut Env<'_>, _: &NodeArgs<'_>) -> Result<(), KernelError> {
    Ok(())
}

/// Whether [`compute`] has a kernel for an operation on these types. Shapes and parameters are checked when the node
/// is computed. A pure function of its arguments.
#[must_use]
pub fn supports(op: Op, src: &[Option<DType>], dst: DType) -> bool {
    kernel(op, &Signature { src, dst }).is_some()
}

/// Computes one node, with ggml's meaning of operands and parameter words.
///
/// # Errors
/// Types without a kernel, missing operands, shapes, parameters or indices that break the operation's rules. The
/// result's bytes are then unspecified; nothing outside the result is written.
///
/// # Safety
/// Every source must be valid for reading and the result for reading and writing, over all bytes of their layouts, for
/// the whole call. Plain elements must be aligned to their size (quantized blocks need no alignment). The result must
/// not overlap a source, unless that source is listed in [`super::in_place`] and has the result's exact address and
/// layout.
pub unsafe fn compute(ctx: &ComputeCtx, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let mut node = Some(*node);
    // SAFETY: the same contract.
    unsafe { compute_many(ctx, &mut || node.take()) }
}

/// Computes nodes in order until `next` gives none. Threads are woken once for the whole list, so this is how a split
/// is run.
///
/// # Errors
/// The node that `next` gave last failed; those before it are done.
///
/// # Safety
/// That of [`compute`], for each node at its turn.
pub unsafe fn compute_many<'a>(
    ctx: &ComputeCtx,
    next: &mut dyn FnMut() -> Option<NodeArgs<'a>>,
) -> Result<(), KernelError> {
    ctx.enter(|env| {
        while let Some(node) = next() {
            // SAFETY: the same contract.
            unsafe { run(env, &node) }?;
        }
        Ok(())
    })
}

unsafe fn run(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    const MAX: usize = 16;
    let mut types = [None; MAX];
    for (slot, src) in types.iter_mut().zip(node.src) {
        *slot = src.map(|t| t.dtype);
    }
    let types = &types[..node.src.len().min(MAX)];
    let Some(kernel) = kernel(node.op, &Signature { src: types, dst: node.dst.dtype }) else {
        return Err(node.unsupported());
    };
    if node.dst.elements() == 0 {
        return Ok(());
    }
    // SAFETY: the same contract.
    let done = unsafe { kernel(env, node) };
    if env.prepared.is_some_and(|p| p.touched_by(&node.dst)) {
        env.prepared = None;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::ctx::Workers;
    use crate::cpu::tensor::{TensorMut, TensorRef};

    fn row(values: &mut [f32]) -> TensorMut {
        let bytes = 4 * values.len() as u64;
        let data = values.as_mut_ptr().cast();
        TensorMut { dtype: DType::F32, ne: [values.len() as u64, 1, 1, 1], nb: [4, bytes, bytes, bytes], data }
    }

    fn halves(values: &mut [u16]) -> TensorRef {
        let bytes = 2 * values.len() as u64;
        let data = values.as_ptr().cast();
        TensorRef { dtype: DType::F16, ne: [values.len() as u64, 1, 1, 1], nb: [2, bytes, bytes, bytes], data }
    }

    #[test]
    fn products_of_a_list_see_what_was_written_between_them() {
        let ctx = ComputeCtx::new(Workers::single());
        let (mut w, mut x, mut y, mut z) = ([0x3c00u16; 32], [1.0f32; 32], [0.0f32], [0.0f32]);
        let (w, x, y, z) = (halves(&mut w), row(&mut x), row(&mut y), row(&mut z));
        let pair = [Some(w), Some(x.as_ref())];
        let twice = [2.0f32.to_bits()];
        let nodes = [
            NodeArgs { op: Op::MulMat, params: &[], src: &pair, dst: y },
            NodeArgs { op: Op::Scale, params: &twice, src: &pair[1..], dst: x },
            NodeArgs { op: Op::MulMat, params: &[], src: &pair, dst: z },
        ];
        let mut nodes = nodes.iter().copied();
        // SAFETY: all tensors are valid rows of arrays that outlive the call; SCALE works in place.
        let (first, second) = unsafe {
            compute_many(&ctx, &mut || nodes.next()).unwrap();
            (*y.data.cast::<f32>(), *z.data.cast::<f32>())
        };
        assert_eq!((first, second), (32.0, 64.0));
    }
}

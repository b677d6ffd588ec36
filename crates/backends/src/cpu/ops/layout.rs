//! REPEAT and CONCAT: bytes put into a larger tensor.

use super::each_row;
use crate::cpu::ctx::{Cost, Env};
use crate::cpu::error::KernelError;
use crate::cpu::tensor::{NodeArgs, TensorRef, repeats_into};
use loadmaster_graph::DType;

/// Types whose elements can be moved one by one.
pub(crate) fn types_fit(src: DType, dst: DType) -> bool {
    src == dst && src.block_len() == 1
}

/// A run of elements.
#[derive(Clone, Copy)]
struct Run {
    elements: u64,
    from_stride: u64,
    to_stride: u64,
    size: usize,
}

impl Run {
    /// # Safety
    /// Both sides must have that many elements at these strides, without overlap.
    unsafe fn copy(&self, from: *const u8, to: *mut u8) {
        let size = self.size as u64;
        // SAFETY: the caller vouches for both runs.
        unsafe {
            if self.from_stride == size && self.to_stride == size {
                std::ptr::copy_nonoverlapping(from, to, self.elements as usize * self.size);
                return;
            }
            for i in 0..self.elements {
                let (a, b) = (from.add((i * self.from_stride) as usize), to.add((i * self.to_stride) as usize));
                std::ptr::copy_nonoverlapping(a, b, self.size);
            }
        }
    }
}

fn run(src: &TensorRef, node: &NodeArgs<'_>) -> Run {
    Run {
        elements: src.ne[0],
        from_stride: src.nb[0],
        to_stride: node.dst.nb[0],
        size: src.dtype.block_size().get() as usize,
    }
}

/// `dst` is `src0` repeated a whole number of times in every dimension.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn repeat(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (src, dst) = (node.src(0)?, node.dst);
    node.require(repeats_into(&src.ne, &dst.ne), "the source must repeat into the result")?;
    let run = run(&src, node);
    each_row(env, &dst.ne, Cost(2), |_, at| {
        for start in (0..dst.ne[0]).step_by(src.ne[0] as usize) {
            // SAFETY: the run fits the row; source indices wrap.
            unsafe { run.copy(src.row_broadcast(at), dst.row(at).add((start * dst.nb[0]) as usize)) };
        }
    });
    Ok(())
}

/// `dst` is `src0` followed by `src1` along dimension word 0.
///
/// # Safety
/// The contract of [`super::super::compute`].
pub(crate) unsafe fn concat(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (a, b, dst) = (node.src(0)?, node.src(1)?, node.dst);
    let dim = node.word(0) as usize;
    if dim > 3 {
        return Err(node.bad_word(0, "the dimension must be 0 to 3"));
    }
    let fits = (0..4)
        .all(|i| if i == dim { a.ne[i] + b.ne[i] == dst.ne[i] } else { a.ne[i] == dst.ne[i] && b.ne[i] == dst.ne[i] });
    node.require(fits, "the sources must fill the result along that dimension and agree in the others")?;
    let (run_a, run_b) = (run(&a, node), run(&b, node));
    each_row(env, &dst.ne, Cost(2), |_, at| {
        // SAFETY: each run lies inside its source's row and the result's.
        unsafe {
            let to = dst.row(at);
            if dim == 0 {
                run_a.copy(a.row(at), to);
                run_b.copy(b.row(at), to.add((a.ne[0] * dst.nb[0]) as usize));
                return;
            }
            let mut inner = at;
            if at[dim - 1] < a.ne[dim] {
                run_a.copy(a.row(at), to);
            } else {
                inner[dim - 1] -= a.ne[dim];
                run_b.copy(b.row(inner), to);
            }
        }
    });
    Ok(())
}

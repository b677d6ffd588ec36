//! From a node to kernel launches: which kernel, how many blocks and threads, which numbers.
//!
//! Everything is checked here that a kernel takes for granted: extents that fit together, packed rows, words in range.
//! Indices that stand in device memory are looked at by the kernels: one that names no row gives NaN, and nothing outside
//! the operands is read or written.

mod attention;
mod build;
mod copies;
mod elements;
mod library;
#[cfg(test)]
mod library_tests;
mod node;
mod products;
mod rows;
#[cfg(feature = "cuda")]
pub(crate) mod sources;
#[cfg(all(test, feature = "cuda"))]
mod tests;
pub(crate) mod types;
#[cfg(test)]
mod workspace_tests;

#[cfg(feature = "cuda")]
use crate::cpu;
use crate::error::Unsupported;
#[cfg(feature = "cuda")]
use loadmaster_alloc::InPlaceTable;
use loadmaster_graph::{Op, OpKind};
use node::Node;
use types::{Launches, NodeView, Target};

/// The launches of a node. A pure function of its arguments. Errors: no kernel for these types, shapes or parameters.
pub(crate) fn launches(view: &NodeView<'_>, target: &Target) -> Result<Launches, Unsupported> {
    if !crate::program::computes(view.op) {
        return Ok(Launches::default());
    }
    let node = Node::new(view)?;
    if view.dst.elements() == 0 {
        return Ok(Launches::default());
    }
    match view.op {
        Op::Add | Op::Sub | Op::Mul | Op::Div => elements::pair(&node),
        Op::AddId => elements::add_id(&node),
        Op::Norm | Op::RmsNorm | Op::L2Norm => rows::norm(&node),
        Op::Dup | Op::Cpy | Op::Cont => copies::copy(&node),
        Op::GetRows => copies::get_rows(&node),
        Op::SetRows => copies::set_rows(&node),
        Op::Repeat => copies::repeat(&node),
        Op::Concat => copies::concat(&node),
        Op::SumRows | Op::Mean => rows::sum_rows(&node),
        Op::Sum => rows::sum(&node),
        Op::Argmax => rows::argmax(&node),
        Op::Argsort => rows::argsort(&node),
        Op::SoftMax => rows::soft_max(&node),
        Op::Rope => rows::rope(&node),
        Op::MulMat => products::mul_mat(&node, target),
        Op::MulMatId => products::mul_mat_id(&node, target),
        Op::FlashAttnExt => attention::flash_attn(&node, target),
        op if elements::is_unary(op) => elements::unary(&node),
        op if op.kind() == OpKind::Glu => elements::glu(&node),
        op => Err(Unsupported { why: format!("no CUDA kernel of {op}") }),
    }
}

/// Bytes of scratch memory of a node and of every node like it with fewer columns, sequences or keys: what
/// [`workspace`](super::workspace()) tells plans.
///
/// An operation whose scratch memory may grow while its node gets smaller must have an arm of its own here.
pub(crate) fn workspace(view: &NodeView<'_>, target: &Target) -> Result<u64, Unsupported> {
    let own = launches(view, target)?.scratch_bytes;
    match view.op {
        Op::MulMat => Ok(own.max(library::most_scratch(&Node::new(view)?, target)?)),
        Op::FlashAttnExt => Ok(own.max(attention::most_scratch(&Node::new(view)?, target)?)),
        _ => Ok(own),
    }
}

/// Which operands may share bytes with the result: the kernels keep the table of the CPU's.
#[cfg(feature = "cuda")]
pub(crate) fn in_place() -> InPlaceTable {
    cpu::in_place()
}

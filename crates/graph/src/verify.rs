//! The verifier: every graph passes through it, and the rules below hold for every [`Graph`](crate::Graph). Errors print
//! the number of their rule.
//!
//! | rule | what holds | error |
//! |---|---|---|
//! | V1 | counts and lengths keep their [limits](crate::limits): tensors; sources, parameters and name of each | `Limit`, `TensorLimit` |
//! | V2 | nodes, leafs, sources and view roots name tensors that exist | `Dangling` |
//! | V3 | sources and view roots stand before their users in the list of tensors; so there are no cycles | `Cycle` |
//! | V4 | no tensor is listed twice among the nodes and leafs | `ListedTwice` |
//! | V5 | a leaf has no operation | `LeafWithOp` |
//! | V6 | a node stands after its sources, their roots and its own root, where these are nodes | `Order` |
//! | V7 | a source of a node that has an operation is a node too | `NeverComputed` |
//! | V8 | bytes and elements of a tensor do not exceed 2⁶³ − 1 | `Shape(Overflow)` |
//! | V9 | the innermost extent is a whole number of blocks | `Shape(PartialBlock)` |
//! | V10 | elements of a tensor that owns its bytes do not share bytes, and its dimensions nest | `Shape(Alias)` |
//! | V11 | the root of a view is no view itself | `View(RootIsView)` |
//! | V12 | a view ends within its root | `View(LeavesRoot)` |
//! | V13 | VIEW, RESHAPE, PERMUTE and TRANSPOSE are views | `View(NoRoot)` |
//!
//! Unknown operations, types and flags cannot be expressed in a [`Tensor`]; the file reader rejects their names.
//!
//! A cast is a CPY whose second source is the CPY itself (ggml marks a destination without a tensor of its own so): V3
//! and V6 do not count that reference. It stays among the sources, because allocators count it as a use.
//!
//! What else ggml may produce stays allowed: tensors that are neither node nor leaf, extents of zero, views whose elements
//! overlap, nodes without operation, leafs that are views, views of weights among the nodes. A quantized view whose
//! blocks do not lie along its innermost dimension (a transposed one) is exempt from V9, and V12 only checks where
//! it begins: strides do not say which dimension the blocks lie along.

use crate::error::{GraphError, ShapeFault, ViewFault};
use crate::id::{IdVec, LeafId, NodeId, TensorId};
use crate::limits::{MAX_NAME_LEN, MAX_OP_PARAMS, MAX_SOURCES, MAX_TENSOR_SIZE, MAX_TENSORS};
use crate::op::Op;
use crate::tensor::{DIMS, Tensor};
use crate::units::Bytes;

/// Checks every rule; the first broken one is the error. O(tensors + sources).
pub(crate) fn verify(
    tensors: &IdVec<TensorId, Tensor>,
    nodes: &IdVec<NodeId, TensorId>,
    leafs: &IdVec<LeafId, TensorId>,
) -> Result<(), GraphError> {
    check_count(tensors.len(), MAX_TENSORS)?;
    tensors.iter().try_for_each(|(id, tensor)| check_tensor(tensors, id, tensor))?;
    let listed = check_lists(tensors, nodes, leafs)?;
    nodes.iter().try_for_each(|(node, &id)| check_order(tensors, &listed, node, id))
}

/// The rules for one tensor, of which only those before it need be in `tensors`.
pub(crate) fn check_tensor(tensors: &IdVec<TensorId, Tensor>, id: TensorId, tensor: &Tensor) -> Result<(), GraphError> {
    check_limits(id, tensor)?;
    check_references(tensors, id, tensor)?;
    check_shape(id, tensor)?;
    check_view(tensors, id, tensor)
}

/// V1 for the whole graph.
pub(crate) fn check_count(found: usize, limit: usize) -> Result<(), GraphError> {
    if found > limit { Err(GraphError::Limit { what: "number of tensors", found, limit }) } else { Ok(()) }
}

/// V1 for one tensor.
fn check_limits(id: TensorId, tensor: &Tensor) -> Result<(), GraphError> {
    let counts = [
        ("sources", tensor.src.len(), MAX_SOURCES),
        ("words of parameters", tensor.params.len(), MAX_OP_PARAMS),
        ("bytes of name", tensor.name.len(), MAX_NAME_LEN),
    ];
    match counts.into_iter().find(|(_, found, limit)| found > limit) {
        None => Ok(()),
        Some((what, found, limit)) => {
            let name = tensor.name.chars().take(64).collect();
            Err(GraphError::TensorLimit { tensor: id, name, what, found, limit })
        }
    }
}

/// V2 and V3 for one tensor.
fn check_references(tensors: &IdVec<TensorId, Tensor>, id: TensorId, tensor: &Tensor) -> Result<(), GraphError> {
    for used in others(id, tensor) {
        if used < id {
            continue;
        }
        let name = tensor.name.clone();
        return Err(if used.index() >= tensors.len() {
            dangling(format!("a source or the root of {id} `{name}`"), used, tensors.len())
        } else {
            GraphError::Cycle { tensor: id, name, source_id: used }
        });
    }
    Ok(())
}

/// Sources and root, without a cast's reference to itself.
fn others(id: TensorId, tensor: &Tensor) -> impl Iterator<Item = TensorId> {
    let is_cast = tensor.op == Op::Cpy && !tensor.is_view();
    let own = move |operand: usize, source: TensorId| is_cast && operand == 1 && source == id;
    let sources = tensor.src.iter().enumerate().filter_map(move |(i, s)| s.filter(|&s| !own(i, s)));
    sources.chain(tensor.view.map(|v| v.root))
}

fn dangling(place: String, id: TensorId, count: usize) -> GraphError {
    GraphError::Dangling { place, id, count }
}

/// V8 to V10.
fn check_shape(id: TensorId, tensor: &Tensor) -> Result<(), GraphError> {
    let fault = if overflows(tensor) {
        ShapeFault::Overflow
    } else if blocks_lie_innermost(tensor) && !tensor.ne[0].is_multiple_of(tensor.dtype.block_len()) {
        ShapeFault::PartialBlock
    } else if !tensor.is_view() && aliases(tensor) {
        ShapeFault::Alias
    } else {
        return Ok(());
    };
    Err(GraphError::Shape { tensor: id, name: tensor.name.clone(), why: fault })
}

fn overflows(tensor: &Tensor) -> bool {
    let too_many = |n: Option<u64>| n.is_none_or(|n| n > MAX_TENSOR_SIZE);
    // Extents of zero do not excuse the others: their products are computed elsewhere.
    let elements = tensor.ne.iter().try_fold(1_u64, |n, &extent| n.checked_mul(extent.max(1)));
    // Nor does an empty view excuse an offset that no sum of addresses holds.
    let offset = tensor.view.map_or(0, |v| v.offset.get());
    too_many(elements) || too_many(tensor.checked_nbytes().map(Bytes::get)) || too_many(Some(offset))
}

/// Whether the innermost dimension is the one that blocks lie along: not so in a transposed quantized view.
fn blocks_lie_innermost(tensor: &Tensor) -> bool {
    !tensor.is_view() || tensor.nb[0] == tensor.dtype.block_size().get()
}

/// Whether some dimension's stride is smaller than what the dimensions inside it span. Dimensions may stand in any order.
fn aliases(tensor: &Tensor) -> bool {
    let mut dims = [(0, 0); DIMS];
    for (i, dim) in dims.iter_mut().enumerate() {
        let extent = if i == 0 { tensor.ne[0] / tensor.dtype.block_len() } else { tensor.ne[i] };
        *dim = (tensor.nb[i], extent);
    }
    if dims.iter().any(|&(_, extent)| extent == 0) {
        return false;
    }
    dims.sort_unstable();
    let mut span = tensor.dtype.block_size().get();
    for (stride, extent) in dims.into_iter().filter(|&(_, extent)| extent > 1) {
        if stride < span {
            return true;
        }
        span = stride.saturating_mul(extent);
    }
    false
}

/// V11 to V13.
fn check_view(tensors: &IdVec<TensorId, Tensor>, id: TensorId, tensor: &Tensor) -> Result<(), GraphError> {
    let fault = |why| Err(GraphError::View { tensor: id, name: tensor.name.clone(), why });
    let Some(view) = tensor.view else {
        return if tensor.op.is_view() { fault(ViewFault::NoRoot { op: tensor.op }) } else { Ok(()) };
    };
    let root = &tensors[view.root];
    if root.is_view() {
        return fault(ViewFault::RootIsView { root: view.root });
    }
    let reach = if blocks_lie_innermost(tensor) { tensor.nbytes() } else { Bytes::ZERO };
    let (end, size) = (view.offset.saturating_add(reach), root.nbytes());
    // An empty view may begin anywhere: nothing of it is read.
    if end > size && !tensor.ne.contains(&0) {
        return fault(ViewFault::LeavesRoot { root: view.root, end: end.get(), size: size.get() });
    }
    Ok(())
}

/// Where a tensor is listed.
#[derive(Clone, Copy)]
enum Listed {
    No,
    Leaf,
    Node(NodeId),
}

/// V2 for the lists, V4 and V5.
fn check_lists(
    tensors: &IdVec<TensorId, Tensor>,
    nodes: &IdVec<NodeId, TensorId>,
    leafs: &IdVec<LeafId, TensorId>,
) -> Result<IdVec<TensorId, Listed>, GraphError> {
    let mut listed = IdVec::filled(Listed::No, tensors.len());
    for (leaf, &id) in leafs.iter() {
        list(tensors, &mut listed, id, Listed::Leaf, || leaf.to_string())?;
        let Tensor { op, ref name, .. } = tensors[id];
        if op != Op::None {
            return Err(GraphError::LeafWithOp { leaf, tensor: id, name: name.clone(), op });
        }
    }
    for (node, &id) in nodes.iter() {
        list(tensors, &mut listed, id, Listed::Node(node), || node.to_string())?;
    }
    Ok(listed)
}

fn list(
    tensors: &IdVec<TensorId, Tensor>,
    listed: &mut IdVec<TensorId, Listed>,
    id: TensorId,
    place: Listed,
    describe: impl FnOnce() -> String,
) -> Result<(), GraphError> {
    match listed.get(id) {
        None => Err(dangling(describe(), id, tensors.len())),
        Some(Listed::No) => {
            listed[id] = place;
            Ok(())
        }
        Some(_) => Err(GraphError::ListedTwice { tensor: id, name: tensors[id].name.clone() }),
    }
}

/// V6 and V7 for one node.
fn check_order(
    tensors: &IdVec<TensorId, Tensor>,
    listed: &IdVec<TensorId, Listed>,
    node: NodeId,
    id: TensorId,
) -> Result<(), GraphError> {
    let tensor = &tensors[id];
    let name = || tensor.name.clone();
    for &source_id in tensor.src.iter().flatten() {
        if matches!(listed[source_id], Listed::No) && tensors[source_id].op != Op::None {
            return Err(GraphError::NeverComputed { node, tensor: id, name: name(), source_id });
        }
    }
    // A source may be a view that is listed as a leaf, or not at all: what it shows is there with its root.
    let roots = others(id, tensor).filter_map(|source| tensors[source].view).map(|v| v.root).filter(|&root| root != id);
    for source_id in others(id, tensor).chain(roots) {
        if matches!(listed[source_id], Listed::Node(earlier) if earlier >= node) {
            return Err(GraphError::Order { node, tensor: id, name: name(), source_id });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_tensors_than_the_limit_are_rejected() {
        assert_eq!(check_count(3, 3), Ok(()));
        let refused = GraphError::Limit { what: "number of tensors", found: 4, limit: 3 };
        assert_eq!(check_count(4, 3), Err(refused));
    }
}

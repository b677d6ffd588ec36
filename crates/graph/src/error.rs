//! Errors of this crate.

use crate::id::{LeafId, NodeId, TensorId};
use crate::op::Op;

/// Why something is not a valid graph.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// More of something than its named limit.
    #[error("{what}: {found} exceeds the limit of {limit} [V1]")]
    Limit {
        /// What was counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// More of something in one tensor than its named limit.
    #[error("{tensor} `{name}`: {found} {what} exceed the limit of {limit} [V1]")]
    TensorLimit {
        /// The tensor.
        tensor: TensorId,
        /// Its name (its beginning, where the name is what is too long).
        name: Box<str>,
        /// What was counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        limit: usize,
    },
    /// A node, leaf, source or view root names a tensor that does not exist.
    #[error("{place} refers to {id}, but there are only {count} tensors [V2]")]
    Dangling {
        /// What refers to it.
        place: String,
        /// The missing tensor.
        id: TensorId,
        /// Number of tensors.
        count: usize,
    },
    /// A node is computed before one of its sources or its root.
    #[error(
        "{node} ({tensor} `{name}`) uses {source_id} before it is computed: put {source_id} earlier among the nodes [V6]"
    )]
    Order {
        /// The node.
        node: NodeId,
        /// Its tensor.
        tensor: TensorId,
        /// The tensor's name.
        name: Box<str>,
        /// The source that comes later.
        source_id: TensorId,
    },
    /// A node uses a source that has an operation but is no node.
    #[error(
        "{node} ({tensor} `{name}`) uses {source_id}, which is never computed: list {source_id} among the nodes [V7]"
    )]
    NeverComputed {
        /// The node.
        node: NodeId,
        /// Its tensor.
        tensor: TensorId,
        /// The tensor's name.
        name: Box<str>,
        /// The source.
        source_id: TensorId,
    },
    /// A tensor depends on itself, or on a tensor that stands after it.
    #[error(
        "{tensor} `{name}` refers to {source_id}, which does not stand before it: a cycle or a wrong order of tensors [V3]"
    )]
    Cycle {
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
        /// The tensor it refers to.
        source_id: TensorId,
    },
    /// A tensor stands twice among the nodes and leafs.
    #[error("{tensor} `{name}` is listed twice among the nodes and leafs [V4]")]
    ListedTwice {
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
    },
    /// A leaf has an operation.
    #[error("{leaf} ({tensor} `{name}`) has the operation {op}: a leaf is not computed, list it among the nodes [V5]")]
    LeafWithOp {
        /// The leaf.
        leaf: LeafId,
        /// Its tensor.
        tensor: TensorId,
        /// The tensor's name.
        name: Box<str>,
        /// The operation.
        op: Op,
    },
    /// An extent, stride or size is out of range.
    #[error("{tensor} `{name}`: {why}")]
    Shape {
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
        /// What is wrong.
        why: ShapeFault,
    },
    /// A view is not inside its root, or its root is a view.
    #[error("{tensor} `{name}`: {why}")]
    View {
        /// The view.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
        /// What is wrong.
        why: ViewFault,
    },
}

/// What is wrong with a shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeFault {
    /// The size in bytes, or the number of elements, is above [`MAX_TENSOR_SIZE`](crate::limits::MAX_TENSOR_SIZE).
    #[error("its size in bytes or elements overflows (2^63 - 1 at most) [V8]")]
    Overflow,
    /// The innermost extent is no whole number of blocks.
    #[error("its innermost extent is no whole number of blocks of its type [V9]")]
    PartialBlock,
    /// Two elements of a tensor that owns its bytes share a byte, or its dimensions interleave.
    #[error("its strides make elements overlap, and it is no view [V10]")]
    Alias,
}

/// What is wrong with a view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ViewFault {
    /// The root is a view itself.
    #[error("its root {root} is a view itself [V11]")]
    RootIsView {
        /// The root.
        root: TensorId,
    },
    /// VIEW, RESHAPE, PERMUTE and TRANSPOSE compute nothing: their bytes are those of a root.
    #[error("{op} must have a root: a view operation owns no bytes [V13]")]
    NoRoot {
        /// The operation.
        op: Op,
    },
    /// It reaches past the end of its root.
    #[error("it ends at byte {end} of its root {root}, which has {size} [V12]")]
    LeavesRoot {
        /// The root.
        root: TensorId,
        /// End of the view in the root.
        end: u64,
        /// Size of the root in bytes.
        size: u64,
    },
}

//! Building graphs: one method for each operation, which infers type, extents, strides, view root and parameters of the
//! result exactly as ggml does.
//!
//! Tensors get ids in the order in which they are made, and nothing is a node before [`GraphBuilder::expand`]: it adds
//! what a result needs, in ggml's order. Names follow ggml too (`x (view)`, `x (reshaped)`, `node_12`), so that placement
//! rules written for llama.cpp match.
//!
//! ```
//! use loadmaster_graph::{DType, GraphBuilder};
//!
//! # fn main() -> Result<(), loadmaster_graph::BuildError> {
//! let mut b = GraphBuilder::new();
//! let weight = b.leaf("ffn_gate.weight", DType::Q4K, &[4096, 14336])?;
//! let x = b.leaf("x", DType::F32, &[4096, 32])?;
//! b.set_input(x)?;
//! let norm = b.rms_norm(x, 1e-5)?;
//! let gate = b.mul_mat(weight, norm)?;
//! b.set_output(gate)?;
//! b.expand(gate)?;
//! let graph = b.finish("example")?;
//! assert_eq!(graph.tensor(gate).ne, [14336, 32, 1, 1]);
//! assert_eq!(graph.nodes().as_slice(), [norm, gate]);
//! # Ok(())
//! # }
//! ```

mod attention;
mod elementwise;
mod error;
mod matrix;
mod recurrent;
mod rows;
mod views;

pub use attention::{FlashAttn, Rope, RopeMode, SoftMax};
pub use elementwise::GluHalves;
pub use error::{BuildError, OperandFault, Operands};
pub use matrix::{ColumnOrder, Precision};
pub use rows::SortOrder;

use crate::dtype::DType;
use crate::error::ShapeFault;
use crate::graph::Graph;
use crate::id::{IdVec, LeafId, NodeId, TensorId};
use crate::limits::MAX_TENSORS;
use crate::op::Op;
use crate::tensor::{DIMS, Dims, Flags, OpParams, Sources, Tensor, View};
use crate::units::Bytes;
use crate::verify;

/// Longest name that ggml keeps, in bytes; derived names are cut there.
const GGML_NAME_LEN: usize = 63;

/// A graph in the making.
#[derive(Debug, Clone, Default)]
pub struct GraphBuilder {
    tensors: IdVec<TensorId, Tensor>,
    visited: IdVec<TensorId, bool>,
    nodes: IdVec<NodeId, TensorId>,
    leafs: IdVec<LeafId, TensorId>,
    columns: ColumnOrder,
}

type Built = Result<TensorId, BuildError>;

impl GraphBuilder {
    /// An empty builder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A tensor that is there before the graph runs: a weight, an input, a cache. Extents innermost first, at most four;
    /// missing ones are 1.
    pub fn leaf(&mut self, name: impl Into<Box<str>>, dtype: DType, ne: &[u64]) -> Built {
        let mut tensor = contiguous(Op::None, dtype, dims(Op::None, ne)?)?;
        tensor.name = name.into();
        self.push(tensor)
    }

    /// A tensor made so far.
    pub fn tensor(&self, id: TensorId) -> Result<&Tensor, BuildError> {
        self.operand(Op::None, id)
    }

    /// How many tensors were made so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether no tensor was made yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Computed tensors so far, in execution order.
    #[must_use]
    pub fn nodes(&self) -> &IdVec<NodeId, TensorId> {
        &self.nodes
    }

    /// Leafs reached so far.
    #[must_use]
    pub fn leafs(&self) -> &IdVec<LeafId, TensorId> {
        &self.leafs
    }

    /// Names a tensor.
    pub fn set_name(&mut self, id: TensorId, name: impl Into<Box<str>>) -> Result<(), BuildError> {
        let mut named = self.operand(Op::None, id)?.clone();
        named.name = name.into();
        verify::check_tensor(&self.tensors, id, &named)?;
        self.tensors[id] = named;
        Ok(())
    }

    /// Marks a tensor that the caller writes before the graph runs.
    pub fn set_input(&mut self, id: TensorId) -> Result<(), BuildError> {
        self.add_flags(id, Flags::INPUT)
    }

    /// Marks a tensor that the caller reads after the graph ran.
    pub fn set_output(&mut self, id: TensorId) -> Result<(), BuildError> {
        self.add_flags(id, Flags::OUTPUT)
    }

    /// Adds flags to a tensor. `PARAM` makes a tensor without operation a node: set it before [`Self::expand`].
    pub fn add_flags(&mut self, id: TensorId, flags: Flags) -> Result<(), BuildError> {
        self.operand(Op::None, id)?;
        let tensor = &mut self.tensors[id];
        tensor.flags = tensor.flags.with(flags);
        Ok(())
    }

    /// Adds a tensor and everything it needs to the graph (ggml's `build_forward_expand`): depth first, the sources of a
    /// tensor in operand order and before the tensor; what has an operation becomes a node, the rest leafs. What was
    /// added before stays where it is. Tensors without a name get one (`node_N`, `leaf_N`). O(what is added).
    pub fn expand(&mut self, id: TensorId) -> Result<(), BuildError> {
        self.operand(Op::None, id)?;
        // A stack of its own: chains of thousands of tensors must not exhaust the program's.
        let mut stack = Vec::new();
        self.visit(id, &mut stack);
        while let Some((id, next)) = stack.pop() {
            match self.tensors[id].src.get(next).copied() {
                Some(source) => {
                    stack.push((id, next + 1));
                    if let Some(source) = source {
                        self.visit(source, &mut stack);
                    }
                }
                None => self.list(id),
            }
        }
        Ok(())
    }

    fn visit(&mut self, id: TensorId, stack: &mut Vec<(TensorId, usize)>) {
        if !std::mem::replace(&mut self.visited[id], true) {
            stack.push((id, 0));
        }
    }

    fn list(&mut self, id: TensorId) {
        let tensor = &mut self.tensors[id];
        let is_leaf = tensor.op == Op::None && !tensor.flags.contains(Flags::PARAM);
        if tensor.name.is_empty() {
            tensor.name = match is_leaf {
                true => format!("leaf_{}", self.leafs.len()).into(),
                false => format!("node_{}", self.nodes.len()).into(),
            };
        }
        if is_leaf {
            self.leafs.push(id);
        } else {
            self.nodes.push(id);
        }
    }

    /// The graph of what was expanded. Ids stay as they are; tensors that were not expanded are neither nodes nor leafs.
    pub fn finish(self, name: impl Into<Box<str>>) -> Result<Graph, BuildError> {
        Ok(Graph::new(name, self.tensors, self.nodes, self.leafs)?)
    }

    /// Like [`Self::finish`], but numbered as graph files are: leafs first, then nodes, each in order; what was not
    /// expanded is left out, unless a view's bytes are in it. The second value maps ids of the builder to ids of the graph.
    pub fn finish_numbered(
        self,
        name: impl Into<Box<str>>,
    ) -> Result<(Graph, IdVec<TensorId, Option<TensorId>>), BuildError> {
        let mut new_ids = IdVec::filled(None, self.tensors.len());
        let mut order = IdVec::<TensorId, TensorId>::new();
        for &id in self.leafs.values().chain(self.nodes.values()) {
            let root = self.tensors[id].view.map(|v| v.root);
            for id in root.into_iter().chain([id]) {
                if new_ids[id].is_none() {
                    new_ids[id] = Some(order.push(id));
                }
            }
        }
        let mut left: IdVec<TensorId, Option<Tensor>> = self.tensors.into_values().map(Some).collect();
        let tensors = order.values().filter_map(|&id| left[id].take().map(|t| renumbered(t, &new_ids))).collect();
        // Every listed tensor was given a number above.
        let nodes = self.nodes.values().filter_map(|&id| new_ids[id]).collect();
        let leafs = self.leafs.values().filter_map(|&id| new_ids[id]).collect();
        Ok((Graph::new(name, tensors, nodes, leafs)?, new_ids))
    }

    fn push(&mut self, tensor: Tensor) -> Built {
        verify::check_count(self.tensors.len() + 1, MAX_TENSORS)?;
        verify::check_tensor(&self.tensors, self.next_id(), &tensor)?;
        self.visited.push(false);
        Ok(self.tensors.push(tensor))
    }

    fn next_id(&self) -> TensorId {
        TensorId::new(self.tensors.len())
    }

    fn operand(&self, op: Op, id: TensorId) -> Result<&Tensor, BuildError> {
        self.tensors.get(id).ok_or(BuildError::UnknownTensor { op, id, count: self.tensors.len() })
    }

    fn optional(&self, op: Op, id: Option<TensorId>) -> Result<Option<&Tensor>, BuildError> {
        id.map(|id| self.operand(op, id)).transpose()
    }

    /// Refuses the operands unless the condition holds.
    fn require(&self, holds: bool, op: Op, why: OperandFault, ids: &[TensorId]) -> Result<(), BuildError> {
        if holds {
            return Ok(());
        }
        let known = ids.iter().filter_map(|&id| self.tensors.get(id).map(|tensor| (id, tensor)));
        Err(BuildError::Operands { op, why, operands: Operands::of(known) })
    }

    /// A tensor that shares the bytes of another, from `offset` on.
    fn view_of(&self, op: Op, id: TensorId, offset: Bytes) -> Result<Tensor, BuildError> {
        let viewed = self.operand(op, id)?;
        let view = match viewed.view {
            None => View { root: id, offset },
            Some(View { root, offset: before }) => View { root, offset: before.saturating_add(offset) },
        };
        Ok(Tensor {
            name: derived(&viewed.name, "view"),
            op,
            params: OpParams::new(),
            src: sources(&[Some(id)]),
            view: Some(view),
            flags: Flags::NONE,
            ..viewed.clone()
        })
    }

    /// A result with the type and extents of its first operand, contiguous.
    fn like(&self, op: Op, id: TensorId, src: &[Option<TensorId>]) -> Result<Tensor, BuildError> {
        let a = self.operand(op, id)?;
        let mut tensor = contiguous(op, a.dtype, a.ne)?;
        tensor.src = sources(src);
        Ok(tensor)
    }
}

/// Extents with ones added.
fn dims(op: Op, ne: &[u64]) -> Result<Dims, BuildError> {
    if ne.len() > DIMS {
        return Err(BuildError::Dimensions { op, what: "extents", found: ne.len(), limit: DIMS });
    }
    let mut all = [1; DIMS];
    all[..ne.len()].copy_from_slice(ne);
    Ok(all)
}

/// A contiguous tensor without name, sources and parameters.
fn contiguous(op: Op, dtype: DType, ne: Dims) -> Result<Tensor, BuildError> {
    let why = shape_fault(dtype, &ne);
    let mut tensor = Tensor::leaf("", dtype, ne).ok_or(BuildError::Shape { op, dtype, ne, why })?;
    tensor.op = op;
    Ok(tensor)
}

/// Why extents have no contiguous strides.
fn shape_fault(dtype: DType, ne: &Dims) -> ShapeFault {
    if ne[0].is_multiple_of(dtype.block_len()) { ShapeFault::Overflow } else { ShapeFault::PartialBlock }
}

/// Sources without trailing holes, as files hold them.
fn sources(src: &[Option<TensorId>]) -> Sources {
    let len = src.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    Sources::from_slice(&src[..len])
}

/// Parameter words without trailing zeros.
fn params(words: &[u32]) -> OpParams {
    let len = words.iter().rposition(|&w| w != 0).map_or(0, |last| last + 1);
    OpParams::from_slice(&words[..len])
}

/// `NAME (WHAT)`, cut where ggml cuts.
fn derived(name: &str, what: &str) -> Box<str> {
    let mut long = format!("{name} ({what})");
    long.truncate(long.floor_char_boundary(GGML_NAME_LEN));
    long.into()
}

fn renumbered(mut tensor: Tensor, new_ids: &IdVec<TensorId, Option<TensorId>>) -> Tensor {
    for source in &mut tensor.src {
        *source = source.and_then(|id| new_ids[id]);
    }
    tensor.view = tensor.view.and_then(|v| new_ids[v.root].map(|root| View { root, ..v }));
    tensor
}

//! The graph: tensors, and which of them are computed in which order.

use crate::error::GraphError;
use crate::hash::{self, StructuralHash};
use crate::id::{IdVec, LeafId, NodeId, TensorId};
use crate::op::Op;
use crate::tensor::{Flags, Tensor};
use crate::verify;

/// A verified graph. It never changes: planners read it and produce overlays.
///
/// Sources stand before their users in `tensors`, so ids are a topological order too.
#[derive(Clone, Debug, PartialEq)]
pub struct Graph {
    name: Box<str>,
    tensors: IdVec<TensorId, Tensor>,
    nodes: IdVec<NodeId, TensorId>,
    leafs: IdVec<LeafId, TensorId>,
    topology: Topology,
    hash: StructuralHash,
}

/// The part of every tensor that planners walk, packed so that a walk stays in cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    links: IdVec<TensorId, Link>,
    sources: Vec<Option<TensorId>>,
}

/// Operation, flags, root and sources of one tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// The operation.
    pub op: Op,
    /// The flags.
    pub flags: Flags,
    /// The root, for a view.
    pub root: Option<TensorId>,
    first_source: u32,
    source_count: u16,
}

impl Topology {
    fn of(tensors: &IdVec<TensorId, Tensor>) -> Self {
        let mut sources = Vec::with_capacity(tensors.len() * 2);
        let links = tensors
            .values()
            .map(|t| {
                let first_source = sources.len() as u32;
                sources.extend_from_slice(&t.src);
                Link {
                    op: t.op,
                    flags: t.flags,
                    root: t.view.map(|v| v.root),
                    first_source,
                    source_count: t.src.len() as u16,
                }
            })
            .collect();
        Self { links, sources }
    }

    /// The packed record of a tensor.
    #[inline]
    #[must_use]
    pub fn link(&self, id: TensorId) -> &Link {
        &self.links[id]
    }

    /// The sources of a tensor, holes included.
    #[inline]
    #[must_use]
    pub fn sources(&self, id: TensorId) -> &[Option<TensorId>] {
        let link = &self.links[id];
        let first = link.first_source as usize;
        &self.sources[first..first + link.source_count as usize]
    }

    /// The sources of a tensor, holes skipped.
    #[inline]
    pub fn sources_some(&self, id: TensorId) -> impl Iterator<Item = TensorId> {
        self.sources(id).iter().flatten().copied()
    }
}

impl Graph {
    /// Verifies and freezes. Errors: the first rule of [`crate::verify`] that is broken. O(tensors + sources).
    pub fn new(
        name: impl Into<Box<str>>,
        tensors: IdVec<TensorId, Tensor>,
        nodes: IdVec<NodeId, TensorId>,
        leafs: IdVec<LeafId, TensorId>,
    ) -> Result<Self, GraphError> {
        verify::verify(&tensors, &nodes, &leafs)?;
        let topology = Topology::of(&tensors);
        let hash = hash::of_parts(&tensors, &nodes, &leafs);
        Ok(Self { name: name.into(), tensors, nodes, leafs, topology, hash })
    }

    /// The graph's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
    /// All tensors.
    #[must_use]
    pub fn tensors(&self) -> &IdVec<TensorId, Tensor> {
        &self.tensors
    }
    /// One tensor.
    #[inline]
    #[must_use]
    pub fn tensor(&self, id: TensorId) -> &Tensor {
        &self.tensors[id]
    }
    /// Computed tensors in execution order.
    #[must_use]
    pub fn nodes(&self) -> &IdVec<NodeId, TensorId> {
        &self.nodes
    }
    /// Tensors that are there before the graph runs.
    #[must_use]
    pub fn leafs(&self) -> &IdVec<LeafId, TensorId> {
        &self.leafs
    }
    /// The packed structure for planners.
    #[inline]
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The hash of its structure: operations, parameters, sources, views, types, shapes, strides, flags and order, but no
    /// names. Computed once, by [`Self::new`].
    #[inline]
    #[must_use]
    pub fn structural_hash(&self) -> StructuralHash {
        self.hash
    }
}

//! Small graphs made by hand.

use loadmaster_alloc::{AllocGraph, ArenaId};
use loadmaster_graph::{DType, Flags, Graph, IdVec, LeafId, NodeId, Op, Sources, Tensor, TensorId};

/// Builds a graph of one-dimensional F32 tensors.
#[derive(Default)]
pub struct Maker {
    tensors: IdVec<TensorId, Tensor>,
    nodes: IdVec<NodeId, TensorId>,
    leafs: IdVec<LeafId, TensorId>,
}

impl Maker {
    pub fn leaf(&mut self, elements: u64) -> TensorId {
        let mut leaf = Tensor::leaf(format!("leaf{}", self.tensors.len()), DType::F32, [elements, 1, 1, 1]).unwrap();
        leaf.flags = Flags::INPUT;
        let id = self.tensors.push(leaf);
        self.leafs.push(id);
        id
    }

    pub fn node(&mut self, op: Op, elements: u64, sources: &[TensorId]) -> TensorId {
        self.flagged(op, elements, sources, Flags::NONE)
    }

    pub fn output(&mut self, op: Op, elements: u64, sources: &[TensorId]) -> TensorId {
        self.flagged(op, elements, sources, Flags::OUTPUT)
    }

    fn flagged(&mut self, op: Op, elements: u64, sources: &[TensorId], flags: Flags) -> TensorId {
        let mut node = Tensor::leaf(format!("node{}", self.tensors.len()), DType::F32, [elements, 1, 1, 1]).unwrap();
        node.op = op;
        node.flags = flags;
        node.src = sources.iter().copied().map(Some).collect::<Sources>();
        let id = self.tensors.push(node);
        self.nodes.push(id);
        id
    }

    pub fn done(self) -> Graph {
        Graph::new("made", self.tensors, self.nodes, self.leafs).unwrap()
    }
}

/// Nothing of the graph has memory.
pub fn lowered(graph: &Graph) -> AllocGraph<'_> {
    AllocGraph::of(graph, |_| false)
}

/// Ids that put entry `i` into arena `i % arenas`.
pub fn round_robin(entries: usize, arenas: usize) -> Vec<ArenaId> {
    (0..entries).map(|i| ArenaId::new(i % arenas)).collect()
}

/// A chain of products with a residual: `depth` layers that need three tensors at once.
pub fn layers(depth: usize, elements: u64) -> Graph {
    let mut maker = Maker::default();
    let mut x = maker.leaf(elements);
    for _ in 0..depth {
        let gate = maker.node(Op::MulMat, 3 * elements, &[x]);
        let up = maker.node(Op::MulMat, 3 * elements, &[x]);
        let both = maker.node(Op::Swiglu, 3 * elements, &[gate, up]);
        let down = maker.node(Op::MulMat, elements, &[both]);
        x = maker.node(Op::Add, elements, &[down, x]);
    }
    maker.output(Op::MulMat, elements, &[x]);
    maker.done()
}

//! Looking at tensors while they are computed.

use loadmaster_graph::{NodeId, TensorId};

/// Whether a run goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// It does.
    Continue,
    /// It ends here.
    Stop,
}

/// Looks at nodes as they are computed.
pub trait Observer {
    /// Whether it wants to see a node. Asked for each node that computes something, in the order of computation.
    fn wants(&mut self, node: NodeId, tensor: TensorId) -> bool;
    /// The bytes of a node that it wanted, just computed: from its first to past its last element.
    fn seen(&mut self, node: NodeId, tensor: TensorId, bytes: &[u8]) -> Flow;
    /// Whether nodes need to be asked about at all.
    fn sees_nodes(&self) -> bool {
        true
    }
}

/// Nobody looks.
pub(super) struct Unobserved;

impl Observer for Unobserved {
    fn wants(&mut self, _: NodeId, _: TensorId) -> bool {
        false
    }
    fn seen(&mut self, _: NodeId, _: TensorId, _: &[u8]) -> Flow {
        Flow::Continue
    }
    fn sees_nodes(&self) -> bool {
        false
    }
}

/// Sees the nodes that a closure wants.
impl<F: FnMut(NodeId, TensorId, &[u8]) -> Flow> Observer for F {
    fn wants(&mut self, _: NodeId, _: TensorId) -> bool {
        true
    }
    fn seen(&mut self, node: NodeId, tensor: TensorId, bytes: &[u8]) -> Flow {
        self(node, tensor, bytes)
    }
}

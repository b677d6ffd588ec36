//! Runs of nodes on one device, and the copies that each run needs (section 2 of the rules).

use crate::assign::Assignment;
use crate::error::SchedError;
use crate::machine::Machine;
use crate::residency::{Residency, Usage};
use loadmaster_graph::{BufferId, Bytes, CopyId, DeviceId, Graph, IdVec, NodeId, SplitId, TensorId};
use std::fmt;

/// Why a split begins where it does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SplitCause {
    /// The graph begins.
    First,
    /// The device changes.
    DeviceChange {
        /// The device before.
        from: DeviceId,
    },
    /// More weights must be uploaded: the memory of earlier ones can then be used again.
    MoreWeights {
        /// The weights.
        source: TensorId,
    },
}

impl fmt::Display for SplitCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::First => f.write_str("the graph begins"),
            Self::DeviceChange { from } => write!(f, "the device changes from {from}"),
            Self::MoreWeights { source } => write!(f, "the weights {source} must be uploaded too"),
        }
    }
}

/// A run of nodes on one device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    /// Where it runs.
    pub device: DeviceId,
    /// Its first node.
    pub start: NodeId,
    /// Past its last node.
    pub end: NodeId,
    /// Why it begins there.
    pub cause: SplitCause,
    first_input: u32,
    input_count: u32,
}

impl Split {
    /// Its nodes.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = NodeId> + DoubleEndedIterator + use<> {
        (self.start.index()..self.end.index()).map(NodeId::new)
    }
    /// The copies made when it starts, in order.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = CopyId> + DoubleEndedIterator + use<> {
        let first = self.first_input as usize;
        (first..first + self.input_count as usize).map(CopyId::new)
    }
}

/// Why a copy exists.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum CopyCause {
    /// The tensor is in a buffer that the device cannot use in place.
    BufferNotUsable {
        /// The buffer.
        buffer: BufferId,
    },
    /// The tensor is an input, which the caller writes where it is.
    InputElsewhere,
    /// The tensor is computed where the device cannot read it.
    ComputedElsewhere,
}

impl fmt::Display for CopyCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BufferNotUsable { buffer } => write!(f, "is in {buffer}, which the device cannot use in place"),
            Self::InputElsewhere => f.write_str("is an input, written elsewhere"),
            Self::ComputedElsewhere => f.write_str("is computed elsewhere"),
        }
    }
}

/// A tensor copied to a device: made once, read by every later split there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InputCopy {
    /// The original.
    pub tensor: TensorId,
    /// The device of the original.
    pub from: DeviceId,
    /// The device that gets the copy.
    pub to: DeviceId,
    /// The split that makes it.
    pub split: SplitId,
    /// The first node that reads it.
    pub reader: NodeId,
    /// Bytes to move.
    pub bytes: Bytes,
    /// Why it exists.
    pub cause: CopyCause,
    /// The copy of the same tensor for another device that was made before this one.
    previous: Option<CopyId>,
}

/// An operand that reads a copy instead of the original.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Redirect {
    /// The reading node.
    pub node: NodeId,
    /// Which of its sources.
    pub operand: u16,
    /// What it reads.
    pub copy: CopyId,
}

/// What a node reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operand {
    /// A tensor of the graph, in place.
    Tensor(TensorId),
    /// A copy on the node's device.
    Copy(CopyId),
}

/// The splits of a graph, in execution order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SplitPlan {
    splits: IdVec<SplitId, Split>,
    copies: IdVec<CopyId, InputCopy>,
    /// Sorted by node and operand.
    redirects: Vec<Redirect>,
}

impl SplitPlan {
    /// The splits: half-open runs that cover all nodes.
    #[must_use]
    pub fn splits(&self) -> &IdVec<SplitId, Split> {
        &self.splits
    }
    /// The copies, in the order in which splits make them.
    #[must_use]
    pub fn copies(&self) -> &IdVec<CopyId, InputCopy> {
        &self.copies
    }
    /// All operands that read copies, by node and operand.
    #[must_use]
    pub fn redirects(&self) -> &[Redirect] {
        &self.redirects
    }
    /// Operands of a node that read copies. O(log redirects).
    #[must_use]
    pub fn redirects_of(&self, node: NodeId) -> &[Redirect] {
        let first = self.redirects.partition_point(|r| r.node < node);
        let count = self.redirects[first..].partition_point(|r| r.node == node);
        &self.redirects[first..first + count]
    }
    /// What a node reads, operand by operand; a hole is `None`. `graph` is the one that was split.
    pub fn operands(&self, graph: &Graph, node: NodeId) -> impl Iterator<Item = Option<Operand>> {
        let mut redirects = self.redirects_of(node).iter().peekable();
        let sources = graph.topology().sources(graph.nodes()[node]);
        sources.iter().enumerate().map(move |(i, source)| match redirects.next_if(|r| usize::from(r.operand) == i) {
            Some(redirect) => Some(Operand::Copy(redirect.copy)),
            None => source.map(Operand::Tensor),
        })
    }
    /// Checks that it was made for a graph with this many nodes.
    pub(crate) fn check(&self, graph: &Graph) -> Result<(), SchedError> {
        let found = self.splits.values().next_back().map_or(0, |s| s.end.index());
        let expected = graph.nodes().len();
        if found == expected { Ok(()) } else { Err(SchedError::Mismatch { what: "split plan", found, expected }) }
    }
}

/// Cuts the nodes into splits. Errors: arguments that belong to another graph. O(nodes + sources + copies × devices).
pub fn split(
    graph: &Graph,
    machine: &Machine,
    residency: &Residency,
    assignment: &Assignment,
) -> Result<SplitPlan, SchedError> {
    residency.check(graph, machine)?;
    assignment.check(graph)?;
    let Some(device) = first_device(graph, assignment) else { return Ok(SplitPlan::default()) };
    let mut splitter = Splitter::new(graph, machine, residency, assignment, device);
    for (node, &tensor) in graph.nodes().iter() {
        if !graph.topology().link(tensor).op.is_view() {
            splitter.visit(node, tensor);
        }
    }
    Ok(splitter.finish())
}

/// The device of the first node that is no view operation, or else of the first node.
fn first_device(graph: &Graph, assignment: &Assignment) -> Option<DeviceId> {
    let mut nodes = graph.nodes().values().copied();
    let first = nodes.clone().next();
    nodes.find(|&t| !graph.topology().link(t).op.is_view()).or(first).map(|t| assignment.device(t))
}

struct Splitter<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    residency: &'a Residency,
    assignment: &'a Assignment,
    plan: SplitPlan,
    /// The split under construction.
    current: Split,
    /// By tensor: its last copy; earlier ones hang on that.
    last_copy: IdVec<TensorId, Option<CopyId>>,
}

impl<'a> Splitter<'a> {
    fn new(
        graph: &'a Graph,
        machine: &'a Machine,
        residency: &'a Residency,
        assignment: &'a Assignment,
        device: DeviceId,
    ) -> Self {
        let start = NodeId::new(0);
        let current = Split { device, start, end: start, cause: SplitCause::First, first_input: 0, input_count: 0 };
        let last_copy = IdVec::filled(None, graph.tensors().len());
        Self { graph, machine, residency, assignment, plan: SplitPlan::default(), current, last_copy }
    }

    #[inline]
    fn visit(&mut self, node: NodeId, tensor: TensorId) {
        let device = self.assignment.device(tensor);
        if let Some(cause) = self.boundary(tensor, device) {
            self.begin(node, device, cause);
        }
        let graph = self.graph;
        for (operand, source) in graph.topology().sources(tensor).iter().enumerate() {
            let Some(source) = *source else { continue };
            if self.is_foreign(source) {
                let copy = self.copy_of(source, node);
                // A tensor has at most `limits::MAX_SOURCES` sources.
                self.plan.redirects.push(Redirect { node, operand: operand as u16, copy });
            }
        }
    }

    /// Why a new split begins at a node, if one does.
    #[inline]
    fn boundary(&self, tensor: TensorId, device: DeviceId) -> Option<SplitCause> {
        if device != self.current.device {
            return Some(SplitCause::DeviceChange { from: self.current.device });
        }
        if self.current.input_count == 0 {
            return None;
        }
        let source = self.graph.topology().sources_some(tensor).find(|&s| self.is_foreign(s) && self.is_weight(s))?;
        Some(SplitCause::MoreWeights { source })
    }

    fn begin(&mut self, node: NodeId, device: DeviceId, cause: SplitCause) {
        let first_input = self.plan.copies.len() as u32;
        let next = Split { device, start: node, end: node, cause, first_input, input_count: 0 };
        let done = std::mem::replace(&mut self.current, next);
        self.plan.splits.push(Split { end: node, ..done });
    }

    /// Whether the current split cannot read a tensor where it is.
    #[inline]
    fn is_foreign(&self, tensor: TensorId) -> bool {
        self.assignment.device(tensor) != self.current.device && !self.can_use(tensor)
    }

    #[inline]
    fn can_use(&self, tensor: TensorId) -> bool {
        match self.residency.storage_of(self.graph, tensor) {
            Some(buffer) => self.machine.can_use(self.current.device, self.residency.buffers[buffer].buffer_type),
            None => self.machine.can_read(self.current.device, self.assignment.device(tensor)),
        }
    }

    /// Whether a tensor has been given a buffer of usage `weights` itself.
    fn is_weight(&self, tensor: TensorId) -> bool {
        self.residency.buffer_of[tensor].is_some_and(|b| self.residency.buffers[b].usage == Usage::Weights)
    }

    /// The copy of a tensor for the current device; a new one becomes an input of the current split.
    fn copy_of(&mut self, tensor: TensorId, reader: NodeId) -> CopyId {
        let to = self.current.device;
        let previous = self.last_copy[tensor];
        let mut earlier = previous;
        while let Some(copy) = earlier {
            if self.plan.copies[copy].to == to {
                return copy;
            }
            earlier = self.plan.copies[copy].previous;
        }
        self.current.input_count += 1;
        let copy = self.plan.copies.push(InputCopy {
            tensor,
            from: self.assignment.device(tensor),
            to,
            split: SplitId::new(self.plan.splits.len()),
            reader,
            bytes: self.graph.tensor(tensor).nbytes(),
            cause: self.cause_of_copy(tensor),
            previous,
        });
        self.last_copy[tensor] = Some(copy);
        copy
    }

    fn cause_of_copy(&self, tensor: TensorId) -> CopyCause {
        match self.residency.storage_of(self.graph, tensor) {
            Some(buffer) => CopyCause::BufferNotUsable { buffer },
            None if self.graph.topology().link(tensor).flags.is_input() => CopyCause::InputElsewhere,
            None => CopyCause::ComputedElsewhere,
        }
    }

    fn finish(mut self) -> SplitPlan {
        self.plan.splits.push(Split { end: NodeId::new(self.graph.nodes().len()), ..self.current });
        self.plan
    }
}

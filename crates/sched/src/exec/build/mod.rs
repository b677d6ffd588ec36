//! From a plan to the steps of a run.

mod copies;
mod experts;
mod nodes;
mod steps;

pub(super) use experts::is_host_source;

use super::error::{ExecError, Named};
use super::paths::PathTable;
use super::place::{Place, Places, ResidentPlace};
use super::schedule::Schedule;
use crate::assign::Assignment;
use crate::lower::Lowered;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::residency::Residency;
use crate::split::{Operand, SplitPlan};
use loadmaster_alloc::{AllocPlan, Arenas, ItemId, Origin};
use loadmaster_graph::{Bytes, Graph, IdVec, NodeId, TensorId};
use smallvec::SmallVec;
use steps::Builder;

/// Everything that was planned for a graph.
#[derive(Clone, Copy)]
pub struct Planned<'a, 'g> {
    /// The machine.
    pub machine: &'a Machine,
    /// What was in memory before.
    pub residency: &'a Residency,
    /// Who computes what.
    pub assignment: &'a Assignment,
    /// The splits and their copies.
    pub splits: &'a SplitPlan,
    /// The graph as the allocator saw it.
    pub lowered: &'a Lowered<'g>,
    /// Where everything lies.
    pub plan: &'a AllocPlan,
    /// The buffer types that the plan was made for.
    pub arenas: &'a Arenas,
    /// Where the tensors with memory of their own are.
    pub resident: &'a dyn Fn(TensorId) -> Option<ResidentPlace>,
}

impl<'a, 'g> Planned<'a, 'g> {
    /// What [`crate::plan()`] made, for the machine and residency that it was made for.
    #[must_use]
    pub fn of(
        plan: &'a Plan<'g>,
        machine: &'a Machine,
        residency: &'a Residency,
        resident: &'a dyn Fn(TensorId) -> Option<ResidentPlace>,
    ) -> Self {
        let Plan { assignment, splits, lowered, arenas, memory } = plan;
        Self { machine, residency, assignment, splits, lowered, plan: memory, arenas, resident }
    }

    pub(super) fn graph(&self) -> &'g Graph {
        self.lowered.graph.graph()
    }
    pub(super) fn tensor_of(&self, node: NodeId) -> TensorId {
        self.graph().nodes()[node]
    }
}

/// What becomes of outputs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Outputs {
    /// They stay where they are computed, until the next run.
    #[default]
    InPlace,
    /// They are also copied to host memory, a slot per turn: for runs that overlap.
    Fetched,
}

/// What is uploaded of experts in host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ExpertUpload {
    /// The experts that a batch uses.
    #[default]
    Used,
    /// All of them.
    All,
}

/// How a plan is executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScheduleOptions {
    /// The way from device to device.
    pub paths: PathTable,
    /// What becomes of outputs.
    pub outputs: Outputs,
    /// What is uploaded of experts.
    pub experts: ExpertUpload,
    /// Smallest piece of a staged copy.
    pub piece: Bytes,
}

impl ScheduleOptions {
    /// Outputs in place, used experts only, pieces of 1 MiB.
    #[must_use]
    pub fn new(paths: PathTable) -> Self {
        let (outputs, experts) = (Outputs::default(), ExpertUpload::default());
        Self { paths, outputs, experts, piece: Bytes::mib(1) }
    }
}

/// The steps of a plan. Errors: a tensor that is neither placed nor resident, or arguments that do not belong together.
/// O((nodes + sources) × turns).
pub fn schedule(planned: &Planned<'_, '_>, options: &ScheduleOptions) -> Result<Schedule, ExecError> {
    let order = order(planned)?;
    check_copies(planned)?;
    let mut builder = Builder::new(planned, options, order);
    for turn in 0..planned.lowered.n_copies() {
        builder.build_turn(turn)?;
    }
    builder.finish()
}

/// Nodes in the order in which the plan holds. Errors: the parts were made for different graphs.
fn order(planned: &Planned<'_, '_>) -> Result<Vec<NodeId>, ExecError> {
    let graph = &planned.lowered.graph;
    let (tensors, nodes) = (planned.graph().tensors().len(), planned.graph().nodes().len());
    let node_of = nodes_by_tensor(planned.graph());
    let item = |position: loadmaster_graph::Step| graph.nodes().get(position.get() as usize).copied();
    let node = |item: ItemId| match graph.item(item).origin {
        Origin::Tensor(tensor) => node_of[tensor],
        Origin::Copy { .. } | Origin::Keep(_) => None,
    };
    let order: Vec<NodeId> = planned.plan.steps(graph).filter_map(item).filter_map(node).collect();
    let split = planned.splits.splits().values().next_back().map_or(0, |s| s.end.index());
    let resident = planned.residency.buffer_of.len();
    for (found, expected) in [(order.len(), nodes), (split, nodes), (resident, tensors)] {
        if found != expected {
            return Err(ExecError::Mismatch { found, expected });
        }
    }
    Ok(order)
}

/// By tensor: its node.
fn nodes_by_tensor(graph: &Graph) -> IdVec<TensorId, Option<NodeId>> {
    let mut node_of = IdVec::filled(None, graph.tensors().len());
    for (node, &tensor) in graph.nodes().iter() {
        node_of[tensor] = Some(node);
    }
    node_of
}

/// A copy is made when its split starts: its original must have been computed by an earlier split.
fn check_copies(planned: &Planned<'_, '_>) -> Result<(), ExecError> {
    let graph = planned.graph();
    let node_of = nodes_by_tensor(graph);
    for copy in planned.splits.copies().values() {
        let start = planned.splits.splits()[copy.split].start;
        if node_of[shown(graph, copy.tensor)].is_some_and(|node| node >= start) {
            let tensor = Named::of(graph, copy.tensor);
            return Err(ExecError::CopiedTooEarly { tensor, split: copy.split });
        }
    }
    Ok(())
}

/// What view operations lead to: the tensor whose computation makes the bytes.
fn shown(graph: &Graph, mut tensor: TensorId) -> TensorId {
    while let (true, Some(source)) = (graph.tensor(tensor).op.is_view(), graph.tensor(tensor).src.first()) {
        let Some(source) = *source else { break };
        tensor = source;
    }
    tensor
}

/// The bytes that a node reads, operand by operand, in runs of a turn; a hole is `None`.
pub(super) fn operand_places(
    planned: &Planned<'_, '_>,
    places: &mut Places<'_, '_>,
    node: NodeId,
    turn: u32,
) -> Result<SmallVec<[Option<Place>; 4]>, ExecError> {
    let operands = planned.splits.operands(planned.graph(), node);
    let place = |operand: Option<Operand>| match operand {
        None => Ok(None),
        Some(Operand::Copy(copy)) => places.of_copy(copy, turn).map(Some),
        Some(Operand::Tensor(tensor)) => places.of_tensor(tensor, turn).map(Some),
    };
    operands.map(place).collect()
}

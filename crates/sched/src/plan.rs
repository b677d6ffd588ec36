//! The whole chain: from a graph to the place of every tensor, without a device.

use crate::assign::{AssignOptions, Assignment, assign};
use crate::buffer_type::compute_types;
use crate::error::SchedError;
use crate::from_file::Setup;
use crate::lower::{LowerOptions, Lowered, lower};
use crate::machine::Machine;
use crate::residency::Residency;
use crate::split::{SplitPlan, split};
use loadmaster_alloc::{AllocError, AllocPlan, Allocation, Arenas, BufferIds, GraphAllocator, Placer};
use loadmaster_graph::Graph;
use tracing::field::Empty;
use tracing::info_span;

/// How a graph is planned.
#[derive(Clone, Debug, Default)]
pub struct PlanOptions {
    /// How devices are chosen.
    pub assign: AssignOptions,
    /// Pipeline copies, and what back ends want kept.
    pub lower: LowerOptions,
    /// How lifetimes become offsets.
    pub placer: Placer,
}

/// Devices, splits, copies and places of one graph. It refers to the graph and holds no memory.
#[derive(Clone, Debug)]
pub struct Plan<'g> {
    /// The device of every tensor, with its cause.
    pub assignment: Assignment,
    /// Splits and copies.
    pub splits: SplitPlan,
    /// What the allocator sees.
    pub lowered: Lowered<'g>,
    /// The buffer types that the ids of `lowered` index.
    pub arenas: Arenas,
    /// Where everything goes.
    pub memory: AllocPlan,
}

impl Plan<'_> {
    /// The ids that the allocator was given.
    #[must_use]
    pub fn ids(&self) -> BufferIds<'_> {
        BufferIds::Each { nodes: &self.lowered.node_buffer_ids, leafs: &self.lowered.leaf_buffer_ids }
    }
}

/// A graph with its devices, splits and copies, before it is placed.
#[derive(Clone, Debug)]
pub struct Cut<'g> {
    /// The device of every tensor, with its cause.
    pub assignment: Assignment,
    /// Splits and copies.
    pub splits: SplitPlan,
    /// What the allocator sees.
    pub lowered: Lowered<'g>,
}

/// Assigns, splits and lowers. Pure. Errors: those of the stages.
pub fn cut<'g>(
    graph: &'g Graph,
    machine: &Machine,
    residency: &Residency,
    how: AssignOptions,
    options: &LowerOptions,
) -> Result<Cut<'g>, SchedError> {
    let span =
        info_span!(target: "loadmaster::plan", "plan", nodes = graph.nodes().len(), splits = Empty, copies = Empty);
    let _entered = span.enter();
    let assignment = assign(graph, machine, residency, how)?;
    let splits = split(graph, machine, residency, &assignment)?;
    let lowered = lower(graph, residency, &assignment, &splits, options)?;
    span.record("splits", splits.splits().len()).record("copies", splits.copies().len());
    Ok(Cut { assignment, splits, lowered })
}

/// Assigns, splits, lowers and places. Pure: equal input, equal plan. Errors: those of the stages.
pub fn plan<'g>(
    graph: &'g Graph,
    machine: &Machine,
    residency: &Residency,
    arenas: Arenas,
    options: &PlanOptions,
) -> Result<Plan<'g>, SchedError> {
    let Cut { assignment, splits, lowered } = cut(graph, machine, residency, options.assign, &options.lower)?;
    let ids = BufferIds::Each { nodes: &lowered.node_buffer_ids, leafs: &lowered.leaf_buffer_ids };
    let memory = loadmaster_alloc::plan(&lowered.graph, &arenas, ids, &options.placer)?;
    Ok(Plan { assignment, splits, lowered, arenas, memory })
}

/// The place of a lowered graph in an allocator's memory.
#[derive(Clone, Debug)]
pub struct PlacedGraph {
    /// Plan and memory.
    pub allocation: Allocation,
    /// Whether a plan that was known before serves the graph.
    pub was_known: bool,
}

/// Places a lowered graph: by a plan that the allocator knows and that serves it, or else by a new one, for which the
/// allocator's memory grows if it must. Errors: what cannot be placed, memory that is refused.
pub fn place_in(allocator: &mut GraphAllocator, lowered: &Lowered<'_>) -> Result<PlacedGraph, AllocError> {
    if let Ok(allocation) = allocator.alloc_graph(&lowered.graph) {
        return Ok(PlacedGraph { allocation, was_known: true });
    }
    let span = info_span!(target: "loadmaster::plan", "reserve", size = Empty);
    let _entered = span.enter();
    let plan = allocator.reserve_n(&lowered.graph, &lowered.node_buffer_ids, &lowered.leaf_buffer_ids)?;
    span.record("size", plan.total_size().get());
    Ok(PlacedGraph { allocation: allocator.alloc_graph(&lowered.graph)?, was_known: false })
}

impl Setup {
    /// Plans the graph that the setup was made for, as its file asks, with the given placer. Errors: as [`plan`].
    pub fn plan<'g>(&self, graph: &'g Graph, placer: Placer) -> Result<Plan<'g>, SchedError> {
        let lower = LowerOptions { n_copies: self.n_copies, ..LowerOptions::default() };
        let options = PlanOptions { assign: self.assign, lower, placer };
        let arenas = Arenas::new(compute_types(&self.machine, &self.sizes));
        plan(graph, &self.machine, &self.residency, arenas, &options)
    }
}

//! The graph that the allocator sees: splits, copies and keep nodes in order, with buffer ids (section 3 of the rules).

use crate::assign::Assignment;
use crate::error::SchedError;
use crate::residency::Residency;
use crate::split::{Split, SplitPlan};
use loadmaster_alloc::{AllocGraph, ArenaId, ItemId};
use loadmaster_graph::{CopyId, DeviceId, Flags, Graph, NodeId, Step, TensorId};
use std::num::NonZeroU32;

/// Most pipeline copies.
pub const MAX_COPIES: u32 = loadmaster_graph::limits::MAX_COPIES as u32;

/// A tensor that a back end wants kept until a node has run (it fuses nodes, say, and reads early sources late).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct KeepUntil {
    /// The node after which it may go.
    pub until: NodeId,
    /// The tensor.
    pub tensor: TensorId,
}

/// How a graph is lowered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LowerOptions {
    /// Copies of every input, used in turn by successive runs. 1: no pipelining.
    pub n_copies: NonZeroU32,
    /// What back ends want kept, in any order.
    pub keep: Vec<KeepUntil>,
}

impl Default for LowerOptions {
    fn default() -> Self {
        Self { n_copies: NonZeroU32::MIN, keep: Vec::new() }
    }
}

/// A graph ready for `reserve_n`. Buffer ids are device ids.
#[derive(Clone, PartialEq, Debug)]
pub struct Lowered<'g> {
    /// Nodes and leafs for the allocator.
    pub graph: AllocGraph<'g>,
    /// By node of `graph`: the arena that it is placed in.
    pub node_buffer_ids: Vec<ArenaId>,
    /// By leaf of `graph`: the arena that it is placed in.
    pub leaf_buffer_ids: Vec<ArenaId>,
    n_copies: u32,
    /// The item of copy 0 of the first split input; the others follow, all copies of an input together.
    first_copy: ItemId,
    /// Input leafs with their copies: the leaf, and the item of its copy 1.
    input_leafs: Vec<(TensorId, ItemId)>,
}

impl Lowered<'_> {
    /// How many copies every input has.
    #[must_use]
    pub fn n_copies(&self) -> u32 {
        self.n_copies
    }

    /// The item of pipeline copy `turn` (taken modulo the number of copies) of a split input.
    #[must_use]
    pub fn copy_item(&self, copy: CopyId, turn: u32) -> ItemId {
        let offset = copy.index() * self.n_copies as usize + (turn % self.n_copies) as usize;
        ItemId::new(self.first_copy.index() + offset)
    }

    /// The item that a run of the given turn reads for an input leaf: copy 0 is the leaf itself. O(log inputs).
    #[must_use]
    pub fn leaf_item(&self, leaf: TensorId, turn: u32) -> ItemId {
        let turn = turn % self.n_copies;
        match self.input_leafs.binary_search_by_key(&leaf, |&(l, _)| l) {
            Ok(found) if turn > 0 => ItemId::new(self.input_leafs[found].1.index() + turn as usize - 1),
            _ => ItemId::of(leaf),
        }
    }
}

/// Lists what the allocator places, in its order. Errors: arguments that belong to another graph, too many copies.
/// O(tensors + sources + copies × pipeline copies).
pub fn lower<'g>(
    graph: &'g Graph,
    residency: &Residency,
    assignment: &Assignment,
    plan: &SplitPlan,
    options: &LowerOptions,
) -> Result<Lowered<'g>, SchedError> {
    assignment.check(graph)?;
    plan.check(graph)?;
    let keep = checked_keep(graph, residency, options)?;
    check_size(graph, plan, options)?;
    let mut lowering = Lowering::new(graph, residency, assignment, plan, options.n_copies.get());
    lowering.add_copies();
    lowering.redirect_operands();
    lowering.push_nodes(&keep);
    lowering.push_leafs();
    Ok(lowering.lowered)
}

/// The wishes of back ends by node, each once, if all of them speak of this graph.
fn checked_keep(graph: &Graph, residency: &Residency, options: &LowerOptions) -> Result<Vec<KeepUntil>, SchedError> {
    let (tensors, nodes) = (graph.tensors().len(), graph.nodes().len());
    let found = residency.buffer_of.len();
    if found != tensors {
        return Err(SchedError::Mismatch { what: "residency.buffer_of", found, expected: tensors });
    }
    let place = "a keep-until wish";
    for &KeepUntil { until, tensor } in &options.keep {
        if tensor.index() >= tensors {
            return Err(SchedError::UnknownTensor { place, tensor, count: tensors });
        }
        if until.index() >= nodes {
            return Err(SchedError::UnknownNode { place, node: until, count: nodes });
        }
    }
    let mut keep = options.keep.clone();
    keep.sort_unstable();
    keep.dedup();
    Ok(keep)
}

fn check_size(graph: &Graph, plan: &SplitPlan, options: &LowerOptions) -> Result<(), SchedError> {
    let copies = u64::from(options.n_copies.get());
    if copies > u64::from(MAX_COPIES) {
        let limit = u64::from(MAX_COPIES);
        return Err(SchedError::Limit { what: "pipeline copies", found: copies, limit });
    }
    let copied = (plan.copies().len() + graph.leafs().len()) as u64;
    let found = graph.tensors().len() as u64 + copied * (copies + 1) + options.keep.len() as u64;
    let limit = u64::from(u32::MAX) / 2;
    if found > limit {
        return Err(SchedError::Limit { what: "items for the allocator", found, limit });
    }
    Ok(())
}

struct Lowering<'a, 'g> {
    source: &'g Graph,
    assignment: &'a Assignment,
    plan: &'a SplitPlan,
    lowered: Lowered<'g>,
}

impl<'a, 'g> Lowering<'a, 'g> {
    fn new(
        source: &'g Graph,
        residency: &Residency,
        assignment: &'a Assignment,
        plan: &'a SplitPlan,
        n_copies: u32,
    ) -> Self {
        let graph = AllocGraph::overlay(source, |t| residency.has_memory(t));
        let first_copy = ItemId::new(graph.items().len());
        let nodes = source.nodes().len() + 2 * plan.copies().len();
        let lowered = Lowered {
            graph,
            node_buffer_ids: Vec::with_capacity(nodes),
            leaf_buffer_ids: Vec::with_capacity(source.leafs().len()),
            n_copies,
            first_copy,
            input_leafs: Vec::new(),
        };
        Self { source, assignment, plan, lowered }
    }

    /// Pipelined copies live as long as the graph: later runs fill them while earlier ones read others.
    fn copy_flags(&self) -> Flags {
        if self.lowered.n_copies > 1 { Flags::INPUT.with(Flags::OUTPUT) } else { Flags::NONE }
    }

    fn add_copies(&mut self) {
        let flags = self.copy_flags();
        for copy in self.plan.copies().values() {
            for turn in 0..self.lowered.n_copies {
                self.lowered.graph.add_copy(copy.tensor, copy.to, turn, flags);
            }
        }
    }

    fn redirect_operands(&mut self) {
        for redirect in self.plan.redirects() {
            let user = ItemId::of(self.source.nodes()[redirect.node]);
            let item = self.lowered.copy_item(redirect.copy, 0);
            self.lowered.graph.set_source(user, usize::from(redirect.operand), item);
        }
    }

    fn push_nodes(&mut self, keep: &[KeepUntil]) {
        let mut wishes = keep;
        for split in self.plan.splits().values() {
            self.push_inputs(split);
            let first = self.position();
            let kept = wishes.len();
            for node in split.nodes() {
                let tensor = self.source.nodes()[node];
                self.push_node(ItemId::of(tensor), self.assignment.device(tensor));
                let due = wishes.partition_point(|k| k.until <= node);
                for wish in &wishes[..due] {
                    let item = self.lowered.graph.add_keep(wish.tensor);
                    self.push_node(item, split.device);
                }
                wishes = &wishes[due..];
            }
            // Whoever asks for a tensor to be kept until a node counts on the order of nodes.
            if wishes.len() == kept {
                self.lowered.graph.add_group(first..self.position());
            }
        }
    }

    fn position(&self) -> Step {
        Step(self.lowered.node_buffer_ids.len() as u32)
    }

    /// For each input of a split: a node that keeps the original until the copy is made, then the copy.
    fn push_inputs(&mut self, split: &Split) {
        for input in split.inputs() {
            let copy = self.plan.copies()[input];
            let keep = self.lowered.graph.add_keep(copy.tensor);
            self.push_node(keep, copy.from);
            self.push_node(self.lowered.copy_item(input, 0), split.device);
        }
    }

    fn push_leafs(&mut self) {
        if self.lowered.n_copies > 1 {
            self.push_input_leafs();
            self.push_copies_as_leafs();
        }
        for &leaf in self.source.leafs().values() {
            self.push_leaf(ItemId::of(leaf), self.assignment.device(leaf));
        }
    }

    fn push_input_leafs(&mut self) {
        let flags = self.copy_flags();
        for &leaf in self.source.leafs().values() {
            let leaf_flags = self.source.topology().link(leaf).flags;
            if !leaf_flags.is_input() {
                continue;
            }
            let device = self.assignment.device(leaf);
            self.lowered.graph.set_flags(ItemId::of(leaf), leaf_flags.with(flags));
            self.push_leaf(ItemId::of(leaf), device);
            self.lowered.input_leafs.push((leaf, ItemId::new(self.lowered.graph.items().len())));
            for turn in 1..self.lowered.n_copies {
                let item = self.lowered.graph.add_copy(leaf, device, turn, flags);
                self.push_leaf(item, device);
            }
        }
        self.lowered.input_leafs.sort_unstable();
    }

    fn push_copies_as_leafs(&mut self) {
        for (id, copy) in self.plan.copies().iter() {
            for turn in 0..self.lowered.n_copies {
                self.push_leaf(self.lowered.copy_item(id, turn), copy.to);
            }
        }
    }

    fn push_node(&mut self, item: ItemId, device: DeviceId) {
        self.lowered.graph.push_node(item);
        self.lowered.node_buffer_ids.push(arena_of(device));
    }

    fn push_leaf(&mut self, item: ItemId, device: DeviceId) {
        self.lowered.graph.push_leaf(item);
        self.lowered.leaf_buffer_ids.push(arena_of(device));
    }
}

/// The arena of a device: the allocator's list of buffer types has one entry a device, in device order.
#[must_use]
pub fn arena_of(device: DeviceId) -> ArenaId {
    ArenaId::new(device.index())
}

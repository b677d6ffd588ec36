//! From a plan to the steps of a run.

use super::error::{ExecError, Named};
use super::paths::{CopyPath, PathTable};
use super::place::{Memory, MemoryId, Place, Places, ResidentPlace};
use super::ranges::{RangeSet, Span};
use super::schedule::{
    Access, Action, ExpertCopy, Hop, Mode, Move, PieceId, Queue, QueueId, Schedule, Staging, Step, StepId, TurnPlaces,
};
use crate::assign::Assignment;
use crate::lower::Lowered;
use crate::machine::Machine;
use crate::plan::Plan;
use crate::residency::Residency;
use crate::split::{InputCopy, Operand, Split, SplitPlan};
use loadmaster_alloc::{AllocPlan, Arenas, ItemId, Origin};
use loadmaster_graph::{Bytes, CopyId, DType, DeviceId, Graph, IdVec, NodeId, Op, SplitId, TensorId};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

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

/// Most pieces of a staged copy.
const MAX_PIECES: u64 = 16;
/// Slots of a staging buffer: one is filled while the other is emptied.
const SLOTS: u64 = 2;
/// Alignment of pieces and output slots.
const LINE: u64 = 64;

/// The steps of a plan. Errors: a tensor that is neither placed nor resident, or arguments that do not belong together.
/// O((nodes + sources) × turns).
pub fn schedule(planned: &Planned<'_, '_>, options: &ScheduleOptions) -> Result<Schedule, ExecError> {
    let order = order(planned)?;
    check_copies(planned)?;
    let experts = find_experts(planned, options);
    let places = Places::new(planned.lowered, planned.plan, planned.arenas, planned.resident);
    let mut builder = Builder {
        planned: *planned,
        options,
        experts,
        order,
        places,
        queues: IdVec::from_vec(vec![Queue::Host]),
        steps: IdVec::new(),
        turn: 0,
        turns: Vec::new(),
        staging: Vec::new(),
        outputs: Vec::new(),
        output_slot: Bytes::ZERO,
    };
    for turn in 0..planned.lowered.n_copies() {
        builder.build_turn(turn)?;
    }
    Ok(builder.finish())
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
    let counts = [order.len(), split, planned.residency.buffer_of.len() + nodes - tensors];
    match counts.iter().find(|&&found| found != nodes) {
        Some(&found) => Err(ExecError::Mismatch { found, expected: nodes }),
        None => Ok(order),
    }
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

/// Weights in host memory, never written, that only MUL_MAT_ID nodes read, all with the same ids.
fn find_experts(planned: &Planned<'_, '_>, options: &ScheduleOptions) -> BTreeMap<CopyId, ExpertCopy> {
    if options.experts == ExpertUpload::All {
        return BTreeMap::new();
    }
    let mut readers: BTreeMap<CopyId, Vec<(NodeId, u16)>> = BTreeMap::new();
    for redirect in planned.splits.redirects() {
        readers.entry(redirect.copy).or_default().push((redirect.node, redirect.operand));
    }
    let found = readers.iter().filter_map(|(&copy, readers)| {
        let experts = as_experts(planned, copy, readers)?;
        Some((copy, experts))
    });
    found.collect()
}

fn as_experts(planned: &Planned<'_, '_>, copy: CopyId, readers: &[(NodeId, u16)]) -> Option<ExpertCopy> {
    let graph = planned.graph();
    let record = &planned.splits.copies()[copy];
    let weights = graph.tensor(record.tensor);
    let resident = planned.residency.has_memory(record.tensor) && weights.op == Op::None && !weights.is_view();
    if !resident || weights.ne[2] < 2 || weights.ne[3] != 1 || !is_host_source(planned, record) {
        return None;
    }
    let ids_of = |&(node, operand): &(NodeId, u16)| {
        let tensor = graph.tensor(planned.tensor_of(node));
        let ids = tensor.src.get(2).copied().flatten();
        ids.filter(|&ids| tensor.op == Op::MulMatId && operand == 0 && graph.tensor(ids).dtype == DType::I32)
    };
    let ids = ids_of(readers.first()?)?;
    let same = readers.iter().all(|reader| ids_of(reader) == Some(ids));
    same.then_some(ExpertCopy { copy, weights: record.tensor, ids, device: record.to })
}

/// Whether the original of a copy is in host memory.
fn is_host_source(planned: &Planned<'_, '_>, copy: &InputCopy) -> bool {
    let machine = planned.machine;
    match planned.residency.storage_of(planned.graph(), copy.tensor) {
        Some(buffer) => machine.buffer_types()[planned.residency.buffers[buffer].buffer_type].host,
        None => machine.compute_type(copy.from).host,
    }
}

struct Builder<'a, 'g> {
    planned: Planned<'a, 'g>,
    options: &'a ScheduleOptions,
    experts: BTreeMap<CopyId, ExpertCopy>,
    order: Vec<NodeId>,
    places: Places<'a, 'g>,
    queues: IdVec<QueueId, Queue>,
    /// The same for every turn; built in the first.
    steps: IdVec<StepId, Step>,
    turn: u32,
    turns: Vec<TurnPlaces>,
    staging: Vec<Staging>,
    outputs: Vec<(TensorId, Place)>,
    output_slot: Bytes,
}

/// Bytes that a step reads and writes, by memory.
#[derive(Default)]
struct Touched {
    by_memory: BTreeMap<MemoryId, (RangeSet, RangeSet)>,
}

impl Touched {
    /// Reads what the step has not written itself.
    fn read(&mut self, place: Place) {
        let (reads, writes) = self.by_memory.entry(place.memory).or_default();
        writes.missing(Span::new(place.offset, place.len), |span| reads.insert(span));
    }
    fn write(&mut self, place: Place) {
        let (_, writes) = self.by_memory.entry(place.memory).or_default();
        writes.insert(Span::new(place.offset, place.len));
    }
}

impl Builder<'_, '_> {
    fn build_turn(&mut self, turn: u32) -> Result<(), ExecError> {
        self.turn = turn;
        self.turns.push(TurnPlaces::default());
        self.add_writes()?;
        let splits = self.planned.splits;
        for (id, split) in splits.splits().iter() {
            for copy in split.inputs() {
                if !self.experts.contains_key(&copy) {
                    self.add_copy(id, copy)?;
                }
            }
            self.add_nodes(id, split)?;
        }
        if self.options.outputs == Outputs::Fetched {
            self.add_fetches()?;
        }
        Ok(())
    }

    fn queue(&mut self, queue: Queue) -> QueueId {
        let found = self.queues.iter().find(|(_, q)| **q == queue).map(|(id, _)| id);
        found.unwrap_or_else(|| self.queues.push(queue))
    }

    fn push(&mut self, queue: Queue, split: Option<SplitId>, action: Action, touched: Touched, moved: Option<Move>) {
        if self.turn == 0 {
            let queue = self.queue(queue);
            self.steps.push(Step { queue, split, action });
        }
        let places = &mut self.turns[self.turn as usize];
        let first = places.accesses.len() as u32;
        for (memory, (reads, writes)) in touched.by_memory {
            let access = |mode| move |&span: &Span| Access { memory, span, mode };
            places.accesses.extend(reads.spans().iter().map(access(Mode::Read)));
            places.accesses.extend(writes.spans().iter().map(access(Mode::Write)));
        }
        places.ranges.push(first..places.accesses.len() as u32);
        places.moves.push(moved);
    }

    /// A step that moves bytes.
    fn push_move(&mut self, queue: Queue, split: Option<SplitId>, action: Action, moved: Move) {
        let mut touched = Touched::default();
        touched.read(moved.from);
        touched.write(moved.to);
        self.push(queue, split, action, touched, Some(moved));
    }

    fn add_writes(&mut self) -> Result<(), ExecError> {
        let planned = self.planned;
        for &leaf in planned.graph().leafs().values() {
            if planned.residency.has_memory(leaf) || planned.graph().tensor(leaf).is_view() {
                continue;
            }
            let place = self.places.of_tensor(leaf, self.turn)?;
            let mut touched = Touched::default();
            touched.write(place);
            let moved = Some(Move { from: place, to: place });
            self.push(Queue::Host, None, Action::Write { leaf }, touched, moved);
        }
        Ok(())
    }

    fn add_copy(&mut self, split: SplitId, copy: CopyId) -> Result<(), ExecError> {
        let record = self.planned.splits.copies()[copy];
        let moved = self.move_of(copy)?;
        let from_host = is_host_source(&self.planned, &record);
        let to_host = self.planned.machine.compute_type(record.to).host;
        let direct = Action::Copy { copy, hop: Hop::Direct };
        if from_host {
            let queue = if self.is_upload(&record) { Queue::Upload(record.to) } else { Queue::Compute(record.to) };
            self.push_move(queue, Some(split), direct, moved);
            return Ok(());
        }
        let path = self.options.paths.get(record.from, record.to);
        if to_host || path == CopyPath::Direct {
            self.push_move(Queue::Compute(record.from), Some(split), direct, moved);
            return Ok(());
        }
        self.add_staged(split, copy, &record, moved);
        Ok(())
    }

    /// The original of a copy and the copy, in runs of this turn.
    fn move_of(&mut self, copy: CopyId) -> Result<Move, ExecError> {
        let tensor = self.planned.splits.copies()[copy].tensor;
        let from = self.places.of_tensor(tensor, self.turn)?;
        Ok(Move { from, to: self.places.of_copy(copy, self.turn)? })
    }

    /// Whether a copy is of weights: in memory before the run, and computed by nobody.
    fn is_upload(&self, copy: &InputCopy) -> bool {
        let tensor = self.planned.graph().tensor(copy.tensor);
        let root = tensor.view.map_or(copy.tensor, |v| v.root);
        self.planned.residency.has_memory(root)
            && self.planned.graph().tensor(root).op == Op::None
            && !self.planned.machine.compute_type(copy.to).host
    }

    fn add_staged(&mut self, split: SplitId, copy: CopyId, record: &InputCopy, moved: Move) {
        let staging = self.staging_of(record.from, record.to);
        let len = moved.from.len.get();
        let piece = len.div_ceil(MAX_PIECES).max(self.options.piece.get()).next_multiple_of(LINE);
        let slot_size = self.staging[staging as usize].size.get() / SLOTS;
        let memory = self.places.memories().id(Memory::Staging(staging));
        for i in 0..len.div_ceil(piece) {
            let start = i * piece;
            let len = Bytes(piece.min(len - start));
            let part = |place: Place| Place { offset: place.offset.saturating_add(Bytes(start)), len, ..place };
            let slot = Place { memory, offset: Bytes(i % SLOTS * slot_size), len };
            let id = PieceId::new(i as usize);
            let out = Move { from: part(moved.from), to: slot };
            let action = Action::Copy { copy, hop: Hop::Out(id) };
            self.push_move(Queue::Compute(record.from), Some(split), action, out);
            let back = Move { from: slot, to: part(moved.to) };
            self.push_move(Queue::Compute(record.to), Some(split), Action::Copy { copy, hop: Hop::In(id) }, back);
        }
    }

    /// The staging buffer of a pair, large enough for the largest piece that any copy of the pair has.
    fn staging_of(&mut self, from: DeviceId, to: DeviceId) -> u32 {
        let found = self.staging.iter().position(|s| s.from == from && s.to == to);
        let index = found.unwrap_or_else(|| {
            let of_pair = self.planned.splits.copies().values().filter(|c| c.from == from && c.to == to);
            let largest = of_pair.map(|c| c.bytes.get()).max().unwrap_or(0);
            let piece = largest.div_ceil(MAX_PIECES).max(self.options.piece.get().min(largest));
            let size = Bytes(piece.next_multiple_of(LINE) * SLOTS);
            self.staging.push(Staging { from, to, size });
            self.staging.len() - 1
        });
        index as u32
    }

    /// The nodes of a split, cut before the first reader of experts.
    fn add_nodes(&mut self, id: SplitId, split: &Split) -> Result<(), ExecError> {
        let range = split.start.index()..split.end.index();
        let mut first = range.start;
        let mut uploaded = BTreeSet::new();
        for position in range.clone() {
            for copy in self.experts_read_by(self.order[position], id) {
                if !uploaded.insert(copy) {
                    continue;
                }
                self.add_compute(id, split.device, first..position)?;
                first = position;
                self.add_expert_upload(id, copy)?;
            }
        }
        self.add_compute(id, split.device, first..range.end)
    }

    fn experts_read_by(&self, node: NodeId, split: SplitId) -> SmallVec<[CopyId; 1]> {
        if self.experts.is_empty() {
            return SmallVec::new();
        }
        let copies = self.planned.splits.copies();
        let redirects = self.planned.splits.redirects_of(node).iter().map(|r| r.copy);
        redirects.filter(|c| copies[*c].split == split && self.experts.contains_key(c)).collect()
    }

    fn add_expert_upload(&mut self, split: SplitId, copy: CopyId) -> Result<(), ExecError> {
        let experts = self.experts[&copy];
        let reader = self.planned.splits.copies()[copy].reader;
        let ids_operand = self.planned.splits.operands(self.planned.graph(), reader).nth(2).flatten();
        let ids = match ids_operand {
            Some(Operand::Copy(ids)) => self.places.of_copy(ids, self.turn)?,
            Some(Operand::Tensor(_)) | None => self.places.of_tensor(experts.ids, self.turn)?,
        };
        let mut touched = Touched::default();
        touched.read(ids);
        let moved = Some(Move { from: ids, to: ids });
        self.push(Queue::Host, Some(split), Action::Ids { copy }, touched, moved);
        let moved = self.move_of(copy)?;
        self.push_move(Queue::Upload(experts.device), Some(split), Action::Experts { copy }, moved);
        Ok(())
    }

    fn add_compute(&mut self, id: SplitId, device: DeviceId, range: Range<usize>) -> Result<(), ExecError> {
        let mut touched = Touched::default();
        let mut computes = false;
        for position in range.clone() {
            let node = self.order[position];
            let op = self.planned.graph().tensor(self.planned.tensor_of(node)).op;
            if op == Op::None || op.is_view() {
                continue;
            }
            computes = true;
            for operand in operand_places(&self.planned, &mut self.places, node, self.turn)?.iter().flatten() {
                touched.read(*operand);
            }
            touched.write(self.places.of_tensor(self.planned.tensor_of(node), self.turn)?);
        }
        if computes {
            let action = Action::Compute { first: range.start as u32, end: range.end as u32 };
            self.push(Queue::Compute(device), Some(id), action, touched, None);
        }
        Ok(())
    }

    fn add_fetches(&mut self) -> Result<(), ExecError> {
        let planned = self.planned;
        let outputs: Vec<TensorId> = planned.graph().nodes().values().copied().collect();
        let mut offset = Bytes::ZERO;
        for output in outputs.into_iter().filter(|&t| planned.graph().tensor(t).flags.is_output()) {
            let from = self.places.of_tensor(output, self.turn)?;
            let memory = self.places.memories().id(Memory::Outputs);
            if self.turn == 0 {
                self.outputs.push((output, Place { memory, offset, len: from.len }));
            }
            let shift = Bytes(self.output_slot.get() * u64::from(self.turn));
            let to = Place { memory, offset: offset.saturating_add(shift), len: from.len };
            offset = Bytes(offset.saturating_add(from.len).get().next_multiple_of(LINE));
            let queue = Queue::Compute(planned.assignment.device(output));
            self.push_move(queue, None, Action::Fetch { output }, Move { from, to });
        }
        if self.turn == 0 {
            self.output_slot = offset;
        }
        Ok(())
    }

    fn finish(mut self) -> Schedule {
        self.drop_reads_of_constants();
        Schedule {
            queues: self.queues,
            memories: self.places.into_memories().kinds().clone(),
            steps: self.steps,
            turns: self.turns,
            order: self.order,
            staging: self.staging,
            outputs: self.outputs,
            output_slot: self.output_slot,
            experts: self.experts.into_values().collect(),
        }
    }

    /// Bytes of memories that no step writes can be in no conflict.
    fn drop_reads_of_constants(&mut self) {
        let accesses = self.turns.iter().flat_map(|t| &t.accesses);
        let written: BTreeSet<MemoryId> = accesses.filter(|a| a.mode == Mode::Write).map(|a| a.memory).collect();
        for turn in &mut self.turns {
            let old = std::mem::take(&mut turn.accesses);
            for range in &mut turn.ranges {
                let kept = old[range.start as usize..range.end as usize].iter();
                let first = turn.accesses.len() as u32;
                turn.accesses.extend(kept.filter(|a| written.contains(&a.memory)));
                *range = first..turn.accesses.len() as u32;
            }
        }
    }
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

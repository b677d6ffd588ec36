//! The steps of one turn after another.

use super::experts::find_experts;
use super::{Planned, ScheduleOptions};
use crate::exec::error::ExecError;
use crate::exec::place::{Memory, MemoryId, Place, Places};
use crate::exec::ranges::{RangeSet, Span};
use crate::exec::schedule::{
    Access, Action, ExpertCopy, Mode, Move, Queue, QueueId, Schedule, Staging, Step, StepId, TurnPlaces,
};
use crate::exec::scratch::{OutputSlots, ScratchNeeds};
use loadmaster_graph::{Bytes, CopyId, IdVec, NodeId, SplitId};
use std::collections::{BTreeMap, BTreeSet};

pub(super) struct Builder<'a, 'g> {
    pub(super) planned: Planned<'a, 'g>,
    pub(super) options: &'a ScheduleOptions,
    pub(super) experts: BTreeMap<CopyId, ExpertCopy>,
    pub(super) order: Vec<NodeId>,
    pub(super) places: Places<'a, 'g>,
    pub(super) queues: IdVec<QueueId, Queue>,
    /// The same for every turn; built in the first.
    pub(super) steps: IdVec<StepId, Step>,
    pub(super) turn: u32,
    pub(super) turns: Vec<TurnPlaces>,
    pub(super) staging: Vec<Staging>,
    pub(super) scratch: ScratchNeeds,
    pub(super) slots: OutputSlots,
}

/// Bytes that a step reads and writes, by memory.
#[derive(Default)]
pub(super) struct Touched {
    by_memory: BTreeMap<MemoryId, (RangeSet, RangeSet)>,
}

impl Touched {
    /// Reads what the step has not written itself.
    pub(super) fn read(&mut self, place: Place) {
        let (reads, writes) = self.by_memory.entry(place.memory).or_default();
        writes.missing(Span::new(place.offset, place.len), |span| reads.insert(span));
    }
    pub(super) fn write(&mut self, place: Place) {
        let (_, writes) = self.by_memory.entry(place.memory).or_default();
        writes.insert(Span::new(place.offset, place.len));
    }
}

impl<'a, 'g> Builder<'a, 'g> {
    pub(super) fn new(planned: &Planned<'a, 'g>, options: &'a ScheduleOptions, order: Vec<NodeId>) -> Self {
        Self {
            planned: *planned,
            options,
            experts: find_experts(planned, options),
            order,
            places: Places::new(planned.lowered, planned.plan, planned.arenas, planned.resident),
            queues: IdVec::from_vec(vec![Queue::Host]),
            steps: IdVec::new(),
            turn: 0,
            turns: Vec::new(),
            staging: Vec::new(),
            scratch: ScratchNeeds::of(planned, options),
            slots: OutputSlots::of(planned, options),
        }
    }

    pub(super) fn build_turn(&mut self, turn: u32) -> Result<(), ExecError> {
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
        self.add_fetches()
    }

    fn queue(&mut self, queue: Queue) -> QueueId {
        let found = self.queues.iter().find(|(_, q)| **q == queue).map(|(id, _)| id);
        found.unwrap_or_else(|| self.queues.push(queue))
    }

    pub(super) fn push(
        &mut self,
        queue: Queue,
        split: Option<SplitId>,
        action: Action,
        touched: Touched,
        moved: Option<Move>,
    ) {
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
    pub(super) fn push_move(&mut self, queue: Queue, split: Option<SplitId>, action: Action, moved: Move) {
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

    fn add_fetches(&mut self) -> Result<(), ExecError> {
        for (output, offset, _) in self.slots.outputs.clone() {
            let from = self.places.of_tensor(output, self.turn)?;
            let memory = self.places.memories().id(Memory::Outputs);
            let shift = Bytes(self.slots.slot.get() * u64::from(self.turn));
            let to = Place { memory, offset: offset.saturating_add(shift), len: from.len };
            let queue = self.send(self.planned.assignment.device(output));
            self.push_move(queue, None, Action::Fetch { output }, Move { from, to });
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Schedule, ExecError> {
        let expected = self.steps.len();
        if let Some(turn) = self.turns.iter().find(|t| t.ranges.len() != expected) {
            return Err(ExecError::TurnsDiffer { found: turn.ranges.len(), expected });
        }
        self.drop_reads_of_constants();
        let scratch_of_outputs = self.slots.place(&self.planned).map(|(use_, _)| use_);
        let mut outputs = Vec::new();
        for &(tensor, offset, len) in &self.slots.outputs {
            outputs.push((tensor, Place { memory: self.places.memories().id(Memory::Outputs), offset, len }));
        }
        Ok(Schedule {
            queues: self.queues,
            memories: self.places.into_memories().kinds().clone(),
            steps: self.steps,
            turns: self.turns,
            order: self.order,
            staging: self.staging,
            outputs,
            output_slot: self.slots.slot,
            scratch: self.scratch,
            scratch_of_outputs,
            experts: self.experts.into_values().collect(),
        })
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

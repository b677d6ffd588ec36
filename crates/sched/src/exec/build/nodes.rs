//! The nodes of a split, cut where that lets some of them run earlier.

use super::operand_places;
use super::steps::{Builder, Touched};
use crate::exec::error::ExecError;
use crate::exec::place::Place;
use crate::exec::ranges::Span;
use crate::exec::schedule::{Action, Move, Queue};
use crate::split::{Operand, Split};
use loadmaster_graph::{CopyId, DeviceId, NodeId, Op, SplitId, TensorId};
use smallvec::SmallVec;
use std::collections::BTreeSet;
use std::ops::Range;

impl Builder<'_, '_> {
    /// The nodes of a split, cut before the first reader of experts, and where a wait in the middle lets the nodes before it
    /// run earlier.
    pub(super) fn add_nodes(&mut self, id: SplitId, split: &Split) -> Result<(), ExecError> {
        let range = split.start.index()..split.end.index();
        let mut first = range.start;
        let mut uploaded = BTreeSet::new();
        let mut sent = self.sent_from(split.device)?;
        for position in range.clone() {
            let node = self.order[position];
            if !sent.is_empty() && self.overwrites(node, &mut sent)? {
                self.add_compute(id, split.device, first..position)?;
                first = position;
            }
            for copy in self.experts_read_by(node, id) {
                if uploaded.insert(copy) {
                    self.add_compute(id, split.device, first..position)?;
                    first = position;
                    self.add_expert_upload(id, copy)?;
                }
            }
        }
        self.add_compute(id, split.device, first..range.end)
    }

    /// The bytes of a device that are sent next to what it computes: the run before may still be sending them.
    fn sent_from(&mut self, device: DeviceId) -> Result<Vec<Place>, ExecError> {
        let planned = self.planned;
        if self.send(device) == Queue::Compute(device) {
            return Ok(Vec::new());
        }
        let copies = planned.splits.copies().values().filter(|c| c.from == device).map(|c| c.tensor);
        let outputs = self.slots.outputs.iter().map(|&(t, ..)| t).filter(|&t| planned.assignment.device(t) == device);
        let tensors: BTreeSet<TensorId> = copies.chain(outputs).collect();
        tensors.into_iter().map(|t| self.places.of_tensor(t, self.turn)).collect()
    }

    /// Whether a node is the first to write over something in the list; what it writes over is taken out.
    fn overwrites(&mut self, node: NodeId, sent: &mut Vec<Place>) -> Result<bool, ExecError> {
        let tensor = self.planned.tensor_of(node);
        let op = self.planned.graph().tensor(tensor).op;
        if op == Op::None || op.is_view() {
            return Ok(false);
        }
        let written = self.places.of_tensor(tensor, self.turn)?;
        let span = |place: &Place| Span::new(place.offset, place.len);
        let before = sent.len();
        sent.retain(|place| place.memory != written.memory || !span(place).meets(span(&written)));
        Ok(sent.len() < before)
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
        self.push_move(Queue::Receive(experts.device), Some(split), Action::Experts { copy }, moved);
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
}

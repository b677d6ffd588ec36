//! How a split input is copied: in which queue, and in how many steps.

use super::experts::is_host_source;
use super::steps::Builder;
use crate::exec::error::ExecError;
use crate::exec::place::{Memory, Place};
use crate::exec::schedule::{Action, Hop, Move, PieceId, Queue, Staging};
use crate::exec::scratch::{self, LINE, MAX_PIECES, SLOTS, ScratchUse};
use crate::split::InputCopy;
use loadmaster_graph::{Bytes, CopyId, DeviceId, Op, SplitId};

impl Builder<'_, '_> {
    pub(super) fn add_copy(&mut self, split: SplitId, copy: CopyId) -> Result<(), ExecError> {
        let record = self.planned.splits.copies()[copy];
        let moved = self.move_of(copy)?;
        let from_host = is_host_source(&self.planned, &record);
        let direct = Action::Copy { copy, hop: Hop::Direct };
        if from_host {
            let queue = if self.is_upload(&record) { Queue::Receive(record.to) } else { self.receive(record.to) };
            self.push_move(queue, Some(split), direct, moved);
            return Ok(());
        }
        if !scratch::is_staged(&self.planned, self.options, &record) {
            self.push_move(self.send(record.from), Some(split), direct, moved);
            return Ok(());
        }
        self.add_staged(split, copy, &record, moved);
        Ok(())
    }

    /// The queue of copies to a device. Where runs overlap, they go on next to what the device computes.
    pub(super) fn receive(&self, to: DeviceId) -> Queue {
        let beside = self.overlaps() && !self.planned.machine.compute_type(to).host;
        if beside { Queue::Receive(to) } else { Queue::Compute(to) }
    }

    /// The queue of copies from a device.
    pub(super) fn send(&self, from: DeviceId) -> Queue {
        let beside = self.overlaps() && !self.planned.machine.compute_type(from).host;
        if beside { Queue::Send(from) } else { Queue::Compute(from) }
    }

    fn overlaps(&self) -> bool {
        self.planned.lowered.n_copies() > 1
    }

    /// The original of a copy and the copy, in runs of this turn.
    pub(super) fn move_of(&mut self, copy: CopyId) -> Result<Move, ExecError> {
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
            self.push_move(self.send(record.from), Some(split), action, out);
            let back = Move { from: slot, to: part(moved.to) };
            self.push_move(self.receive(record.to), Some(split), Action::Copy { copy, hop: Hop::In(id) }, back);
        }
    }

    /// The staging buffer of a pair, large enough for the largest piece that any copy of the pair has.
    fn staging_of(&mut self, from: DeviceId, to: DeviceId) -> u32 {
        let found = self.staging.iter().position(|s| s.from == from && s.to == to);
        let index = found.unwrap_or_else(|| {
            let of_pair = |&(use_, _): &(ScratchUse, _)| use_ == ScratchUse::Staging { from, to };
            // Every pair with a staged copy has its need.
            let size = self.scratch.iter().find(of_pair).map_or(Bytes::ZERO, |(_, need)| need.size);
            self.staging.push(Staging { from, to, size });
            self.staging.len() - 1
        });
        index as u32
    }
}

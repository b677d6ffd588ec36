//! Bytes in the coarsest pieces that no access of a schedule divides.

use super::place::MemoryId;
use super::schedule::{Mode, Schedule, StepId};
use loadmaster_graph::{Bytes, IdVec, define_id};
use std::ops::Range;

define_id! {
    /// Bytes that every access touches together or not at all.
    pub CellId, "cell";
}

/// Cells that a step touches, and how.
type Touched = Vec<(Range<u32>, Mode)>;

/// The cells of a schedule, and which of them each step touches in each turn.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    bounds: IdVec<MemoryId, Vec<Bytes>>,
    first: IdVec<MemoryId, usize>,
    count: usize,
    /// By turn and step.
    touched: Vec<IdVec<StepId, Touched>>,
}

impl Cells {
    pub(super) fn of(schedule: &Schedule) -> Self {
        let mut bounds = IdVec::<MemoryId, Vec<Bytes>>::filled(Vec::new(), schedule.memories().len());
        for (step, turn) in steps_and_turns(schedule) {
            for access in schedule.accesses(step, turn) {
                bounds[access.memory].extend([access.span.start, access.span.end]);
            }
        }
        let mut count = 0;
        let first = bounds
            .values_mut()
            .map(|list| {
                list.sort_unstable();
                list.dedup();
                let first = count;
                count += list.len().saturating_sub(1);
                first
            })
            .collect();
        let mut this = Self { bounds, first, count, touched: Vec::new() };
        for turn in 0..schedule.turns() {
            let of_step = |step| {
                let accesses = schedule.accesses(step, turn).iter();
                accesses.map(|a| (this.range(a.memory, a.span.start, a.span.end), a.mode)).collect()
            };
            let touched = schedule.steps().ids().map(of_step).collect();
            this.touched.push(touched);
        }
        this
    }

    fn range(&self, memory: MemoryId, start: Bytes, end: Bytes) -> Range<u32> {
        let at = |b: Bytes| (self.first[memory] + self.bounds[memory].partition_point(|&x| x < b)) as u32;
        at(start)..at(end)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// The cells that a step touches in runs of a turn.
    pub(super) fn touched(&self, step: StepId, turn: u32) -> &[(Range<u32>, Mode)] {
        &self.touched[turn as usize % self.touched.len()][step]
    }

    /// The memory of a cell and its first byte.
    pub(super) fn locate(&self, cell: CellId) -> Option<(MemoryId, Bytes)> {
        let memory = self.first.iter().filter(|(m, first)| **first <= cell.index() && !self.bounds[*m].is_empty());
        let (memory, first) = memory.last()?;
        Some((memory, *self.bounds[memory].get(cell.index() - first)?))
    }
}

fn steps_and_turns(schedule: &Schedule) -> impl Iterator<Item = (StepId, u32)> {
    (0..schedule.turns()).flat_map(|turn| schedule.steps().ids().map(move |step| (step, turn)))
}

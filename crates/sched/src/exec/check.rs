//! An independent check of a protocol: every two steps that conflict are ordered.
//!
//! It shares no code with what derives waits: bytes are cells instead of ranges, and it asks of every conflict, over more
//! runs than the derivation looks at, whether the order follows from queues, issue and waits alone.

use super::cells::{CellId, Cells};
use super::hazards::{Wait, Waits};
use super::place::MemoryId;
use super::schedule::{Mode, QueueId, Schedule, StepId};
use loadmaster_graph::Bytes;
use std::fmt;

/// A step of a run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RunStep {
    /// The run.
    pub run: u32,
    /// The step.
    pub step: StepId,
}

impl fmt::Display for RunStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of run {}", self.step, self.run)
    }
}

/// Two steps that nothing orders touch a common byte, and one of them writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{later} touches byte {} of {memory} while {earlier} may still use it", offset.get())]
pub struct Race {
    /// The step that comes first in program order.
    pub earlier: RunStep,
    /// The other.
    pub later: RunStep,
    /// The memory.
    pub memory: MemoryId,
    /// The first byte of theirs.
    pub offset: Bytes,
}

/// Number of runs that show every conflict: one with each turn in the past, twice.
pub(super) fn runs_to_check(schedule: &Schedule) -> u32 {
    2 * schedule.turns() + 2
}

/// The run whose record a wait of step `later` in `run` means, with the ring of events that the executor keeps; `None`:
/// the event has not been recorded.
pub(super) fn awaited_run(turns: u32, run: u32, later: StepId, wait: Wait) -> Option<u32> {
    let instance = (run + turns - wait.runs_back % turns) % turns;
    // The latest run with that instance whose step was issued before the wait.
    let newest = if wait.on < later { Some(run) } else { run.checked_sub(1) };
    (0..=newest?).rev().take(turns as usize).find(|r| r % turns == instance)
}

/// Checks the rule of the protocol. Errors: the first conflict without an order. O(runs × (accesses + steps × queues)).
pub fn check(schedule: &Schedule, waits: &Waits) -> Result<(), Race> {
    let cells = Cells::of(schedule);
    let mut checker = Checker {
        schedule,
        waits,
        known: Vec::new(),
        ended_with: vec![Vec::new(); schedule.queues().len()],
        writer: vec![None; cells.len()],
        readers: vec![Vec::new(); cells.len()],
        cells: &cells,
    };
    for run in 0..runs_to_check(schedule) {
        for step in schedule.steps().ids() {
            checker.visit(RunStep { run, step })?;
        }
    }
    Ok(())
}

/// Per queue: how many of its steps have surely ended.
type Known = Vec<usize>;

/// A step by its queue and its position there.
#[derive(Clone, Copy)]
struct Seen {
    at: RunStep,
    queue: QueueId,
    position: usize,
}

struct Checker<'a> {
    schedule: &'a Schedule,
    waits: &'a Waits,
    cells: &'a Cells,
    /// By run and step: what has ended when it ends.
    known: Vec<Known>,
    /// Per queue: what has ended when its last step ends.
    ended_with: Vec<Known>,
    writer: Vec<Option<Seen>>,
    readers: Vec<Vec<Seen>>,
}

impl Checker<'_> {
    fn visit(&mut self, at: RunStep) -> Result<(), Race> {
        let queue = self.schedule.steps()[at.step].queue;
        let known = self.known_at_start(at, queue);
        let position = known[queue.index()];
        let seen = Seen { at, queue, position };
        let cells = self.cells;
        for (range, mode) in cells.touched(at.step, at.run) {
            for cell in range.clone() {
                self.touch(CellId::new(cell as usize), *mode, seen, &known)?;
            }
        }
        let mut after = known;
        after[queue.index()] += 1;
        self.known.push(after.clone());
        self.ended_with[queue.index()] = after;
        Ok(())
    }

    fn known_at_start(&self, at: RunStep, queue: QueueId) -> Known {
        let mut known = vec![0; self.ended_with.len()];
        let mut learn = |other: &Known| known.iter_mut().zip(other).for_each(|(k, &o)| *k = o.max(*k));
        learn(&self.ended_with[queue.index()]);
        learn(&self.ended_with[0]);
        for &wait in self.waits.of(at.step) {
            if let Some(run) = awaited_run(self.schedule.turns(), at.run, at.step, wait) {
                learn(&self.known[run as usize * self.schedule.steps().len() + wait.on.index()]);
            }
        }
        known
    }

    fn touch(&mut self, cell: CellId, mode: Mode, seen: Seen, known: &Known) -> Result<(), Race> {
        let race = |earlier: Seen| {
            let (memory, offset) = self.cells.locate(cell).unwrap_or((MemoryId::new(0), Bytes::ZERO));
            Race { earlier: earlier.at, later: seen.at, memory, offset }
        };
        let unordered = |earlier: &&Seen| earlier.at != seen.at && known[earlier.queue.index()] <= earlier.position;
        if let Some(&earlier) = self.writer[cell.index()].as_ref().filter(unordered) {
            return Err(race(earlier));
        }
        match mode {
            Mode::Read => self.readers[cell.index()].push(seen),
            Mode::Write => {
                if let Some(&earlier) = self.readers[cell.index()].iter().find(unordered) {
                    return Err(race(earlier));
                }
                self.readers[cell.index()].clear();
                self.writer[cell.index()] = Some(seen);
            }
        }
        Ok(())
    }
}

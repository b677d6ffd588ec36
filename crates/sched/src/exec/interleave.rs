//! Runs a protocol in adversarial orders.
//!
//! An abstract machine with one actor per queue. A step takes time: other actors move between its start and its end. Which actor
//! moves is drawn from a seed: mostly the one of highest priority, with priorities that change now and then (after Burckhardt
//! et al., "A randomized scheduler with probabilistic guarantees of finding bugs", ASPLOS 2010), so that queues lag far
//! behind or run far ahead of each other wherever waits allow it. A race is a step that starts while another uses its bytes,
//! or that finds bytes of another writer than program order says.

use super::cells::{CellId, Cells};
use super::check::{Race, RunStep, awaited_run, runs_to_check};
use super::hazards::Waits;
use super::place::MemoryId;
use super::schedule::{Mode, QueueId, Schedule, StepId};
use loadmaster_graph::{Bytes, IdVec};

/// What an interleaving found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Finding {
    /// Two steps used the same bytes in the wrong order, or at once.
    #[error(transparent)]
    Race(#[from] Race),
    /// Nobody can move, but not everything has run.
    #[error("{0} can never start")]
    Deadlock(RunStep),
}

/// A step of all runs, numbered in program order.
type Serial = u32;

/// Nobody.
const NONE: Serial = u32::MAX;

/// A protocol, prepared to be run under many seeds.
#[derive(Debug)]
pub struct Interleaver<'a> {
    schedule: &'a Schedule,
    cells: Cells,
    runs: u32,
    /// By queue: its steps in order.
    work: IdVec<QueueId, Vec<Serial>>,
    /// By serial: what must have ended.
    awaited: Vec<Vec<Serial>>,
    /// By serial: its position in its queue.
    position: Vec<u32>,
    /// By serial and touched cell: the writer that program order says.
    expected: Vec<Vec<Serial>>,
}

impl<'a> Interleaver<'a> {
    /// Prepares a protocol over as many runs as show every conflict.
    #[must_use]
    pub fn new(schedule: &'a Schedule, waits: &Waits) -> Self {
        let runs = runs_to_check(schedule);
        let cells = Cells::of(schedule);
        let mut this = Self {
            schedule,
            runs,
            work: IdVec::filled(Vec::new(), schedule.queues().len()),
            awaited: Vec::new(),
            position: Vec::new(),
            expected: Vec::new(),
            cells,
        };
        let mut writer = vec![NONE; this.cells.len()];
        for serial in 0..this.count() {
            this.prepare(serial, waits, &mut writer);
        }
        this
    }

    fn count(&self) -> Serial {
        self.runs * self.schedule.steps().len() as u32
    }

    fn at(&self, serial: Serial) -> RunStep {
        let steps = self.schedule.steps().len() as u32;
        RunStep { run: serial / steps, step: StepId::new((serial % steps) as usize) }
    }

    fn queue(&self, serial: Serial) -> QueueId {
        self.schedule.steps()[self.at(serial).step].queue
    }

    fn touched(&self, serial: Serial) -> impl Iterator<Item = (CellId, Mode)> + '_ {
        let at = self.at(serial);
        let ranges = self.cells.touched(at.step, at.run).iter();
        ranges.flat_map(|(range, mode)| range.clone().map(|cell| (CellId::new(cell as usize), *mode)))
    }

    fn prepare(&mut self, serial: Serial, waits: &Waits, writer: &mut [Serial]) {
        let at = self.at(serial);
        let steps = self.schedule.steps().len() as u32;
        let awaited = waits.of(at.step).iter().filter_map(|&wait| {
            let run = awaited_run(self.schedule.turns(), at.run, at.step, wait)?;
            Some(run * steps + wait.on.index() as u32)
        });
        self.awaited.push(awaited.collect());
        let queue = self.queue(serial);
        self.position.push(self.work[queue].len() as u32);
        self.work[queue].push(serial);
        let expected = self.touched(serial).map(|(cell, _)| writer[cell.index()]).collect();
        for (cell, mode) in self.touched(serial) {
            if mode == Mode::Write {
                writer[cell.index()] = serial;
            }
        }
        self.expected.push(expected);
    }

    /// Runs everything once in the order that the seed draws. Errors: what went wrong first. O(runs × accesses).
    pub fn run(&self, seed: u64) -> Result<(), Finding> {
        Machine::new(self, seed).run()
    }
}

/// One actor: a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Actor {
    /// Steps that have started.
    started: u32,
    /// Steps that have ended.
    ended: u32,
    priority: u64,
}

struct Machine<'a> {
    of: &'a Interleaver<'a>,
    actors: IdVec<QueueId, Actor>,
    /// By cell: who wrote it last.
    written: Vec<Serial>,
    /// By cell: who is writing it.
    writing: Vec<Serial>,
    /// By cell: who began to read it last, and how many are reading it.
    reading: Vec<(Serial, u32)>,
    random: Random,
    /// One in so many moves changes a priority, and is drawn without regard to priority. Some seeds are steady, so that
    /// a queue can fall whole runs behind; others are restless.
    change: u64,
    luck: u64,
}

impl<'a> Machine<'a> {
    fn new(of: &'a Interleaver<'a>, seed: u64) -> Self {
        let mut random = Random(seed);
        let actors = of.work.ids().map(|_| Actor { priority: random.next(), ..Actor::default() }).collect();
        let change = [16, 128, 1024, 1 << 20][random.below(4)];
        let luck = [6, 64, 1 << 12][random.below(3)];
        let cells = of.cells.len();
        let (written, writing, reading) = (vec![NONE; cells], vec![NONE; cells], vec![(NONE, 0); cells]);
        Self { of, actors, written, writing, reading, random, change, luck }
    }

    fn run(&mut self) -> Result<(), Finding> {
        loop {
            match self.choose() {
                Some(queue) => self.advance(queue)?,
                None => return self.finish(),
            }
        }
    }

    fn finish(&self) -> Result<(), Finding> {
        let left = self.actors.iter().filter_map(|(q, a)| self.of.work[q].get(a.ended as usize));
        match left.min() {
            Some(&serial) => Err(Finding::Deadlock(self.of.at(serial))),
            None => Ok(()),
        }
    }

    /// An actor that can move.
    fn choose(&mut self) -> Option<QueueId> {
        if self.random.one_in(self.change) {
            let lucky = QueueId::new(self.random.below(self.actors.len()));
            self.actors[lucky].priority = self.random.next();
        }
        let by_priority = !self.random.one_in(self.luck);
        let able = self.actors.ids().filter(|&q| self.can_move(q));
        if by_priority {
            return able.max_by_key(|&q| self.actors[q].priority);
        }
        let count = able.count();
        let pick = self.random.below(count.max(1));
        self.actors.ids().filter(|&q| self.can_move(q)).nth(pick)
    }

    fn can_move(&self, queue: QueueId) -> bool {
        let actor = &self.actors[queue];
        if actor.started > actor.ended {
            return true;
        }
        let Some(&serial) = self.of.work[queue].get(actor.started as usize) else { return false };
        let ended = |&s: &Serial| self.actors[self.of.queue(s)].ended > self.of.position[s as usize];
        self.is_issued(queue, serial) && self.of.awaited[serial as usize].iter().all(ended)
    }

    /// The host issues in program order: a device step is in its queue when all host steps before it have ended.
    fn is_issued(&self, queue: QueueId, serial: Serial) -> bool {
        let host = QueueId::new(0);
        let next = self.of.work[host].get(self.actors[host].ended as usize);
        queue == host || next.is_none_or(|&next| next > serial)
    }

    fn advance(&mut self, queue: QueueId) -> Result<(), Race> {
        let actor = self.actors[queue];
        if actor.started == actor.ended {
            let serial = self.of.work[queue][actor.started as usize];
            self.actors[queue].started += 1;
            return self.start(serial);
        }
        self.end(self.of.work[queue][actor.ended as usize]);
        self.actors[queue].ended += 1;
        Ok(())
    }

    fn start(&mut self, serial: Serial) -> Result<(), Race> {
        let of = self.of;
        for ((cell, mode), &expected) in of.touched(serial).zip(&of.expected[serial as usize]) {
            let i = cell.index();
            let busy = (self.writing[i] != NONE && self.writing[i] != serial).then_some(self.writing[i]);
            let read = (mode == Mode::Write && self.reading[i].1 > u32::from(self.reading[i].0 == serial))
                .then_some(self.reading[i].0);
            let stale = (self.written[i] != expected && expected != serial).then_some(expected);
            if let Some(other) = busy.or(read).or(stale) {
                return Err(self.race(cell, serial, other));
            }
            match mode {
                Mode::Read => self.reading[i] = (serial, self.reading[i].1 + 1),
                Mode::Write => self.writing[i] = serial,
            }
        }
        Ok(())
    }

    fn end(&mut self, serial: Serial) {
        for (cell, mode) in self.of.touched(serial) {
            let i = cell.index();
            match mode {
                Mode::Read => self.reading[i].1 -= 1,
                Mode::Write => {
                    self.writing[i] = NONE;
                    self.written[i] = serial;
                }
            }
        }
    }

    fn race(&self, cell: CellId, serial: Serial, other: Serial) -> Race {
        let (memory, offset) = self.of.cells.locate(cell).unwrap_or((MemoryId::new(0), Bytes::ZERO));
        let other = if other == NONE { serial } else { other };
        let (earlier, later) = (serial.min(other), serial.max(other));
        Race { earlier: self.of.at(earlier), later: self.of.at(later), memory, offset }
    }
}

/// SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[derive(Clone, Copy, Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

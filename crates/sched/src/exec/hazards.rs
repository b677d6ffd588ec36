//! The waits that a schedule needs: the transitive reduction of its hazards (see `protocol.md`).

use super::place::MemoryId;
use super::ranges::Span;
use super::schedule::{Access, Mode, QueueId, Schedule, StepId};
use loadmaster_graph::{Bytes, IdVec};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// A step waits for the end of another, of this run or an earlier one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Wait {
    /// The step that is waited for.
    pub on: StepId,
    /// How many runs back; at most the number of turns.
    pub runs_back: u32,
}

/// The waits of every step, and which steps record events.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Waits {
    ranges: IdVec<StepId, Range<u32>>,
    list: Vec<Wait>,
    recorded: IdVec<StepId, bool>,
}

impl Waits {
    fn new(by_step: Vec<SmallVec<[Wait; 2]>>) -> Self {
        let mut recorded = IdVec::filled(false, by_step.len());
        let mut list = Vec::new();
        let ranges = by_step
            .into_iter()
            .map(|waits| {
                let first = list.len() as u32;
                waits.iter().for_each(|w| recorded[w.on] = true);
                list.extend(waits);
                first..list.len() as u32
            })
            .collect();
        Self { ranges, list, recorded }
    }

    /// The waits of a step.
    #[must_use]
    pub fn of(&self, step: StepId) -> &[Wait] {
        let range = &self.ranges[step];
        &self.list[range.start as usize..range.end as usize]
    }
    /// Whether somebody waits for a step.
    #[must_use]
    pub fn is_recorded(&self, step: StepId) -> bool {
        self.recorded[step]
    }
    /// All waits, with the step that waits.
    pub fn iter(&self) -> impl Iterator<Item = (StepId, Wait)> {
        self.ranges.ids().flat_map(|step| self.of(step).iter().map(move |&wait| (step, wait)))
    }
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
    /// The same without the wait at `index` of [`Self::iter`]: what a test removes to see that it is missed.
    #[must_use]
    pub fn without(&self, index: usize) -> Self {
        let mut by_step: Vec<SmallVec<[Wait; 2]>> = self.ranges.ids().map(|s| self.of(s).into()).collect();
        let mut left = index;
        for waits in &mut by_step {
            if left < waits.len() {
                waits.remove(left);
                break;
            }
            left -= waits.len();
        }
        Self::new(by_step)
    }
}

/// A step of a run: run × steps + step, plus one; 0 is "none".
type Stamp = u64;

/// Bytes with a common past.
#[derive(Clone, Debug, Default)]
struct Past {
    end: Bytes,
    writer: Stamp,
    /// Since that write, of each queue the latest.
    readers: SmallVec<[Stamp; 2]>,
}

type Pasts = BTreeMap<Bytes, Past>;

/// Derives the waits of a schedule. O(turns × accesses × log accesses + turns × steps × queues).
#[must_use]
pub fn waits(schedule: &Schedule) -> Waits {
    let mut derivation = Derivation::new(schedule);
    let last = schedule.turns();
    for run in 0..last {
        schedule.steps().ids().for_each(|step| {
            derivation.step(run, step);
        });
    }
    Waits::new(schedule.steps().ids().map(|step| derivation.step(last, step)).collect())
}

struct Derivation<'a> {
    schedule: &'a Schedule,
    pasts: IdVec<MemoryId, Pasts>,
    /// By stamp: of each queue the latest stamp that has ended when this step ends.
    clocks: Vec<Stamp>,
    /// By queue: its latest stamp.
    latest: IdVec<QueueId, Stamp>,
    /// By queue: the latest stamp that conflicts with the current step.
    candidates: IdVec<QueueId, Stamp>,
}

impl<'a> Derivation<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let queues = schedule.queues().len();
        Self {
            schedule,
            pasts: IdVec::filled(Pasts::new(), schedule.memories().len()),
            clocks: vec![0; queues],
            latest: IdVec::filled(0, queues),
            candidates: IdVec::filled(0, queues),
        }
    }

    fn clock(&self, stamp: Stamp) -> &[Stamp] {
        let queues = self.latest.len();
        let first = stamp as usize * queues;
        &self.clocks[first..first + queues]
    }

    /// The queue and step of a stamp that is not 0.
    fn step_of(&self, stamp: Stamp) -> (u64, StepId) {
        let steps = self.schedule.steps().len() as u64;
        ((stamp - 1) / steps, StepId::new(((stamp - 1) % steps) as usize))
    }

    /// Takes the next step in program order and returns its waits.
    fn step(&mut self, run: u32, step: StepId) -> SmallVec<[Wait; 2]> {
        let stamp = u64::from(run) * self.schedule.steps().len() as u64 + step.index() as u64 + 1;
        let queue = self.schedule.steps()[step].queue;
        self.candidates.values_mut().for_each(|c| *c = 0);
        for access in self.schedule.accesses(step, run) {
            self.touch(stamp, queue, access);
        }
        let host = self.latest[QueueId::new(0)];
        let mut clock: SmallVec<[Stamp; 16]> = self.clock(self.latest[queue]).into();
        join(&mut clock, self.clock(host));
        let needed = self.needed(queue, &clock);
        for &stamp in &needed {
            join(&mut clock, self.clock(stamp));
        }
        clock[queue.index()] = stamp;
        self.clocks.extend_from_slice(&clock);
        self.latest[queue] = stamp;
        needed.iter().map(|&stamp| self.wait(run, stamp)).collect()
    }

    fn wait(&self, run: u32, stamp: Stamp) -> Wait {
        let (earlier, on) = self.step_of(stamp);
        Wait { on, runs_back: run - earlier as u32 }
    }

    /// The candidates that do not happen before the step anyway.
    fn needed(&self, queue: QueueId, clock: &[Stamp]) -> SmallVec<[Stamp; 4]> {
        let open = |(q, &stamp): (QueueId, &Stamp)| (q != queue && stamp > clock[q.index()]).then_some((q, stamp));
        let open: SmallVec<[(QueueId, Stamp); 4]> = self.candidates.iter().filter_map(open).collect();
        let implied = |&(q, stamp): &(QueueId, Stamp)| {
            open.iter().any(|&(other, by)| other != q && self.clock(by)[q.index()] >= stamp)
        };
        open.iter().filter(|c| !implied(c)).map(|&(_, stamp)| stamp).collect()
    }

    /// Gathers candidates and changes the past of the bytes.
    fn touch(&mut self, stamp: Stamp, queue: QueueId, access: &Access) {
        let pasts = &mut self.pasts[access.memory];
        cut(pasts, access.span.start);
        cut(pasts, access.span.end);
        let steps = self.schedule.steps();
        let queue_of = |s: Stamp| steps[StepId::new(((s - 1) % steps.len() as u64) as usize)].queue;
        let mut candidate = |s: Stamp| {
            if s != 0 && s != stamp {
                let latest = &mut self.candidates[queue_of(s)];
                *latest = s.max(*latest);
            }
        };
        match access.mode {
            Mode::Read => {
                fill(pasts, access.span);
                for (_, past) in pasts.range_mut(access.span.start..access.span.end) {
                    candidate(past.writer);
                    past.readers.retain(|r| queue_of(*r) != queue);
                    past.readers.push(stamp);
                }
            }
            Mode::Write => {
                let inside: SmallVec<[Bytes; 8]> =
                    pasts.range(access.span.start..access.span.end).map(|(&start, _)| start).collect();
                for start in inside {
                    let Some(past) = pasts.remove(&start) else { continue };
                    candidate(past.writer);
                    past.readers.iter().for_each(|&r| candidate(r));
                }
                let past = Past { end: access.span.end, writer: stamp, readers: SmallVec::new() };
                pasts.insert(access.span.start, past);
            }
        }
    }
}

/// The later of each pair.
fn join(clock: &mut [Stamp], other: &[Stamp]) {
    clock.iter_mut().zip(other).for_each(|(c, &o)| *c = o.max(*c));
}

/// Lets a range begin at `at`, if one goes across it.
fn cut(pasts: &mut Pasts, at: Bytes) {
    let Some((_, past)) = pasts.range_mut(..at).next_back() else { return };
    if past.end <= at {
        return;
    }
    let tail = past.clone();
    past.end = at;
    pasts.insert(at, tail);
}

/// Gives bytes of `span` without a past an empty one.
fn fill(pasts: &mut Pasts, span: Span) {
    let mut holes: SmallVec<[(Bytes, Bytes); 4]> = SmallVec::new();
    let mut at = span.start;
    for (&start, past) in pasts.range(span.start..span.end) {
        if at < start {
            holes.push((at, start));
        }
        at = past.end;
    }
    if at < span.end {
        holes.push((at, span.end));
    }
    for (start, end) in holes {
        pasts.insert(start, Past { end, ..Past::default() });
    }
}

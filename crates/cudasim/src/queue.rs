//! Queued operations and the order in which they run.
//!
//! Operations form a directed graph: each depends on the one before it in its stream and on what the stream waited for.
//! Any order that respects the graph is one that a real driver could choose. The seed chooses.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use crate::clock::{Clock, Epoch, Lane};
use crate::code::Code;
use crate::config::Order;
use crate::sim::Wait;
use crate::state::State;
use crate::task::Task;

/// A queued operation, numbered over the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct OpId(pub u64);

/// What is queued.
#[derive(Debug)]
pub struct Op {
    pub label: Arc<str>,
    pub device: u32,
    pub lane: Lane,
    pub deps: Vec<OpId>,
    pub task: Task,
    /// What it fails with instead of running.
    pub fault: Option<Code>,
    /// What the host knows to be finished when it was called, for functions of the host.
    pub knows: Option<Clock>,
}

#[derive(Debug)]
struct LaneState {
    queue: VecDeque<OpId>,
    /// Percent of the calls after which its next operation runs, if it can.
    eagerness: u8,
    tick: u64,
}

/// All queued operations.
#[derive(Debug)]
pub struct Queue {
    pending: BTreeMap<OpId, Op>,
    lanes: Vec<LaneState>,
    busy: BTreeSet<Lane>,
    spare: Vec<Lane>,
    next: u64,
}

/// How forcing ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Forced {
    /// All have run.
    Done,
    /// A host function must return first.
    Blocked,
}

impl Default for Queue {
    fn default() -> Self {
        Queue::new()
    }
}

impl Queue {
    /// A host function has returned, or will never be called.
    pub fn retire(&mut self, id: OpId) {
        self.take(id);
    }

    /// Nothing queued.
    fn new() -> Queue {
        Queue { pending: BTreeMap::new(), lanes: Vec::new(), busy: BTreeSet::new(), spare: Vec::new(), next: 0 }
    }

    /// A lane that nobody uses. Its ticks go on where an earlier user's ended: the host knew those to be finished.
    pub fn lane(&mut self, eagerness: u8) -> Lane {
        if let Some(lane) = self.spare.pop() {
            self.lanes[lane.0 as usize].eagerness = eagerness;
            return lane;
        }
        self.lanes.push(LaneState { queue: VecDeque::new(), eagerness, tick: 0 });
        Lane(self.lanes.len() as u32 - 1)
    }

    /// Gives a lane back. Everything of it must be finished and known to the host.
    pub fn give_back(&mut self, lane: Lane) {
        self.spare.push(lane);
    }

    /// The next epoch of a lane.
    pub fn tick(&mut self, lane: Lane) -> Epoch {
        let state = &mut self.lanes[lane.0 as usize];
        state.tick += 1;
        Epoch { lane, tick: state.tick }
    }

    /// The last epoch of a lane.
    pub fn last(&self, lane: Lane) -> Epoch {
        Epoch { lane, tick: self.lanes[lane.0 as usize].tick }
    }

    /// The number of the next operation.
    pub fn next_id(&mut self) -> OpId {
        self.next += 1;
        OpId(self.next)
    }

    /// Whether an operation has run.
    pub fn done(&self, op: OpId) -> bool {
        !self.pending.contains_key(&op)
    }

    /// Queues an operation; `id` comes from [`Queue::next_id`].
    pub fn push(&mut self, id: OpId, op: Op) {
        self.lanes[op.lane.0 as usize].queue.push_back(id);
        self.busy.insert(op.lane);
        self.pending.insert(id, op);
    }

    /// An operation that has not run.
    pub fn get(&self, id: OpId) -> Option<&Op> {
        self.pending.get(&id)
    }

    /// Every operation that has not run, in order of arrival.
    pub fn pending(&self) -> impl Iterator<Item = (OpId, &Op)> {
        self.pending.iter().map(|(id, op)| (*id, op))
    }

    /// Those of `deps` that have not run.
    fn open(&self, id: OpId) -> Vec<OpId> {
        let deps = self.pending.get(&id).map(|op| op.deps.as_slice()).unwrap_or_default();
        deps.iter().copied().filter(|d| !self.done(*d)).collect()
    }

    fn take(&mut self, id: OpId) -> Option<Op> {
        let op = self.pending.remove(&id)?;
        let queue = &mut self.lanes[op.lane.0 as usize].queue;
        queue.retain(|other| *other != id);
        if queue.is_empty() {
            self.busy.remove(&op.lane);
        }
        Some(op)
    }
}

impl State {
    /// How eager a new lane is, by the order and the seed: some always, some never, some now and then.
    pub(crate) fn draw_eagerness(&mut self) -> u8 {
        const DRAWN: [u8; 6] = [0, 0, 10, 50, 90, 100];
        match self.config.order {
            Order::Eager => 100,
            Order::Lazy => 0,
            Order::Adversarial => DRAWN[self.rng.below(DRAWN.len())],
        }
    }

    /// Runs what `targets` names and what it depends on, in an order that the seed chooses, and maybe others between.
    pub(crate) fn force(&mut self, targets: &mut Vec<OpId>) -> Forced {
        let mut stack = targets.clone();
        while let Some(top) = stack.last().copied() {
            if self.done(top) {
                stack.pop();
                continue;
            }
            let open = self.queue.open(top);
            if !open.is_empty() {
                stack.push(open[self.rng.below(open.len())]);
                continue;
            }
            if self.waits_for_host(top) {
                return Forced::Blocked;
            }
            self.run_op(top);
            stack.pop();
            if self.config.order == Order::Adversarial && self.rng.chance(25) {
                self.progress();
            }
        }
        targets.clear();
        Forced::Done
    }

    /// Whether an operation is a host function, which another thread runs.
    fn waits_for_host(&self, id: OpId) -> bool {
        self.queue.get(id).is_some_and(|op| matches!(op.task, Task::Host(_)) && self.alive(op.device).is_ok())
    }

    /// Between calls: lets eager lanes run what can run.
    pub(crate) fn progress(&mut self) {
        let mut busy: Vec<Lane> = self.queue.busy.iter().copied().collect();
        while !busy.is_empty() {
            let lane = busy.swap_remove(self.rng.below(busy.len()));
            let eagerness = self.queue.lanes[lane.0 as usize].eagerness;
            while self.rng.chance(eagerness) && self.run_head(lane) {}
        }
    }

    fn run_head(&mut self, lane: Lane) -> bool {
        let Some(id) = self.queue.lanes[lane.0 as usize].queue.front().copied() else { return false };
        if !self.queue.open(id).is_empty() || self.waits_for_host(id) {
            return false;
        }
        self.run_op(id);
        true
    }

    /// Somebody polls for `targets`: now and then one operation towards them runs, so that polling ends.
    pub(crate) fn nudge(&mut self, targets: &[OpId]) -> bool {
        const PERCENT: u8 = 60;
        let open: Vec<OpId> = targets.iter().copied().filter(|t| !self.done(*t)).collect();
        let Some(mut at) = open.first().copied() else { return true };
        if !self.rng.chance(PERCENT) {
            return false;
        }
        while let Some(dep) = self.queue.open(at).first().copied() {
            at = dep;
        }
        if !self.waits_for_host(at) {
            self.run_op(at);
        }
        open.iter().all(|t| self.done(*t))
    }

    fn run_op(&mut self, id: OpId) {
        let Some(op) = self.queue.take(id) else { return };
        if self.alive(op.device).is_err() {
            return;
        }
        match op.fault {
            Some(code) => self.kill(op.device, code),
            None => {
                self.tell(format_args!("run {}", op.label));
                self.execute(op);
            }
        }
    }

    /// Waits for all that a device was given.
    pub(crate) fn everything(&mut self, device: u32) -> Wait {
        let ops = self.queue.pending().filter(|(_, op)| op.device == device).map(|(id, _)| id).collect();
        let mut clock = Clock::default();
        for stream in self.streams.values().filter(|s| s.device == device) {
            clock.join(&stream.clock);
        }
        Wait { ops, clock, device: Some(device) }
    }
}

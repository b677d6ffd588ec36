//! What waits for a model: pushed by handlers, taken by the model's thread.

use super::job::Job;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How a model ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// What runs and waits is finished first.
    Drained,
    /// What runs and waits fails.
    Now,
}

/// Why a job was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// As many wait as may.
    Full {
        /// How many wait.
        waiting: usize,
    },
    /// The model is going.
    Ending,
}

struct Inner {
    waiting: VecDeque<Job>,
    running: usize,
    end: Option<End>,
    used: Instant,
}

/// A bounded queue. A leaf lock: nothing else is locked while it is held.
pub struct Mailbox {
    inner: Mutex<Inner>,
    woken: Condvar,
    limit: usize,
}

/// What the thread gets.
pub(super) struct Taken {
    pub(super) jobs: Vec<Job>,
    pub(super) end: Option<End>,
}

impl Mailbox {
    pub(crate) fn new(limit: usize) -> Self {
        let inner = Inner { waiting: VecDeque::new(), running: 0, end: None, used: Instant::now() };
        Self { inner: Mutex::new(inner), woken: Condvar::new(), limit }
    }

    /// Puts the jobs of a request into the queue: all of them or none. `room`: slots that could take them at once.
    pub(crate) fn push(&self, jobs: Vec<Job>, slots: usize) -> Result<(), Refusal> {
        let mut inner = self.inner.lock();
        if inner.end.is_some() {
            return Err(Refusal::Ending);
        }
        let waiting = inner.waiting.len();
        let free = slots.saturating_sub(inner.running);
        if waiting + jobs.len() > self.limit + free {
            return Err(Refusal::Full { waiting });
        }
        inner.waiting.extend(jobs);
        inner.used = Instant::now();
        self.woken.notify_all();
        Ok(())
    }

    /// Waits for a job, or for the end. Whether a job waits.
    pub(super) fn wait(&self) -> bool {
        let mut inner = self.inner.lock();
        loop {
            inner.waiting.retain(|job| !job.is_abandoned());
            if !inner.waiting.is_empty() || inner.end.is_some() {
                return !inner.waiting.is_empty();
            }
            self.woken.wait(&mut inner);
        }
    }

    /// Jobs for `free` slots: from now on they run.
    pub(super) fn take(&self, free: usize) -> Taken {
        let mut inner = self.inner.lock();
        inner.waiting.retain(|job| !job.is_abandoned());
        let count = free.min(inner.waiting.len());
        let jobs: Vec<Job> = inner.waiting.drain(..count).collect();
        inner.running += jobs.len();
        Taken { jobs, end: inner.end }
    }

    /// Says that jobs ended.
    pub(super) fn ended(&self, count: usize) {
        let mut inner = self.inner.lock();
        inner.running = inner.running.saturating_sub(count);
        inner.used = Instant::now();
    }

    /// Everything that waits.
    pub(crate) fn drain(&self) -> Vec<Job> {
        self.inner.lock().waiting.drain(..).collect()
    }

    /// Takes no more, and lets the thread end.
    pub(crate) fn close(&self, end: End) {
        let mut inner = self.inner.lock();
        if inner.end != Some(End::Now) {
            inner.end = Some(end);
        }
        self.woken.notify_all();
    }

    /// The same if nothing runs or waits. Answers whether it was so.
    pub(crate) fn close_if_idle(&self) -> bool {
        let mut inner = self.inner.lock();
        let idle = inner.running == 0 && inner.waiting.is_empty() && inner.end.is_none();
        if idle {
            inner.end = Some(End::Now);
            self.woken.notify_all();
        }
        idle
    }

    /// How many wait and how many run.
    #[must_use]
    pub fn depth(&self) -> (usize, usize) {
        let inner = self.inner.lock();
        (inner.waiting.len(), inner.running)
    }

    /// For how long nothing ran or waited; `None` if something does.
    #[must_use]
    pub fn idle(&self) -> Option<Duration> {
        let inner = self.inner.lock();
        (inner.running == 0 && inner.waiting.is_empty()).then(|| inner.used.elapsed())
    }
}

impl std::fmt::Debug for Mailbox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (waiting, running) = self.depth();
        write!(f, "Mailbox({waiting} wait, {running} run)")
    }
}

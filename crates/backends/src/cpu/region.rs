//! Fork and join among a few threads that stay awake while a list of nodes is computed.
//!
//! Waking a sleeping thread costs more than most nodes of a decoding step. So helpers are started once per list and
//! then poll for jobs; a job is a closure and a number of tasks that all participants take from one counter. Nobody
//! waits for a helper that has not joined: a late or absent helper costs speed, never progress.

use std::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A closure over a participant's slot and a task number.
type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

#[derive(Clone, Copy)]
struct Job {
    task: *const Task<'static>,
    tasks: usize,
    slots: usize,
}

#[repr(align(128))]
struct Padded<T>(T);

/// The meeting point of one owner and its helpers. The owner alone publishes jobs.
pub(crate) struct Region {
    /// Helpers serve the session they were started for and leave when this moves on.
    session: Padded<AtomicUsize>,
    /// Odd: a job is open. Every job has its own number.
    ticket: Padded<AtomicUsize>,
    /// Helpers that are, or are about to be, inside a job.
    active: Padded<AtomicUsize>,
    next_task: Padded<AtomicUsize>,
    next_slot: Padded<AtomicUsize>,
    job: UnsafeCell<Option<Job>>,
}

// SAFETY: `job` is written by the owner while no job is open and no helper is active in one, and read by helpers only
// between announcing themselves in `active` and leaving, after having seen the ticket of an open job. `ticket` and
// `active` are sequentially consistent: either the helper sees the job closed, or the owner sees the helper active.
unsafe impl Sync for Region {}
// SAFETY: the pointer in `job` is used only while the owner's closure is alive (above).
unsafe impl Send for Region {}

impl Region {
    pub(crate) fn new() -> Arc<Self> {
        let zero = || Padded(AtomicUsize::new(0));
        Arc::new(Self {
            session: zero(),
            ticket: zero(),
            active: zero(),
            next_task: zero(),
            next_slot: zero(),
            job: UnsafeCell::new(None),
        })
    }

    /// Starts a session; helpers are to be given its number.
    pub(crate) fn open(&self) -> usize {
        self.session.0.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// Ends the session: its helpers leave by themselves.
    pub(crate) fn close(&self) {
        self.session.0.fetch_add(1, Ordering::AcqRel);
    }

    /// What a helper thread does until its session ends.
    pub(crate) fn help(&self, session: usize) {
        let mut seen = 0;
        let mut idle = Backoff::default();
        while self.session.0.load(Ordering::Acquire) == session {
            let ticket = self.ticket.0.load(Ordering::Acquire);
            if ticket.is_multiple_of(2) || ticket == seen {
                idle.pause();
                continue;
            }
            seen = ticket;
            self.take_part(ticket);
            idle = Backoff::default();
        }
    }

    fn take_part(&self, ticket: usize) {
        self.active.0.fetch_add(1, Ordering::SeqCst);
        let _leave = Leave(&self.active.0);
        if self.ticket.0.load(Ordering::SeqCst) != ticket {
            return;
        }
        // SAFETY: the job of this ticket is open, and the owner waits for `active` to fall before it ends it.
        let Some(job) = (unsafe { *self.job.get() }) else { return };
        let slot = self.next_slot.0.fetch_add(1, Ordering::Relaxed);
        if slot < job.slots {
            // SAFETY: as above; the closure outlives the job.
            self.work(unsafe { &*job.task }, slot, job.tasks);
        }
    }

    fn work(&self, task: &Task<'_>, slot: usize, tasks: usize) {
        loop {
            let i = self.next_task.0.fetch_add(1, Ordering::Relaxed);
            if i >= tasks {
                return;
            }
            task(slot, i);
        }
    }

    /// Runs tasks `0..tasks`, each once, on the calling thread and on whichever helpers join. Slots are below `slots`
    /// and belong to one participant each. Only the owner may call this, and not from inside a task.
    pub(crate) fn run(&self, tasks: usize, slots: usize, task: &Task<'_>) {
        // SAFETY: only the lifetime is dropped; `Finish` keeps this frame alive until no helper can use the closure.
        let task_ptr = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
        // SAFETY: no job is open (the last one was finished), so no helper reads the cell.
        unsafe { *self.job.get() = Some(Job { task: task_ptr, tasks, slots }) };
        self.next_task.0.store(0, Ordering::Relaxed);
        self.next_slot.0.store(1, Ordering::Relaxed);
        self.ticket.0.fetch_add(1, Ordering::SeqCst);
        let _finish = Finish(self);
        self.work(task, 0, tasks);
    }
}

struct Leave<'a>(&'a AtomicUsize);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Closes the job and waits for the helpers inside it, also when the owner's own task unwinds.
struct Finish<'a>(&'a Region);

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        self.0.ticket.0.fetch_add(1, Ordering::SeqCst);
        let mut wait = Backoff::default();
        while self.0.active.0.load(Ordering::SeqCst) != 0 {
            wait.pause();
        }
    }
}

/// Spins, then lets other threads run.
#[derive(Default)]
struct Backoff(u32);

impl Backoff {
    const SPINS: u32 = 4096;

    #[inline]
    fn pause(&mut self) {
        if self.0 < Self::SPINS {
            self.0 += 1;
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_task_runs_once_whether_or_not_helpers_join() {
        let region = Region::new();
        for helpers in 0..3 {
            let session = region.open();
            std::thread::scope(|scope| {
                for _ in 0..helpers {
                    scope.spawn(|| region.help(session));
                }
                for tasks in [0usize, 1, 2, 7, 100] {
                    for _ in 0..50 {
                        let counts: Vec<AtomicU32> = (0..tasks).map(|_| AtomicU32::new(0)).collect();
                        region.run(tasks, helpers + 1, &|slot, i| {
                            assert!(slot <= helpers);
                            counts[i].fetch_add(1, Ordering::Relaxed);
                        });
                        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
                    }
                }
                region.close();
            });
        }
    }

    #[test]
    fn helpers_of_an_ended_session_leave() {
        let region = Region::new();
        let session = region.open();
        region.close();
        region.help(session);
    }
}

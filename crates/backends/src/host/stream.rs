//! A stream as a thread with a queue.

use crate::clock::SimTime;
use crate::error::{Call, DeviceError, Fault};
use crate::host::copy;
use crate::host::core::Core;
use crate::host::event::HostEvent;
use crate::host::faults::Faults;
use crate::host::program::{HostProgram, panic_text};
use crate::program::Compiled;
use crate::stats::{Counters, Route};
use crate::stream::{CommandId, CopyCommand, Event, Mark, Stream};
use loadmaster_graph::Bytes;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Room for this many commands is made at once, so that ordinary runs never grow the queue.
const QUEUE_ROOM: usize = 1024;

/// A stream whose commands run on a thread of its own.
#[derive(Debug)]
pub(crate) struct QueueStream {
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
    /// When the commands put in so far end, in simulated time.
    time: Mutex<SimTime>,
}

struct Shared {
    core: Arc<Core>,
    queue: Mutex<Queue>,
    more: Condvar,
    idle: Condvar,
    closed: AtomicBool,
}

struct Queue {
    jobs: VecDeque<Job>,
    running: bool,
    failure: Option<Arc<DeviceError>>,
}

enum Job {
    Execute(Arc<dyn Compiled>, Range<usize>),
    Copy(CopyCommand, Route),
    Record(Arc<dyn Event>, Mark),
    Wait(Arc<dyn Event>, Mark),
    Call(Box<dyn FnOnce() + Send>),
}

impl QueueStream {
    /// Starts the thread. Errors: the system gives none.
    pub(crate) fn start(core: &Arc<Core>) -> Result<Arc<dyn Stream>, DeviceError> {
        let queue = Queue { jobs: VecDeque::with_capacity(QUEUE_ROOM), running: false, failure: None };
        let shared = Arc::new(Shared {
            core: Arc::clone(core),
            queue: Mutex::new(queue),
            more: Condvar::new(),
            idle: Condvar::new(),
            closed: AtomicBool::new(false),
        });
        let of_worker = Arc::clone(&shared);
        let worker = std::thread::Builder::new().name(core.name.to_string()).spawn(move || of_worker.work());
        let worker = worker.map_err(|e| {
            let fault = Fault::Driver { code: e.raw_os_error().unwrap_or(-1).into(), reason: e.to_string() };
            core.error(Call::Create, None, fault)
        })?;
        Ok(Arc::new(Self { shared, worker: Some(worker), time: Mutex::default() }))
    }

    fn core(&self) -> &Arc<Core> {
        &self.shared.core
    }

    fn put(&self, job: Job) {
        self.shared.queue.lock().jobs.push_back(job);
        self.shared.more.notify_one();
    }

    /// Moves the stream's simulated time.
    fn advance(&self, end: impl FnOnce(&crate::host::core::Timing, SimTime) -> SimTime) -> SimTime {
        let mut time = self.time.lock();
        if let Some(timing) = &self.core().timing {
            *time = end(timing, *time);
        }
        *time
    }
}

impl Stream for QueueStream {
    fn execute(&self, program: &Arc<dyn Compiled>, range: Range<CommandId>) -> Result<(), DeviceError> {
        self.core().alive(Call::Execute)?;
        let foreign = || self.core().error(Call::Execute, None, Fault::Foreign { what: "program" });
        let own = program.as_any().downcast_ref::<HostProgram>().ok_or_else(foreign)?;
        if !Arc::ptr_eq(own.core(), self.core()) {
            return Err(foreign());
        }
        let range = range.start.index()..range.end.index();
        if range.start > range.end || range.end > own.len() {
            let (offset, size) = (Bytes(range.start as u64), Bytes(own.len() as u64));
            let len = Bytes(range.end.saturating_sub(range.start) as u64);
            return Err(self.core().error(Call::Execute, None, Fault::OutOfRange { offset, len, size }));
        }
        self.advance(|timing, now| timing.clock.run(now, own.time(&range)));
        self.put(Job::Execute(Arc::clone(program), range));
        Ok(())
    }

    fn copy(&self, copy: &CopyCommand) -> Result<(), DeviceError> {
        self.core().alive(Call::Copy)?;
        let route =
            copy::route(self.core(), copy).map_err(|fault| self.core().error(Call::Copy, copy.tensor, fault))?;
        self.advance(|timing, now| timing.clock.copy(now, copy::link(copy), copy.from.len));
        self.put(Job::Copy(copy.clone(), route));
        Ok(())
    }

    fn record(&self, event: &Arc<dyn Event>) -> Result<(), DeviceError> {
        let own = event.as_any().downcast_ref::<HostEvent>().filter(|e| Arc::ptr_eq(e.core(), self.core()));
        let own = own.ok_or_else(|| self.core().error(Call::Record, None, Fault::Foreign { what: "event" }))?;
        let time = self.advance(|timing, now| timing.clock.run(now, SimTime::default()));
        let mark = own.record(time);
        Counters::add(&self.core().counters.records, 1);
        self.put(Job::Record(Arc::clone(event), mark));
        Ok(())
    }

    fn wait(&self, event: &Arc<dyn Event>) -> Result<(), DeviceError> {
        let mark = event.mark();
        if mark == Mark::default() {
            return Ok(());
        }
        if let Some(own) = event.as_any().downcast_ref::<HostEvent>() {
            self.advance(|_, now| now.max(own.time()));
        }
        Counters::add(&self.core().counters.waits, 1);
        self.put(Job::Wait(Arc::clone(event), mark));
        Ok(())
    }

    fn call(&self, function: Box<dyn FnOnce() + Send>) -> Result<(), DeviceError> {
        self.core().alive(Call::HostCall)?;
        self.put(Job::Call(function));
        Ok(())
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        let failure = self.shared.drain().failure.clone();
        if let Some(timing) = &self.core().timing {
            timing.clock.host_reaches(*self.time.lock());
        }
        match failure {
            Some(failure) => Err((*failure).clone()),
            None => self.core().alive(Call::Synchronize),
        }
    }

    fn recover(&self) -> Result<(), DeviceError> {
        self.shared.drain().failure = None;
        self.core().alive(Call::Synchronize)
    }
}

impl Shared {
    /// Waits until nothing is queued or running.
    fn drain(&self) -> parking_lot::MutexGuard<'_, Queue> {
        let mut queue = self.queue.lock();
        while queue.running || !queue.jobs.is_empty() {
            self.idle.wait(&mut queue);
        }
        queue
    }

    fn work(&self) {
        let mut queue = self.queue.lock();
        loop {
            let Some(job) = queue.jobs.pop_front() else {
                self.idle.notify_all();
                if self.closed.load(Ordering::SeqCst) {
                    return;
                }
                self.more.wait(&mut queue);
                continue;
            };
            queue.running = true;
            let failure = queue.failure.clone();
            let outcome = parking_lot::MutexGuard::unlocked(&mut queue, || {
                self.core.faults.gate(&self.closed);
                self.finish(job, failure)
            });
            if let Err(error) = outcome {
                queue.failure.get_or_insert(Arc::new(error));
            }
            queue.running = false;
        }
    }

    /// Runs a job, or skips it if the stream has failed.
    fn finish(&self, job: Job, failure: Option<Arc<DeviceError>>) -> Result<(), DeviceError> {
        let failure = failure.or_else(|| self.stopped().map(Arc::new));
        let Some(failure) = failure else { return self.run(job) };
        if let Job::Record(event, mark) = &job
            && let Some(event) = event.as_any().downcast_ref::<HostEvent>()
        {
            event.fail(*mark, &failure);
        }
        Err((*failure).clone())
    }

    /// Why nothing runs any more.
    fn stopped(&self) -> Option<DeviceError> {
        if self.core.faults.is_dead() {
            return Some(self.core.error(Call::Execute, None, Faults::lost()));
        }
        let closed = self.closed.load(Ordering::SeqCst);
        closed.then(|| self.core.error(Call::Execute, None, Fault::Closed))
    }

    fn run(&self, job: Job) -> Result<(), DeviceError> {
        match job {
            Job::Execute(program, range) => {
                // `execute` accepts programs of this type only.
                program.as_any().downcast_ref::<HostProgram>().map_or(Ok(()), |own| own.run(range))
            }
            Job::Copy(copy, route) => {
                copy::perform(&self.core, &copy, route).map_err(|fault| self.core.error(Call::Copy, copy.tensor, fault))
            }
            Job::Record(event, mark) => {
                if let Some(own) = event.as_any().downcast_ref::<HostEvent>() {
                    own.signal(mark);
                }
                Ok(())
            }
            Job::Wait(event, mark) => self.run_wait(&event, mark),
            Job::Call(function) => catch_unwind(AssertUnwindSafe(function)).map_err(|panic| {
                let reason = format!("the function panicked: {}", panic_text(panic.as_ref()));
                self.core.error(Call::HostCall, None, Fault::Driver { code: -1, reason })
            }),
        }
    }

    fn run_wait(&self, event: &Arc<dyn Event>, mark: Mark) -> Result<(), DeviceError> {
        let outcome = match event.as_any().downcast_ref::<HostEvent>() {
            Some(own) => match own.block_unless(mark, &self.closed) {
                Some(outcome) => outcome,
                None => return Err(self.core.error(Call::Wait, None, Fault::Closed)),
            },
            None => event.wait(mark).map_err(Arc::new),
        };
        outcome.map_err(|cause| self.core.error(Call::Wait, None, Fault::Upstream(cause)))
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream of {}", self.core.name)
    }
}

impl Drop for QueueStream {
    /// Skips what has not begun and ends the thread.
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.shared.core.faults.wake();
        drop(self.shared.queue.lock());
        self.shared.more.notify_all();
        let Some(worker) = self.worker.take() else { return };
        // The last handle may be dropped by the thread itself (through a host call); it then ends alone.
        if worker.thread().id() != std::thread::current().id() {
            // A worker returns nothing, and its panics were caught.
            let _ = worker.join();
        }
    }
}

//! Events of devices whose streams are threads of this process.

use crate::clock::SimTime;
use crate::error::{Call, DeviceError, Fault};
use crate::host::core::Core;
use crate::stream::{Event, Mark};
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How often a waiting stream looks whether it was closed. Closing one that waits is rare; being reached is signalled.
const CLOSE_CHECK: Duration = Duration::from_millis(20);

/// An event. It is recorded in one stream only, so records are reached in order.
#[derive(Debug)]
pub(crate) struct HostEvent {
    core: Arc<Core>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    recorded: Mark,
    reached: Mark,
    failed: Option<Failed>,
    time: SimTime,
}

/// The records from `first` to `last` were never reached.
#[derive(Debug, Clone)]
struct Failed {
    first: Mark,
    last: Mark,
    cause: Arc<DeviceError>,
}

impl HostEvent {
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self { core: Arc::clone(core), state: Mutex::default(), changed: Condvar::new() }
    }

    /// The device that made it, in whose streams it is recorded.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Makes a record that is not reached yet. `time` is when it will be, in simulated time.
    pub(crate) fn record(&self, time: SimTime) -> Mark {
        let mut state = self.state.lock();
        state.recorded.0 += 1;
        state.time = time;
        state.recorded
    }

    /// Simulated time of the latest record.
    pub(crate) fn time(&self) -> SimTime {
        self.state.lock().time
    }

    /// The record has been reached.
    pub(crate) fn signal(&self, mark: Mark) {
        let mut state = self.state.lock();
        state.reached = state.reached.max(mark);
        self.changed.notify_all();
    }

    /// The record will never be reached.
    pub(crate) fn fail(&self, mark: Mark, cause: &Arc<DeviceError>) {
        let mut state = self.state.lock();
        let first = state.failed.as_ref().filter(|f| f.last.0 + 1 == mark.0).map_or(mark, |f| f.first);
        state.failed = Some(Failed { first, last: mark, cause: Arc::clone(cause) });
        state.reached = state.reached.max(mark);
        self.changed.notify_all();
    }

    /// Waits until the record has been reached or failed.
    fn block(&self, mark: Mark) -> Result<(), Arc<DeviceError>> {
        let mut state = self.state.lock();
        while state.reached < mark {
            self.changed.wait(&mut state);
        }
        state.outcome(mark)
    }

    /// The same for the thread of a stream; `None`: the stream was closed meanwhile.
    pub(crate) fn block_unless(&self, mark: Mark, closed: &AtomicBool) -> Option<Result<(), Arc<DeviceError>>> {
        let mut state = self.state.lock();
        while state.reached < mark {
            if closed.load(Ordering::SeqCst) {
                return None;
            }
            self.changed.wait_for(&mut state, CLOSE_CHECK);
        }
        Some(state.outcome(mark))
    }

    fn upstream(&self, cause: Arc<DeviceError>) -> DeviceError {
        self.core.error(Call::Wait, None, Fault::Upstream(cause))
    }
}

impl State {
    fn outcome(&self, mark: Mark) -> Result<(), Arc<DeviceError>> {
        match &self.failed {
            Some(failed) if failed.first <= mark && mark <= failed.last => Err(Arc::clone(&failed.cause)),
            _ => Ok(()),
        }
    }
}

impl Event for HostEvent {
    fn mark(&self) -> Mark {
        self.state.lock().recorded
    }

    fn reached(&self, mark: Mark) -> Result<bool, DeviceError> {
        let state = self.state.lock();
        if state.reached < mark {
            return Ok(false);
        }
        state.outcome(mark).map(|()| true).map_err(|cause| self.upstream(cause))
    }

    fn wait(&self, mark: Mark) -> Result<(), DeviceError> {
        let outcome = self.block(mark);
        if let Some(timing) = &self.core.timing {
            timing.clock.host_reaches(self.time());
        }
        outcome.map_err(|cause| self.upstream(cause))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

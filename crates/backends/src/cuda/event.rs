//! Events with the meaning of the contract: whoever waits waits for one record, however often the event is recorded
//! again. So each record has a driver event to itself until it is known to be reached, and then lends it to a later one.
//!
//! The lock of an event is held while the driver is called, but never while the host waits.

use super::core::Core;
use super::handles::RawEvent;
use crate::error::{Call, DeviceError, Fault};
use crate::stream::{Event, Mark};
use parking_lot::Mutex;
use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

/// An event of a GPU.
#[derive(Debug)]
pub(crate) struct CudaEvent {
    core: Arc<Core>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    recorded: Mark,
    /// Records that may not have been reached, oldest first.
    open: VecDeque<(Mark, Arc<RawEvent>)>,
    /// Driver events without a record that anybody could still ask for.
    free: Vec<Arc<RawEvent>>,
    failed: Option<Failed>,
}

/// The records from `first` to `last` were never made.
#[derive(Debug, Clone)]
struct Failed {
    first: Mark,
    last: Mark,
    cause: Arc<DeviceError>,
}

/// What a record is.
pub(crate) enum Record {
    /// Reached, or never made: nothing to wait for.
    Past,
    /// Perhaps not reached yet.
    Open(Arc<RawEvent>),
    /// Its stream had failed.
    Failed(Arc<DeviceError>),
}

impl CudaEvent {
    /// An event of a device. Errors: the driver gives none.
    pub(crate) fn new(core: &Arc<Core>) -> Result<Self, Fault> {
        let state = State { free: vec![Arc::new(RawEvent::new(&core.context)?)], ..State::default() };
        Ok(Self { core: Arc::clone(core), state: Mutex::new(state) })
    }

    /// The device that made it, in whose streams it is recorded.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Makes a record: `put` puts it into a stream. Errors: the driver's; then there is no record.
    pub(crate) fn record(&self, put: impl FnOnce(&RawEvent) -> Result<(), Fault>) -> Result<(), Fault> {
        let mut state = self.state.lock();
        let event = state.spare(&self.core)?;
        if let Err(fault) = put(&event) {
            state.free.push(event);
            return Err(fault);
        }
        state.recorded.0 += 1;
        let mark = state.recorded;
        state.open.push_back((mark, event));
        Ok(())
    }

    /// Makes a record that will never be reached.
    pub(crate) fn fail(&self, cause: &Arc<DeviceError>) {
        let mut state = self.state.lock();
        state.recorded.0 += 1;
        let mark = state.recorded;
        let first = state.failed.as_ref().filter(|f| f.last.0 + 1 == mark.0).map_or(mark, |f| f.first);
        state.failed = Some(Failed { first, last: mark, cause: Arc::clone(cause) });
    }

    /// What a record is now.
    pub(crate) fn find(&self, mark: Mark) -> Record {
        let state = self.state.lock();
        if let Some(failed) = state.failed.as_ref().filter(|f| f.first <= mark && mark <= f.last) {
            return Record::Failed(Arc::clone(&failed.cause));
        }
        let open = state.open.iter().find(|(of, _)| *of == mark);
        open.map_or(Record::Past, |(_, event)| Record::Open(Arc::clone(event)))
    }

    fn error(&self, fault: Fault) -> DeviceError {
        self.core.error(Call::Wait, None, fault)
    }
}

impl State {
    /// A driver event that nobody asks for: one that was reached, or a new one.
    fn spare(&mut self, core: &Core) -> Result<Arc<RawEvent>, Fault> {
        if self.free.is_empty() {
            while let Some((_, event)) = self.open.front()
                && event.query()?
            {
                self.free.extend(self.open.pop_front().map(|(_, event)| event));
            }
        }
        // Somebody who waits for its old record on the host holds it too.
        match self.free.iter().position(|event| Arc::strong_count(event) == 1) {
            Some(i) => Ok(self.free.swap_remove(i)),
            None => Ok(Arc::new(RawEvent::new(&core.context)?)),
        }
    }
}

impl Event for CudaEvent {
    fn mark(&self) -> Mark {
        self.state.lock().recorded
    }

    fn reached(&self, mark: Mark) -> Result<bool, DeviceError> {
        match self.find(mark) {
            Record::Past => Ok(true),
            Record::Open(event) => event.query().map_err(|fault| self.error(fault)),
            Record::Failed(cause) => Err(self.error(Fault::Upstream(cause))),
        }
    }

    fn wait(&self, mark: Mark) -> Result<(), DeviceError> {
        match self.find(mark) {
            Record::Past => Ok(()),
            Record::Open(event) => event.synchronize().map_err(|fault| self.error(fault)),
            Record::Failed(cause) => Err(self.error(Fault::Upstream(cause))),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

//! Streams of a GPU.
//!
//! A call that the driver refuses stops the stream, as the contract says: what follows is skipped, events recorded there
//! are failed, until the stream recovers. A wait for an event of another backend is made by the calling thread: the
//! driver cannot wait for it. An index that names no row is found when the stream is synchronised or checked; what
//! follows it has run by then, on rows of NaN. Whoever follows the execution protocol has put what that event waits for into its queue
//! before, so the wait ends.

use super::copy::{self, Checked};
use super::core::Core;
use super::event::{CudaEvent, Record};
use super::handles::RawStream;
use super::program::{CudaProgram, Refusal};
use super::watch::Watched;
use crate::error::{Call, DeviceError, Fault};
use crate::host::HostBuffer;
use crate::host::program::panic_text;
use crate::program::Compiled;
use crate::stats::Counters;
use crate::stream::{CommandId, CopyCommand, Event, Mark, Stream};
use loadmaster_graph::{Bytes, TensorId};
use parking_lot::Mutex;
use std::ffi::c_void;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Why a stream is stopped.
type Failure = Mutex<Option<Arc<DeviceError>>>;

/// A stream of a GPU.
#[derive(Debug)]
pub(crate) struct CudaStream {
    core: Arc<Core>,
    raw: Arc<RawStream>,
    failure: Arc<Failure>,
    /// Copies within host memory that were made. A host function may not give memory back: that calls the driver.
    made: Arc<Mutex<Vec<CopyCommand>>>,
    watched: Watched,
}

impl CudaStream {
    /// A stream of a device. Errors: the driver gives none.
    pub(crate) fn new(core: &Arc<Core>) -> Result<Self, Fault> {
        let raw = Arc::new(RawStream::new(&core.context)?);
        Ok(Self {
            core: Arc::clone(core),
            raw,
            failure: Arc::default(),
            made: Arc::default(),
            watched: Watched::default(),
        })
    }

    /// Why it is stopped, if it is. Errors: the device is lost.
    fn stopped(&self, call: Call) -> Result<Option<Arc<DeviceError>>, DeviceError> {
        self.core.alive(call)?;
        Ok(self.failure.lock().clone())
    }

    /// Puts something in, unless the stream is stopped. What fails stops it.
    fn put(
        &self,
        call: Call,
        tensor: Option<TensorId>,
        put: impl FnOnce() -> Result<(), Fault>,
    ) -> Result<(), DeviceError> {
        if self.stopped(call)?.is_some() {
            return Ok(());
        }
        put().map_err(|fault| self.stop(self.core.error(call, tensor, fault)))
    }

    fn stop(&self, error: DeviceError) -> DeviceError {
        self.failure.lock().get_or_insert_with(|| Arc::new(error.clone()));
        error
    }

    fn refused(&self, call: Call, fault: Fault) -> DeviceError {
        self.core.error(call, None, fault)
    }

    fn copy_on_host(&self, copy: &CopyCommand) -> Result<(), DeviceError> {
        self.let_go();
        let (copy, made) = (copy.clone(), Arc::clone(&self.made));
        self.call(Box::new(move || {
            make_on_host(&copy);
            made.lock().push(copy);
        }))
    }

    /// Lets go of the buffers of copies that were made.
    fn let_go(&self) {
        let made = std::mem::take(&mut *self.made.lock());
        // Giving them back may wait for a copy that is still to be put there: not under the lock.
        drop(made);
    }
}

fn make_on_host(copy: &CopyCommand) {
    let ends = (copy.from.buffer.as_any().downcast_ref(), copy.to.buffer.as_any().downcast_ref());
    let (Some(from), Some(to)): (Option<&HostBuffer>, Option<&HostBuffer>) = ends else { return };
    let mut bytes = vec![0; copy.from.len.get() as usize];
    // Both ranges were checked when the copy was put in.
    let _ = from.read(copy.from.offset, &mut bytes).and_then(|()| to.write(copy.to.offset, &bytes));
}

impl Stream for CudaStream {
    fn execute(&self, program: &Arc<dyn Compiled>, range: Range<CommandId>) -> Result<(), DeviceError> {
        let foreign = || self.refused(Call::Execute, Fault::Foreign { what: "program" });
        let own = program.as_any().downcast_ref::<CudaProgram>().ok_or_else(foreign)?;
        if !Arc::ptr_eq(own.core(), &self.core) {
            return Err(foreign());
        }
        let range = range.start.index()..range.end.index();
        if range.start > range.end || range.end > own.len() {
            let (offset, size) = (Bytes(range.start as u64), Bytes(own.len() as u64));
            let len = Bytes(range.end.saturating_sub(range.start) as u64);
            return Err(self.refused(Call::Execute, Fault::OutOfRange { offset, len, size }));
        }
        if self.stopped(Call::Execute)?.is_some() {
            return Ok(());
        }
        let failed = |refusal: Refusal| self.stop(self.core.error(Call::Execute, refusal.tensor, refusal.fault));
        own.watch().into_iter().for_each(|watch| self.watched.add(watch));
        own.launch(&self.raw, range).map_err(failed)
    }

    fn copy(&self, copy: &CopyCommand) -> Result<(), DeviceError> {
        let checked = copy::check(&self.core, copy);
        let checked = checked.map_err(|fault| self.core.error(Call::Copy, copy.tensor, fault))?;
        let len = copy.from.len;
        let route = checked.route();
        if len > Bytes::ZERO {
            if matches!(checked, Checked::Host) {
                self.copy_on_host(copy)?;
            } else {
                // SAFETY: memory of a GPU and pinned memory are given back only when no GPU runs anything; other host memory is
                // read, or has been written, when the driver's call returns; the executor's protocol orders the copy with
                // all other uses of both ranges.
                let put = || unsafe { copy::put(&self.core, &self.raw, &checked, len.get() as usize) };
                self.put(Call::Copy, copy.tensor, put)?;
            }
        }
        self.core.counters.copied(route, len);
        Ok(())
    }

    fn record(&self, event: &Arc<dyn Event>) -> Result<(), DeviceError> {
        let own = event.as_any().downcast_ref::<CudaEvent>().filter(|e| Arc::ptr_eq(e.core(), &self.core));
        let own = own.ok_or_else(|| self.refused(Call::Record, Fault::Foreign { what: "event" }))?;
        if let Some(failure) = self.stopped(Call::Record)? {
            own.fail(&failure);
            return Ok(());
        }
        self.put(Call::Record, None, || own.record(|event| event.record(&self.raw)))?;
        Counters::add(&self.core.counters.records, 1);
        Ok(())
    }

    fn wait(&self, event: &Arc<dyn Event>) -> Result<(), DeviceError> {
        let mark = event.mark();
        if mark == Mark::default() {
            return Ok(());
        }
        Counters::add(&self.core.counters.waits, 1);
        self.put(Call::Wait, None, || match event.as_any().downcast_ref::<CudaEvent>() {
            Some(own) => match own.find(mark) {
                Record::Past => Ok(()),
                Record::Failed(cause) => Err(Fault::Upstream(cause)),
                Record::Open(record) => record.hold(&self.raw),
            },
            None => event.wait(mark).map_err(|error| Fault::Upstream(Arc::new(error))),
        })
    }

    fn call(&self, function: Box<dyn FnOnce() + Send>) -> Result<(), DeviceError> {
        let call = HostCall { function, failure: Arc::clone(&self.failure), core: Arc::clone(&self.core) };
        let data = Box::into_raw(Box::new(call));
        let is_put = std::cell::Cell::new(false);
        let outcome = self.put(Call::HostCall, None, || {
            // SAFETY: the data is a boxed call, which the driver hands to the function once.
            self.core.context.call(|driver| unsafe { driver.stream_call(self.raw.raw(), run_call, data.cast()) })?;
            is_put.set(true);
            Ok(())
        });
        if !is_put.get() {
            // SAFETY: the driver did not take it, so it is still ours. (A call that the driver takes and never makes,
            // because the device is lost, is lost with it.)
            drop(unsafe { Box::from_raw(data) });
        }
        outcome
    }

    fn synchronize(&self) -> Result<(), DeviceError> {
        let orphans = self.watched.orphans();
        let waited = self.raw.synchronize();
        if waited.is_ok() {
            self.watched.settle(&orphans);
        }
        self.let_go();
        let failure = self.failure.lock().clone();
        match failure {
            Some(failure) => Err((*failure).clone()),
            None => waited.map_err(|fault| self.refused(Call::Synchronize, fault)).and_then(|()| self.check()),
        }
    }

    fn check(&self) -> Result<(), DeviceError> {
        self.watched.noted(&self.core).map_or(Ok(()), |error| Err(self.stop(error)))
    }

    fn recover(&self) -> Result<(), DeviceError> {
        let waited = self.raw.synchronize();
        *self.failure.lock() = None;
        self.watched.forget();
        waited.map_err(|fault| self.refused(Call::Synchronize, fault))
    }
}

/// A function of the host on its way through a stream.
struct HostCall {
    function: Box<dyn FnOnce() + Send>,
    failure: Arc<Failure>,
    core: Arc<Core>,
}

/// Makes a call that was put into a stream.
///
/// # Safety
/// `data` must be a boxed [`HostCall`] that nobody else owns.
unsafe extern "C" fn run_call(data: *mut c_void) {
    // SAFETY: as the caller vouches.
    let call = unsafe { Box::from_raw(data.cast::<HostCall>()) };
    let HostCall { function, failure, core } = *call;
    if let Err(panic) = catch_unwind(AssertUnwindSafe(function)) {
        let reason = format!("the function panicked: {}", panic_text(panic.as_ref()));
        let error = core.error(Call::HostCall, None, Fault::Driver { code: -1, reason });
        failure.lock().get_or_insert_with(|| Arc::new(error));
    }
}

impl Drop for CudaStream {
    /// What is queued may use what its owner drops next.
    fn drop(&mut self) {
        // A stream that fails here runs nothing any more.
        let _ = self.raw.synchronize();
    }
}

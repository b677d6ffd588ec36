//! The driver's objects, each given back when it is dropped.

use super::context::Context;
use crate::error::Fault;
use cudarc::driver::sys::{CUdeviceptr, CUevent, CUgraph, CUgraphExec, CUstream};
use std::ffi::c_void;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// A stream does not wait for the default stream.
const STREAM_NON_BLOCKING: u32 = 1;
/// An event keeps no time.
const EVENT_DISABLE_TIMING: u32 = 2;
/// Pinned memory that every context may copy from and to.
const HOST_PORTABLE: u32 = 1;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident($raw:ty), $what:literal, $destroy:ident) => {
        $(#[$doc])*
        pub(crate) struct $name {
            context: Arc<Context>,
            raw: $raw,
        }

        // SAFETY: the driver allows its objects to be used by any thread, and is itself synchronised.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl $name {
            /// The driver's handle, valid while `self` lives.
            pub(crate) fn raw(&self) -> $raw {
                self.raw
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made in this context, and given back only here.
                self.context.give_back($what, |driver| unsafe { driver.$destroy(self.raw) });
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:?})"), self.context)
            }
        }
    };
}

handle! {
    /// A stream.
    RawStream(CUstream), "a stream", stream_destroy
}
handle! {
    /// An event.
    RawEvent(CUevent), "an event", event_destroy
}
handle! {
    /// What a stream noted.
    RawGraph(CUgraph), "a graph", graph_destroy
}
handle! {
    /// A graph that is ready to run.
    RawGraphExec(CUgraphExec), "a graph that is ready to run", graph_exec_destroy
}

impl RawStream {
    /// A stream of a context.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle.
        context.call(|driver| unsafe { driver.stream_create(&raw mut raw, STREAM_NON_BLOCKING) })?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Waits until it is empty.
    pub(crate) fn synchronize(&self) -> Result<(), Fault> {
        // SAFETY: the stream lives.
        self.context.call(|driver| unsafe { driver.stream_synchronize(self.raw) })
    }

    /// Notes what `put` puts into the stream, instead of running it. `put` says whether it could. Errors: the driver's, or
    /// `put` could not.
    pub(crate) fn capture(&self, put: impl FnOnce() -> bool) -> Result<RawGraph, Fault> {
        /// Calls of other threads are not looked at.
        const THREAD_LOCAL: u32 = 1;
        let noting = Context::noting();
        // SAFETY: the stream lives; capturing ends below whatever happens between.
        self.context.call(|driver| unsafe { driver.capture_begin(self.raw, THREAD_LOCAL) })?;
        let is_whole = put();
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle.
        let ended = self.context.end(|driver| unsafe { driver.capture_end(self.raw, &raw mut raw) });
        drop(noting);
        let graph = (!raw.is_null()).then(|| RawGraph { context: Arc::clone(&self.context), raw });
        ended.map_err(|code| self.context.fault(code))?;
        graph.filter(|_| is_whole).ok_or_else(|| Fault::Driver { code: -1, reason: "the driver noted nothing".into() })
    }
}

impl RawGraph {
    /// Makes it ready to run.
    pub(crate) fn instantiate(&self) -> Result<RawGraphExec, Fault> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle; the graph lives.
        self.context.call(|driver| unsafe { driver.graph_instantiate(&raw mut raw, self.raw(), 0) })?;
        Ok(RawGraphExec { context: Arc::clone(&self.context), raw })
    }
}

impl RawEvent {
    /// An event of a context.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self, Fault> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle.
        context.call(|driver| unsafe { driver.event_create(&raw mut raw, EVENT_DISABLE_TIMING) })?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Records it in a stream of the same context.
    pub(crate) fn record(&self, stream: &RawStream) -> Result<(), Fault> {
        // SAFETY: event and stream live.
        self.context.call(|driver| unsafe { driver.event_record(self.raw(), stream.raw()) })
    }

    /// Lets a stream of any context wait for the latest record; what the driver remembers of it outlives the event.
    pub(crate) fn hold(&self, stream: &RawStream) -> Result<(), Fault> {
        // SAFETY: event and stream live.
        stream.context.call(|driver| unsafe { driver.stream_wait(stream.raw(), self.raw(), 0) })
    }

    /// Waits until it is reached.
    pub(crate) fn synchronize(&self) -> Result<(), Fault> {
        // SAFETY: the event lives.
        self.context.call(|driver| unsafe { driver.event_synchronize(self.raw) })
    }

    /// Whether it is reached.
    pub(crate) fn query(&self) -> Result<bool, Fault> {
        use super::code::Code;
        self.context.alive()?;
        // SAFETY: the event lives.
        match self.context.try_call(|driver| unsafe { driver.event_query(self.raw) }) {
            Ok(()) => Ok(true),
            Err(Code::NOT_READY) => Ok(false),
            Err(code) => Err(self.context.fault(code)),
        }
    }
}

/// Memory of a GPU. Giving it back waits until nothing runs that could use it.
#[derive(Debug)]
pub(crate) struct DeviceMemory {
    context: Arc<Context>,
    address: CUdeviceptr,
}

impl DeviceMemory {
    /// Takes memory: at least one byte, since the driver gives no less. Errors: the driver's code.
    pub(crate) fn new(context: &Arc<Context>, bytes: u64) -> Result<Self, super::code::Code> {
        let mut address = 0;
        let bytes = usize::try_from(bytes.max(1)).map_err(|_| super::code::Code::OUT_OF_MEMORY)?;
        // SAFETY: the pointer is to an address.
        context.try_call(|driver| unsafe { driver.memory_alloc(&raw mut address, bytes) })?;
        Ok(Self { context: Arc::clone(context), address })
    }

    /// Its first byte, as the GPU sees it.
    pub(crate) fn address(&self) -> CUdeviceptr {
        self.address
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        Context::quiesce_all();
        // SAFETY: taken in this context, given back only here, and nothing runs that uses it.
        self.context.give_back("memory", |driver| unsafe { driver.memory_free(self.address) });
    }
}

/// Pinned memory of the host. Giving it back waits until nothing runs that could use it.
#[derive(Debug)]
pub(crate) struct PinnedBytes {
    context: Arc<Context>,
    address: NonNull<u8>,
}

// SAFETY: the bytes have no thread affinity; whoever uses the address answers for the order of uses.
unsafe impl Send for PinnedBytes {}
// SAFETY: as above.
unsafe impl Sync for PinnedBytes {}

impl PinnedBytes {
    /// Takes pinned memory (not write-combined: the host reads it too). Errors: the driver's code.
    pub(crate) fn new(context: &Arc<Context>, bytes: u64) -> Result<Self, super::code::Code> {
        let mut address: *mut c_void = std::ptr::null_mut();
        let bytes = usize::try_from(bytes.max(1)).map_err(|_| super::code::Code::OUT_OF_MEMORY)?;
        // SAFETY: the pointer is to an address.
        context.try_call(|driver| unsafe { driver.host_alloc(&raw mut address, bytes, HOST_PORTABLE) })?;
        let address = NonNull::new(address.cast()).ok_or(super::code::Code::OUT_OF_MEMORY)?;
        Ok(Self { context: Arc::clone(context), address })
    }

    /// Its first byte.
    pub(crate) fn address(&self) -> NonNull<u8> {
        self.address
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        Context::quiesce_all();
        let address = self.address.as_ptr().cast();
        // SAFETY: taken from the driver, given back only here, and nothing runs that uses it.
        self.context.give_back("pinned memory", |driver| unsafe { driver.host_free(address) });
    }
}

//! Devices that note when their streams compute and copy.
//!
//! A wrapper around any device: before and after each command it puts a host call into the stream, which takes the
//! time. Nothing else is changed, so what is seen is the order and overlap of a real run, a little slower.

use loadmaster_alloc::{Buffer, BufferType, InPlaceTable};
use loadmaster_backends::{
    CommandId, Compiled, CopyCommand, Device, DeviceError, DeviceKind, DeviceStats, Event, MemoryInfo, OpShape,
    PeerAccess, Program, Region, Stream, Unsupported,
};
use loadmaster_graph::{Bytes, DeviceId, TensorId};
use std::any::Any;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a device did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Nodes of a split.
    Compute {
        /// How many.
        nodes: u32,
    },
    /// A copy.
    Copy {
        /// Bytes.
        bytes: Bytes,
        /// The tensor, if it is known.
        tensor: Option<TensorId>,
    },
    /// The host writes to the device, at once.
    Upload {
        /// Bytes.
        bytes: Bytes,
    },
    /// The host reads from the device, at once.
    Download {
        /// Bytes.
        bytes: Bytes,
    },
}

/// Work with its time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The device.
    pub device: DeviceId,
    /// The stream of the device, in the order in which they were made; `None`: at once, outside of streams.
    pub stream: Option<u32>,
    /// What was done.
    pub work: Work,
    /// From the beginning of the trace.
    pub start: Duration,
    /// How long it took.
    pub length: Duration,
}

/// A trace being written.
#[derive(Debug)]
pub struct Trace {
    epoch: Instant,
    spans: Mutex<Vec<Span>>,
}

impl Trace {
    /// An empty trace that begins now.
    #[must_use]
    pub fn start() -> Arc<Self> {
        Arc::new(Self { epoch: Instant::now(), spans: Mutex::default() })
    }

    /// The devices, with everything that they do noted here.
    #[must_use]
    pub fn devices(self: &Arc<Self>, devices: Vec<Arc<dyn Device>>) -> Vec<Arc<dyn Device>> {
        let wrap = |(i, inner)| {
            let (id, trace) = (DeviceId::new(i), Arc::clone(self));
            Arc::new(TracedDevice { inner, id, trace, streams: AtomicU32::new(0) }) as Arc<dyn Device>
        };
        devices.into_iter().enumerate().map(wrap).collect()
    }

    /// What was noted so far, by beginning.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        let mut spans = self.spans.lock().unwrap_or_else(PoisonError::into_inner).clone();
        spans.sort_by_key(|s| (s.start, s.device, s.stream));
        spans
    }

    fn now(&self) -> u64 {
        // 584 years fit.
        self.epoch.elapsed().as_nanos() as u64
    }

    fn note(&self, device: DeviceId, stream: Option<u32>, work: Work, start: u64) {
        let length = Duration::from_nanos(self.now().saturating_sub(start));
        let span = Span { device, stream, work, start: Duration::from_nanos(start), length };
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).push(span);
    }
}

#[derive(Debug)]
struct TracedDevice {
    inner: Arc<dyn Device>,
    id: DeviceId,
    trace: Arc<Trace>,
    streams: AtomicU32,
}

impl Device for TracedDevice {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn kind(&self) -> DeviceKind {
        self.inner.kind()
    }
    fn description(&self) -> String {
        self.inner.description()
    }
    fn memory(&self) -> MemoryInfo {
        self.inner.memory()
    }
    fn buffer_type(&self) -> Arc<dyn BufferType> {
        self.inner.buffer_type()
    }
    fn staging_type(&self) -> Option<Arc<dyn BufferType>> {
        self.inner.staging_type()
    }
    fn can_use(&self, buffer: &dyn Buffer) -> bool {
        self.inner.can_use(buffer)
    }
    fn supports(&self, op: &OpShape<'_>) -> Result<(), Unsupported> {
        self.inner.supports(op)
    }
    fn in_place(&self) -> InPlaceTable {
        self.inner.in_place()
    }
    fn peer(&self, other: &dyn Device) -> PeerAccess {
        self.inner.peer(other)
    }
    fn keeps_bytes(&self) -> bool {
        self.inner.keeps_bytes()
    }
    fn create_stream(&self) -> Result<Arc<dyn Stream>, DeviceError> {
        let (inner, trace) = (self.inner.create_stream()?, Arc::clone(&self.trace));
        let number = self.streams.fetch_add(1, Ordering::Relaxed);
        Ok(Arc::new(TracedStream { inner, device: self.id, number, trace }))
    }
    fn create_event(&self) -> Result<Arc<dyn Event>, DeviceError> {
        self.inner.create_event()
    }
    fn compile(&self, program: Program) -> Result<Arc<dyn Compiled>, DeviceError> {
        self.inner.compile(program)
    }
    fn upload(&self, to: &Region, bytes: &[u8]) -> Result<(), DeviceError> {
        let start = self.trace.now();
        self.inner.upload(to, bytes)?;
        self.trace.note(self.id, None, Work::Upload { bytes: to.len }, start);
        Ok(())
    }
    fn download(&self, from: &Region, bytes: &mut [u8]) -> Result<(), DeviceError> {
        let start = self.trace.now();
        self.inner.download(from, bytes)?;
        self.trace.note(self.id, None, Work::Download { bytes: from.len }, start);
        Ok(())
    }
    fn stats(&self) -> DeviceStats {
        self.inner.stats()
    }
    fn health(&self) -> Result<(), DeviceError> {
        self.inner.health()
    }
    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
}

#[derive(Debug)]
struct TracedStream {
    inner: Arc<dyn Stream>,
    device: DeviceId,
    number: u32,
    trace: Arc<Trace>,
}

impl TracedStream {
    fn timed(&self, work: Work, put: impl FnOnce() -> Result<(), DeviceError>) -> Result<(), DeviceError> {
        let start = Arc::new(AtomicU64::new(0));
        let (began, trace) = (Arc::clone(&start), Arc::clone(&self.trace));
        self.inner.call(Box::new(move || began.store(trace.now(), Ordering::Relaxed)))?;
        put()?;
        let (trace, device, number) = (Arc::clone(&self.trace), self.device, self.number);
        self.inner.call(Box::new(move || trace.note(device, Some(number), work, start.load(Ordering::Relaxed))))
    }
}

impl Stream for TracedStream {
    fn execute(&self, program: &Arc<dyn Compiled>, range: Range<CommandId>) -> Result<(), DeviceError> {
        let nodes = range.end.index().saturating_sub(range.start.index()) as u32;
        self.timed(Work::Compute { nodes }, || self.inner.execute(program, range))
    }
    fn copy(&self, copy: &CopyCommand) -> Result<(), DeviceError> {
        let work = Work::Copy { bytes: copy.from.len, tensor: copy.tensor };
        self.timed(work, || self.inner.copy(copy))
    }
    fn record(&self, event: &Arc<dyn Event>) -> Result<(), DeviceError> {
        self.inner.record(event)
    }
    fn wait(&self, event: &Arc<dyn Event>) -> Result<(), DeviceError> {
        self.inner.wait(event)
    }
    fn call(&self, function: Box<dyn FnOnce() + Send>) -> Result<(), DeviceError> {
        self.inner.call(function)
    }
    fn synchronize(&self) -> Result<(), DeviceError> {
        self.inner.synchronize()
    }
    fn recover(&self) -> Result<(), DeviceError> {
        self.inner.recover()
    }
}

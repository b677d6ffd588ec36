//! What runs where and when, told to `tracing`: a span for each split, copy and wait of a device's queue.
//!
//! A queue runs on its own, so a span cannot be entered around its work. Instead the host puts calls into the stream: one
//! opens the span when the queue gets there, one closes it when the work is done; the time between is the queue's. The
//! spans of one queue follow each other and never nest. Nothing is put in while nobody listens at [`LEVEL`].

use super::paths::CopyPath;
use super::runtime::Runtime;
use super::schedule::{Action, Hop, Queue, QueueId, Schedule, StepId};
use crate::exec::build::Planned;
use loadmaster_backends::{DeviceError, DeviceKind, Region, Stream};
use loadmaster_graph::{Bytes, DeviceId, IdVec, TensorId};
use parking_lot::Mutex;
use std::sync::Arc;
use tracing::{Dispatch, Level, Span, debug_span, dispatcher, enabled};

/// Target of the spans of queues.
pub const TARGET: &str = "loadmaster::queue";
/// What waits for all queues is no device.
const HOST: &str = "host";
/// Level of the spans of queues.
pub const LEVEL: Level = Level::DEBUG;

/// What is told of the steps of an executable. Made once, when it is bound.
#[derive(Debug)]
pub(super) struct Notes {
    steps: IdVec<StepId, Option<Arc<Note>>>,
    /// By queue: device, and which of its queues.
    queues: Vec<(Arc<str>, &'static str)>,
    /// By device: its name, and whether the host reads its memory.
    devices: IdVec<DeviceId, (Arc<str>, bool)>,
    host: Arc<str>,
}

#[derive(Debug)]
enum Note {
    Split { split: u64, nodes: u64 },
    Copy { link: Box<str>, path: &'static str, hop: &'static str, bytes: u64, tensor: Box<str> },
}

impl Note {
    fn span(&self, (device, queue): &(Arc<str>, &'static str), parent: &Span) -> Span {
        let (device, queue) = (&**device, *queue);
        match self {
            Self::Split { split, nodes } => {
                debug_span!(target: TARGET, parent: parent, "split", device, queue, split, nodes)
            }
            Self::Copy { link, path, hop, bytes, tensor } => {
                let (link, tensor) = (&**link, &**tensor);
                debug_span!(target: TARGET, parent: parent, "copy", device, queue, link, path, hop, bytes, tensor)
            }
        }
    }
}

impl Notes {
    pub(super) fn new(runtime: &Runtime, planned: &Planned<'_, '_>, schedule: &Schedule) -> Self {
        let named = |d: &Arc<dyn loadmaster_backends::Device>| (Arc::from(d.name()), d.kind() == DeviceKind::Cpu);
        let devices: IdVec<DeviceId, (Arc<str>, bool)> = runtime.devices().values().map(named).collect();
        let host = devices.values().find(|(_, on_host)| *on_host).map_or_else(|| "host".into(), |(n, _)| Arc::clone(n));
        let teller = Teller { runtime, planned, schedule, devices: &devices, host: &host };
        let steps = schedule.steps.ids().map(|step| teller.note(step).map(Arc::new)).collect();
        let queues = schedule.queues.values().map(|queue| match *queue {
            Queue::Host => (Arc::clone(&host), "host"),
            Queue::Compute(d) => (Arc::clone(&devices[d].0), "compute"),
            Queue::Receive(d) => (Arc::clone(&devices[d].0), "receive"),
            Queue::Send(d) => (Arc::clone(&devices[d].0), "send"),
        });
        Self { steps, queues: queues.collect(), devices, host }
    }

    /// Begins to tell of a step, if somebody listens and there is something to tell.
    pub(super) fn of(&self, step: StepId, queue: QueueId) -> Telling {
        if !enabled!(target: TARGET, LEVEL) {
            return Telling(None);
        }
        let Some(note) = &self.steps[step] else { return Telling(None) };
        Telling(Some(Arc::new(Open {
            note: Arc::clone(note),
            queue: self.queues[queue.index()].clone(),
            parent: Span::current(),
            listener: dispatcher::get_default(Dispatch::clone),
            slot: Mutex::default(),
        })))
    }

    /// The span of bytes that the host writes to a device, or reads from it, at once.
    pub(super) fn host_copy(&self, way: HostCopy, device: DeviceId, region: &Region, tensor: &str) -> Span {
        let (name, on_host) = &self.devices[device];
        if *on_host || !enabled!(target: TARGET, LEVEL) {
            return Span::none();
        }
        let link = match way {
            HostCopy::Write => format!("{}→{name}", self.host),
            HostCopy::Read => format!("{name}→{}", self.host),
        };
        let (device, queue, bytes) = (&**name, "host", region.len.get());
        debug_span!(target: TARGET, "copy", device, queue, link, path = "direct", hop = "whole", bytes, tensor)
    }

    /// The span of the host waiting for queues.
    pub(super) fn host_sync(&self) -> Span {
        debug_span!(target: TARGET, "sync", device = HOST, queue = HOST)
    }
}

/// Which way the host moves bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HostCopy {
    Write,
    Read,
}

struct Teller<'a, 'g> {
    runtime: &'a Runtime,
    planned: &'a Planned<'a, 'g>,
    schedule: &'a Schedule,
    devices: &'a IdVec<DeviceId, (Arc<str>, bool)>,
    host: &'a Arc<str>,
}

impl Teller<'_, '_> {
    fn note(&self, step: StepId) -> Option<Note> {
        let record = self.schedule.steps[step];
        let bytes = self.schedule.moved(step, 0).map_or(Bytes::ZERO, |m| m.to.len);
        let copies = self.planned.splits.copies();
        match record.action {
            Action::Compute { first, end } => {
                Some(Note::Split { split: record.split?.index() as u64, nodes: u64::from(end - first) })
            }
            Action::Copy { copy, hop } => {
                let hop = match hop {
                    Hop::Direct => "whole",
                    Hop::Out(_) => "out",
                    Hop::In(_) => "in",
                };
                let record = copies[copy];
                Some(self.copy(record.tensor, Some(record.to), hop, bytes))
            }
            Action::Experts { copy } => Some(self.copy(copies[copy].tensor, Some(copies[copy].to), "experts", bytes)),
            Action::Fetch { output } => Some(self.copy(output, None, "whole", bytes)),
            Action::Write { .. } | Action::Ids { .. } => None,
        }
    }

    fn copy(&self, tensor: TensorId, to: Option<DeviceId>, hop: &'static str, bytes: Bytes) -> Note {
        let from = self.planned.assignment.device(tensor);
        let target = to.map_or(self.host, |to| &self.devices[to].0);
        let path = match to.map_or(CopyPath::Direct, |to| self.runtime.paths().get(from, to)) {
            CopyPath::Direct => "direct",
            CopyPath::Pinned => "pinned",
            CopyPath::Pageable => "pageable",
        };
        let link = format!("{}→{target}", self.devices[from].0).into();
        let name = self.planned.graph().tensor(tensor).name.clone();
        Note::Copy { link, path, hop, bytes: bytes.get(), tensor: name }
    }
}

/// A step that is being told of, or none.
#[must_use]
pub(super) struct Telling(Option<Arc<Open>>);

/// Shared by the calls of a step.
struct Open {
    note: Arc<Note>,
    queue: (Arc<str>, &'static str),
    parent: Span,
    listener: Dispatch,
    /// The span that is open in the queue. Taken by the next call in it.
    slot: Mutex<Option<Span>>,
}

impl Open {
    /// Closes what is open and opens another. On the queue's thread.
    fn next(&self, span: impl FnOnce(&Self) -> Option<Span>) {
        // The listener must be this thread's while a span closes, too: its parent is let go there.
        dispatcher::with_default(&self.listener, || {
            self.slot.lock().take();
            let opened = span(self);
            *self.slot.lock() = opened;
        });
    }

    fn sync(&self, waits: u64) -> Span {
        let (device, queue) = (&*self.queue.0, self.queue.1);
        debug_span!(target: TARGET, parent: &self.parent, "sync", device, queue, waits)
    }
}

impl Telling {
    /// The waits come next in the stream.
    pub(super) fn waits(&self, stream: &Arc<dyn Stream>, waits: usize) -> Result<(), DeviceError> {
        let Some(open) = self.0.clone().filter(|_| waits > 0) else { return Ok(()) };
        stream.call(Box::new(move || open.next(|o| Some(o.sync(waits as u64)))))
    }

    /// The work comes next in the stream.
    pub(super) fn works(&self, stream: &Arc<dyn Stream>) -> Result<(), DeviceError> {
        let Some(open) = self.0.clone() else { return Ok(()) };
        stream.call(Box::new(move || open.next(|o| Some(o.note.span(&o.queue, &o.parent)))))
    }

    /// All of it is in the stream.
    pub(super) fn ends(self, stream: &Arc<dyn Stream>) -> Result<(), DeviceError> {
        let Some(open) = self.0 else { return Ok(()) };
        stream.call(Box::new(move || open.next(|_| None)))
    }
}

//! Streams: queues of operations, ordered within themselves.

use std::sync::Arc;

use crate::clock::{Clock, Lane};
use crate::code::{Code, Outcome};
use crate::queue::{Op, OpId};
use crate::race::NUMBER;
use crate::shadow::Actor;
use crate::sim::Wait;
use crate::state::{Sort, State};
use crate::task::Task;

/// What a stream has to do with the legacy default stream of its context.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Legacy {
    /// It is it.
    Itself,
    /// Each waits for the other.
    Waits,
    /// Nothing.
    Apart,
}

/// A stream.
#[derive(Debug)]
pub struct Stream {
    pub name: String,
    pub device: u32,
    pub legacy: Legacy,
    pub lane: Lane,
    /// What the next operation waits for.
    pub tail: Vec<OpId>,
    /// What is ordered before the next operation.
    pub clock: Clock,
    /// Where it records into, and the nodes that the next one waits for.
    pub capture: Option<(u64, Vec<usize>)>,
    /// Destroyed by the user; its operations still run.
    pub destroyed: bool,
}

/// Handle of the legacy default stream by its number in the driver's header.
const LEGACY: u64 = 1;

impl State {
    pub(crate) fn new_stream(&mut self, device: u32, legacy: Legacy) -> Stream {
        let eagerness = self.draw_eagerness();
        let lane = self.queue.lane(eagerness);
        let name = match legacy {
            Legacy::Itself => format!("the default stream of cuda:{device}"),
            _ => format!("stream {} of cuda:{device}", lane.0),
        };
        let clock = Clock::default();
        Stream { name, device, legacy, lane, tail: Vec::new(), clock, capture: None, destroyed: false }
    }

    pub(crate) fn stream_create(&mut self, flags: u32) -> Outcome<u64> {
        let device = self.here()?;
        let legacy = match flags {
            0 => Legacy::Waits,
            1 => Legacy::Apart,
            _ => return Err(self.invalid(Code::INVALID_VALUE, format_args!("stream flags {flags:#x}"))),
        };
        self.sweep_streams();
        let stream = self.new_stream(device, legacy);
        let handle = self.new_handle(Sort::Stream);
        self.streams.insert(handle, stream);
        Ok(handle)
    }

    /// Destroyed streams go when all of theirs has run and the host knows it.
    fn sweep_streams(&mut self) {
        let host = &self.host;
        let finished = |s: &Stream, queue: &crate::queue::Queue| {
            s.destroyed && s.tail.iter().all(|op| queue.done(*op)) && s.clock.within(host)
        };
        let gone = self.streams.iter().filter(|(_, s)| finished(s, &self.queue)).map(|(h, _)| *h);
        for handle in gone.collect::<Vec<_>>() {
            if let Some(stream) = self.streams.remove(&handle) {
                self.queue.give_back(stream.lane);
            }
        }
    }

    /// The handle under which a stream is kept: null means the current context's default stream.
    pub(crate) fn stream(&mut self, handle: u64) -> Outcome<u64> {
        if handle == 0 || handle == LEGACY {
            let here = self.here()?;
            return Ok(self.devices[here as usize].null_stream);
        }
        self.ready()?;
        match self.streams.get(&handle) {
            Some(stream) if !stream.destroyed => {
                let device = stream.device;
                self.alive(device)?;
                Ok(handle)
            }
            _ => Err(self.bad_handle(Sort::Stream, handle)),
        }
    }

    /// Device and name of a stream that [`State::stream`] accepted.
    pub(crate) fn known(&self, handle: u64) -> Outcome<&Stream> {
        self.streams.get(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn stream_destroy(&mut self, handle: u64) -> Outcome<()> {
        self.ready()?;
        let own = self.devices.iter().any(|d| d.null_stream == handle);
        let Some(stream) = self.streams.get_mut(&handle).filter(|s| !s.destroyed && !own) else {
            return Err(self.bad_handle(Sort::Stream, handle));
        };
        stream.destroyed = true;
        if let Some((capture, _)) = stream.capture.take() {
            self.spoil(capture);
        }
        self.sweep_streams();
        Ok(())
    }

    pub(crate) fn plan_stream_sync(&mut self, handle: u64) -> Outcome<Wait> {
        let handle = self.stream(handle)?;
        self.refuse_captured(handle, "cuStreamSynchronize")?;
        let stream = self.known(handle)?;
        let (mut ops, mut clock, device) = (stream.tail.clone(), stream.clock.clone(), stream.device);
        if stream.legacy == Legacy::Itself {
            for other in self.streams.values().filter(|s| s.device == device && s.legacy == Legacy::Waits) {
                ops.extend_from_slice(&other.tail);
                clock.join(&other.clock);
            }
        }
        Ok(Wait { ops, clock, device: Some(device) })
    }

    pub(crate) fn stream_query(&mut self, handle: u64) -> Outcome<()> {
        let wait = self.plan_stream_sync(handle)?;
        self.poll(&wait)
    }

    /// Answers a question for completion; a yes tells the host what is ordered before.
    pub(crate) fn poll(&mut self, wait: &Wait) -> Outcome<()> {
        let done = self.nudge(&wait.ops);
        if let Some(device) = wait.device {
            self.alive(device)?;
        }
        if !done {
            return Err(Code::NOT_READY);
        }
        self.host_learns(&wait.clock);
        Ok(())
    }

    pub(crate) fn plan_context_sync(&mut self) -> Outcome<Wait> {
        let device = self.here()?;
        self.not_captured_on(device, "cuCtxSynchronize")?;
        Ok(self.everything(device))
    }

    /// Queues a task in a stream that [`State::stream`] accepted, or records it if the stream is being captured.
    pub(crate) fn submit(&mut self, handle: u64, task: Task) -> Outcome<Option<OpId>> {
        let stream = self.known(handle)?;
        if stream.capture.is_some() {
            self.record_node(handle, task)?;
            return Ok(None);
        }
        let (device, lane, legacy) = (stream.device, stream.lane, stream.legacy);
        let (mut deps, mut clock) = (stream.tail.clone(), stream.clock.clone());
        let waits = |other: &Stream| match legacy {
            Legacy::Itself => other.legacy == Legacy::Waits,
            Legacy::Waits => other.legacy == Legacy::Itself,
            Legacy::Apart => false,
        };
        for other in self.streams.values().filter(|s| s.device == device && waits(s)) {
            if other.capture.is_some() && legacy == Legacy::Itself {
                return Err(Code::STREAM_CAPTURE_IMPLICIT);
            }
            deps.extend_from_slice(&other.tail);
            clock.join(&other.clock);
        }
        clock.join(&self.host);
        let place = self.known(handle)?.name.clone();
        let fault = self.late.take();
        let (id, clock) = self.push(Queued { device, lane, deps, clock, place: &place, fault }, task);
        if let Some(stream) = self.streams.get_mut(&handle) {
            stream.tail = vec![id];
            stream.clock = clock;
        }
        Ok(Some(id))
    }

    /// Queues a task; its number, and what is ordered before whatever follows it.
    pub(crate) fn push(&mut self, queued: Queued<'_>, task: Task) -> (OpId, Clock) {
        let Queued { device, lane, deps, mut clock, place, fault } = queued;
        let id = self.queue.next_id();
        let epoch = self.tick(lane);
        let label: Arc<str> = Arc::from(format!("{} in {place}{NUMBER}{}", task.name(), id.0));
        // An operation is ordered with itself: it may read and write the same bytes.
        clock.set(epoch);
        if let Ok(accesses) = self.accesses(&task, device) {
            let actor = Actor { epoch: Some(epoch), clock: clock.clone(), label: Arc::clone(&label) };
            self.touch(&accesses, &actor);
        }
        let deps = deps.into_iter().filter(|d| !self.done(*d)).collect();
        let knows = matches!(task, Task::Host(_)).then(|| clock.clone());
        self.queue.push(id, Op { label, device, lane, deps, task, fault, knows });
        (id, clock)
    }
}

/// Where and after what a task is queued.
pub struct Queued<'a> {
    pub device: u32,
    pub lane: Lane,
    pub deps: Vec<OpId>,
    pub clock: Clock,
    /// `stream 3 of cuda:0`.
    pub place: &'a str,
    pub fault: Option<Code>,
}

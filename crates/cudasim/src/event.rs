//! Events: marks in streams that the host and other streams wait for.

use crate::clock::Clock;
use crate::code::{Code, Outcome};
use crate::fault::Skipped;
use crate::queue::OpId;
use crate::sim::Wait;
use crate::state::{Sort, State};
use crate::task::Task;

/// Flag of an event that cannot measure time.
const DISABLE_TIMING: u32 = 2;

/// What an event was last recorded as.
#[derive(Debug)]
pub enum Mark {
    /// Never recorded: waiting for it is waiting for nothing.
    Never,
    /// A place in a stream.
    Queued { op: OpId, clock: Clock },
    /// A place in a capture.
    Captured { capture: u64, nodes: Vec<usize> },
}

/// An event.
#[derive(Debug)]
pub struct Event {
    pub name: String,
    pub device: u32,
    pub timed: bool,
    pub mark: Mark,
    /// When it was reached, in simulated nanoseconds.
    pub time: u64,
}

impl State {
    pub(crate) fn event_create(&mut self, flags: u32) -> Outcome<u64> {
        let device = self.here()?;
        if flags & !7 != 0 {
            return Err(self.invalid(Code::INVALID_VALUE, format_args!("event flags {flags:#x}")));
        }
        let handle = self.new_handle(Sort::Event);
        let name = format!("event {} of cuda:{device}", (handle & 0xff_ffff_ffff) >> 4);
        let timed = flags & DISABLE_TIMING == 0;
        self.events.insert(handle, Event { name, device, timed, mark: Mark::Never, time: 0 });
        Ok(handle)
    }

    pub(crate) fn event_destroy(&mut self, handle: u64) -> Outcome<()> {
        self.ready()?;
        self.event(handle)?;
        self.events.remove(&handle);
        Ok(())
    }

    pub(crate) fn event_record(&mut self, event: u64, stream: u64) -> Outcome<()> {
        let stream = self.stream(stream)?;
        let place = self.known(stream)?;
        let (device, capture) = (place.device, place.capture.clone());
        let found = self.event(event)?;
        if found.device != device {
            let text = format!("{} recorded in a stream of cuda:{device}", found.name);
            return Err(self.invalid(Code::INVALID_HANDLE, text));
        }
        let mark = match capture {
            Some((capture, nodes)) => Mark::Captured { capture, nodes },
            None => {
                let Some(op) = self.submit(stream, Task::Mark { event: Some(event) })? else {
                    return Err(Code::ILLEGAL_STATE);
                };
                Mark::Queued { op, clock: self.known(stream)?.clock.clone() }
            }
        };
        self.event(event)?.mark = mark;
        Ok(())
    }

    pub(crate) fn stream_wait(&mut self, stream: u64, event: u64, flags: u32) -> Outcome<()> {
        if flags != 0 {
            return Err(self.invalid(Code::INVALID_VALUE, format_args!("wait flags {flags:#x}")));
        }
        let stream = self.stream(stream)?;
        let event = self.event(event)?;
        match &event.mark {
            Mark::Never => Ok(()),
            Mark::Captured { capture, nodes } => {
                let (capture, nodes) = (*capture, nodes.clone());
                if std::mem::take(&mut self.skipping) {
                    self.skipped = Skipped::Missed;
                    return Ok(());
                }
                self.join_capture(stream, capture, &nodes)
            }
            Mark::Queued { op, clock } => {
                let (op, clock) = (*op, clock.clone());
                self.refuse_captured_wait(stream)?;
                let known = self.known(stream)?.clock.clone();
                if self.skips(&clock, &known) {
                    return Ok(());
                }
                let done = self.done(op);
                let Some(stream) = self.streams.get_mut(&stream) else { return Err(Code::INVALID_HANDLE) };
                stream.clock.join(&clock);
                if !done && !stream.tail.contains(&op) {
                    stream.tail.push(op);
                }
                Ok(())
            }
        }
    }

    pub(crate) fn plan_event_sync(&mut self, handle: u64) -> Outcome<Wait> {
        self.ready()?;
        let event = self.event(handle)?;
        let device = event.device;
        let wait = match &event.mark {
            Mark::Never => Wait::default(),
            Mark::Queued { op, clock } => Wait { ops: vec![*op], clock: clock.clone(), device: Some(device) },
            Mark::Captured { .. } => {
                return Err(self.invalid(Code::CAPTURED_EVENT, "the host waits for an event of a capture"));
            }
        };
        self.alive(device)?;
        Ok(wait)
    }

    pub(crate) fn event_query(&mut self, handle: u64) -> Outcome<()> {
        let wait = self.plan_event_sync(handle)?;
        self.poll(&wait)
    }

    /// Milliseconds between two events, in simulated time.
    pub(crate) fn elapsed(&mut self, start: u64, end: u64) -> Outcome<f32> {
        let mut times = [0; 2];
        for (time, handle) in times.iter_mut().zip([start, end]) {
            let event = self.event(handle)?;
            let Mark::Queued { op, .. } = event.mark else {
                return Err(self.invalid(Code::INVALID_HANDLE, "the time of an event that was not recorded"));
            };
            let (reached, timed) = (event.time, event.timed);
            if !timed {
                return Err(self.invalid(Code::INVALID_HANDLE, "the time of an event without timing"));
            }
            if !self.done(op) {
                return Err(Code::NOT_READY);
            }
            *time = reached;
        }
        Ok((times[1] as f32 - times[0] as f32) / 1e6)
    }
}

//! Everything that is simulated, behind one lock (see [`crate::sim`]).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::thread::ThreadId;

use crate::blas::Blas;
use crate::capture::{Capture, Exec, Graph};
use crate::clock::{Clock, Epoch, Lane};
use crate::code::{Code, Outcome};
use crate::config::Config;
use crate::event::Event;
use crate::fault::{Faults, Skipped};
use crate::mapping::Reservation;
use crate::memory::Memory;
use crate::module::{Function, Module};
use crate::queue::{OpId, Queue};
use crate::report::{Kind, Report};
use crate::rng::Rng;
use crate::stream::Stream;

/// What a handle is, in its upper bits: a handle of another kind is never taken for it, and none is ever given twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u64)]
pub enum Sort {
    /// A context.
    Context = 0x51,
    /// A stream.
    Stream = 0x52,
    /// An event.
    Event = 0x53,
    /// A module.
    Module = 0x54,
    /// A function of a module.
    Function = 0x55,
    /// A graph.
    Graph = 0x56,
    /// An instantiated graph.
    Exec = 0x57,
    /// A handle of cuBLAS.
    Blas = 0x58,
}

/// One simulated GPU.
#[derive(Debug)]
pub struct Device {
    /// Times that its primary context was retained and not released.
    pub retained: u32,
    /// Why it answers nothing any more.
    pub dead: Option<Code>,
    /// Bytes allocated.
    pub used: u64,
    /// Its addresses, and the first that was never given out.
    pub reservation: Reservation,
    /// Bytes of addresses given out.
    pub handed: u64,
    /// Devices whose memory its context may touch.
    pub peers: BTreeSet<u32>,
    /// Handle of the legacy default stream.
    pub null_stream: u64,
}

/// The whole simulation.
pub struct State {
    pub(crate) config: Config,
    pub(crate) rng: Rng,
    pub(crate) faults: Faults,
    pub(crate) report: Report,
    pub(crate) initialised: bool,
    pub(crate) devices: Vec<Device>,
    pub(crate) current: HashMap<ThreadId, Vec<u32>>,
    pub(crate) memory: Memory,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) modules: BTreeMap<u64, Module>,
    pub(crate) functions: BTreeMap<u64, Function>,
    pub(crate) graphs: BTreeMap<u64, Graph>,
    pub(crate) execs: BTreeMap<u64, Exec>,
    pub(crate) captures: BTreeMap<u64, Capture>,
    pub(crate) blas: BTreeMap<u64, Blas>,
    pub(crate) queue: Queue,
    /// What the host knows to be finished.
    pub(crate) host: Clock,
    /// Set by a fault that shows late: the next operation queued fails when it runs.
    pub(crate) late: Option<Code>,
    /// Nanoseconds that the operations so far would have taken.
    pub(crate) time: u64,
    /// Whether the call under way is a wait that is left out.
    pub(crate) skipping: bool,
    /// What became of the waits left out so far.
    pub(crate) skipped: Skipped,
    /// Which configuration of the process this is.
    pub(crate) age: u64,
    next: u64,
}

impl State {
    /// A machine as `config` says, with nothing on it.
    pub fn new(config: Config) -> State {
        let mut state = State {
            rng: Rng::new(config.seed),
            faults: Faults::new(config.faults.clone(), config.skips.clone()),
            report: Report::default(),
            initialised: false,
            devices: Vec::new(),
            current: HashMap::new(),
            memory: Memory::default(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            graphs: BTreeMap::new(),
            execs: BTreeMap::new(),
            captures: BTreeMap::new(),
            blas: BTreeMap::new(),
            queue: Queue::default(),
            host: Clock::default(),
            late: None,
            time: 0,
            skipping: false,
            skipped: Skipped::Nothing,
            age: 0,
            next: 1,
            config,
        };
        for index in 0..state.config.memory.len() {
            state.add_device(index as u32);
        }
        state
    }

    fn add_device(&mut self, index: u32) {
        const LEAST_ADDRESSES: u64 = 1 << 36;
        let memory = self.config.memory[index as usize];
        let addresses = (4 * memory).max(LEAST_ADDRESSES) as usize;
        let Some(reservation) = Reservation::new(addresses) else {
            self.report.add(Kind::Invalid, format_args!("the system has no addresses left for cuda:{index}"));
            return;
        };
        let null_stream = self.new_handle(Sort::Stream);
        let stream = self.new_stream(index, crate::stream::Legacy::Itself);
        self.streams.insert(null_stream, stream);
        self.devices.push(Device {
            retained: 0,
            dead: None,
            used: 0,
            reservation,
            handed: 0,
            peers: BTreeSet::new(),
            null_stream,
        });
    }

    /// A handle that was never given before.
    pub(crate) fn new_handle(&mut self, sort: Sort) -> u64 {
        self.next += 1;
        ((sort as u64) << 40) | (self.next << 4)
    }

    /// Reports a forbidden use and passes on the code that the driver would answer.
    pub(crate) fn invalid(&mut self, code: Code, text: impl fmt::Display) -> Code {
        self.report.add(Kind::Invalid, format_args!("{text} ({code})"));
        code
    }

    /// The device of an ordinal.
    pub(crate) fn device(&mut self, ordinal: i32) -> Outcome<u32> {
        match u32::try_from(ordinal) {
            Ok(index) if (index as usize) < self.devices.len() => Ok(index),
            _ => Err(self.invalid(Code::INVALID_DEVICE, format_args!("there is no device {ordinal}"))),
        }
    }

    /// Fails if the device is dead.
    pub(crate) fn alive(&self, device: u32) -> Outcome<()> {
        self.devices[device as usize].dead.map_or(Ok(()), Err)
    }

    /// From now on the device answers every call with `code`; what it had queued never runs, so that nobody has to wait
    /// for it.
    pub(crate) fn kill(&mut self, device: u32, code: Code) {
        let slot = &mut self.devices[device as usize].dead;
        if slot.is_some() {
            return;
        }
        *slot = Some(code);
        let of_streams = self.streams.values().filter(|s| s.device == device).map(|s| s.lane);
        let queued = self.queue.pending().filter(|(_, op)| op.device == device).map(|(_, op)| op.lane);
        let of_graphs = self.execs.values().filter(|e| e.device == device).flat_map(|e| e.lanes.values().copied());
        let last: Vec<Epoch> = of_streams.chain(queued).chain(of_graphs).map(|lane| self.queue.last(lane)).collect();
        last.into_iter().for_each(|epoch| self.host.set(epoch));
    }

    /// The next epoch of a lane.
    pub(crate) fn tick(&mut self, lane: Lane) -> Epoch {
        self.queue.tick(lane)
    }

    /// The host learns that everything in `clock` is finished.
    pub(crate) fn host_learns(&mut self, clock: &Clock) {
        self.host.join(clock);
    }

    /// Whether an operation has run.
    pub(crate) fn done(&self, op: OpId) -> bool {
        self.queue.done(op)
    }

    /// The event that a handle means.
    pub(crate) fn event(&mut self, handle: u64) -> Outcome<&mut Event> {
        if !self.events.contains_key(&handle) {
            return Err(self.bad_handle(Sort::Event, handle));
        }
        self.events.get_mut(&handle).ok_or(Code::INVALID_HANDLE)
    }

    /// Says what is wrong with a handle.
    pub(crate) fn bad_handle(&mut self, sort: Sort, handle: u64) -> Code {
        let name = format!("{sort:?}").to_lowercase();
        let gone = handle >> 40 == sort as u64 && (handle & 0xff_ffff_ffff) >> 4 <= self.next;
        let why = if gone { "was destroyed" } else { "is none that the driver gave" };
        self.invalid(Code::INVALID_HANDLE, format_args!("{name} {handle:#x} {why}"))
    }
}

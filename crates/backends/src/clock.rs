//! Simulated time: how long a run would take on devices of given speed.
//!
//! Nothing sleeps. One thread puts commands into streams, and each command's start and end follow at that moment from
//! what stands before it: its stream, the events that it waits for, the link that it uses, and the host. So equal
//! programs give equal times, however the real threads run.

use crate::error::{Call, DeviceError, Fault};
use crate::program::Operand;
use crate::stats::Route;
use loadmaster_graph::{Bytes, Op};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A point in simulated time, or a length of it, in picoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SimTime(pub u64);

impl SimTime {
    /// From seconds; what is negative or not a number counts as zero, the rest saturates.
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Self {
        Self((seconds * 1e12) as u64)
    }
    /// In seconds.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e12
    }
    /// The sum; saturates.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
    /// The time from `earlier` to this; zero if it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.seconds() * 1e3)
    }
}

impl fmt::Debug for SimTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Speed of a device. A node takes the larger of its arithmetic and its memory traffic, and a fixed time to launch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TimeModel {
    /// Floating-point operations a second.
    pub flops: f64,
    /// Bytes a second between the device and its memory.
    pub bandwidth: f64,
    /// Fixed time of a node.
    pub launch: SimTime,
}

/// Speed of a link between two memories.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinkModel {
    /// Bytes a second.
    pub bandwidth: f64,
    /// Fixed time of a copy.
    pub latency: SimTime,
}

/// One end of a link.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LinkEnd {
    /// Host memory.
    Host,
    /// The memory of a device, by its name.
    Device(Box<str>),
}

/// The clock that the devices of a simulated machine share.
#[derive(Debug)]
pub struct SimClock {
    links: BTreeMap<(LinkEnd, LinkEnd), LinkModel>,
    other_links: LinkModel,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    host: SimTime,
    latest: SimTime,
    busy: BTreeMap<(LinkEnd, LinkEnd), SimTime>,
}

impl SimClock {
    /// A clock at zero. Links are directed; those not listed are like `other_links`.
    #[must_use]
    pub fn new(links: BTreeMap<(LinkEnd, LinkEnd), LinkModel>, other_links: LinkModel) -> Arc<Self> {
        Arc::new(Self { links, other_links, state: Mutex::default() })
    }

    /// When the host has seen everything that it waited for.
    #[must_use]
    pub fn host(&self) -> SimTime {
        self.state.lock().host
    }

    /// When the last command put into any stream ends.
    #[must_use]
    pub fn latest(&self) -> SimTime {
        self.state.lock().latest
    }

    /// The host does something of its own for a while.
    pub fn host_works(&self, time: SimTime) {
        let mut state = self.state.lock();
        state.host = state.host.plus(time);
    }

    /// The host has waited for something that ends at `time`.
    pub(crate) fn host_reaches(&self, time: SimTime) {
        let mut state = self.state.lock();
        state.host = state.host.max(time);
    }

    /// When something that is put into a stream now and takes `length` ends there.
    pub(crate) fn run(&self, stream: SimTime, length: SimTime) -> SimTime {
        let mut state = self.state.lock();
        let end = stream.max(state.host).plus(length);
        state.latest = state.latest.max(end);
        end
    }

    /// The same for a copy, which also needs its link. Returns when the copy ends.
    pub(crate) fn copy(&self, stream: SimTime, ends: (LinkEnd, LinkEnd), bytes: Bytes) -> SimTime {
        let model = self.links.get(&ends).unwrap_or(&self.other_links);
        let length = SimTime::from_seconds(bytes.get() as f64 / model.bandwidth);
        let latency = model.latency;
        let mut state = self.state.lock();
        let start = stream.max(state.host);
        let busy = state.busy.entry(ends).or_default();
        let sent = start.max(*busy).plus(length);
        *busy = sent;
        let end = sent.plus(latency);
        state.latest = state.latest.max(end);
        end
    }
}

impl SimClock {
    /// The host copies to or from a device and waits for it.
    pub(crate) fn host_copies(&self, device: &str, route: Route, bytes: Bytes) {
        let device = LinkEnd::Device(device.into());
        let ends = match route {
            Route::ToDevice => (LinkEnd::Host, device),
            Route::ToHost => (device, LinkEnd::Host),
            Route::Local | Route::Peer => return,
        };
        let end = self.copy(SimTime::default(), ends, bytes);
        self.host_reaches(end);
    }
}

impl TimeModel {
    /// Checks that speeds are positive.
    pub(crate) fn check(&self, device: &str) -> Result<(), DeviceError> {
        let positive = |v: f64| v.is_finite() && v > 0.0;
        if positive(self.flops) && positive(self.bandwidth) {
            return Ok(());
        }
        let reason = "a time model needs positive speeds".to_owned();
        let fault = Fault::Driver { code: -1, reason };
        Err(DeviceError { device: device.into(), call: Call::Create, tensor: None, fault })
    }

    /// How long a node takes.
    pub(crate) fn node(&self, op: Op, sources: &[Option<Operand>], dst: &Operand) -> SimTime {
        if op == Op::None || op.is_view() {
            return SimTime::default();
        }
        let arithmetic = flops(op, sources, dst) / self.flops;
        let traffic = traffic(op, sources, dst) / self.bandwidth;
        self.launch.plus(SimTime::from_seconds(arithmetic.max(traffic)))
    }
}

fn source(sources: &[Option<Operand>], position: usize) -> Option<&Operand> {
    sources.get(position).and_then(Option::as_ref)
}

/// Multiplications and additions of a node.
fn flops(op: Op, sources: &[Option<Operand>], dst: &Operand) -> f64 {
    let elements = dst.elements() as f64;
    match op {
        Op::MulMat | Op::MulMatId | Op::OutProd => 2.0 * elements * source(sources, 0).map_or(1, |s| s.ne[0]) as f64,
        // Two products over the head, one with the keys and one with the values, for every position.
        Op::FlashAttnExt => 4.0 * elements * source(sources, 1).map_or(1, |s| s.ne[1]) as f64,
        _ => elements,
    }
}

/// Bytes that a node reads and writes. Of stacked experts only those that rows can choose are read; of a table only
/// the rows that are fetched or stored.
fn traffic(op: Op, sources: &[Option<Operand>], dst: &Operand) -> f64 {
    let bytes = |o: &Operand| o.span().map_or(0.0, |b| b.get() as f64);
    let whole: f64 = sources.iter().flatten().map(bytes).sum::<f64>() + bytes(dst);
    match op {
        Op::MulMatId => {
            let Some(experts) = source(sources, 0) else { return whole };
            let chosen = source(sources, 2).map_or(1, Operand::elements).min(experts.ne[2]);
            let unused = 1.0 - chosen as f64 / experts.ne[2].max(1) as f64;
            whole - bytes(experts) * unused
        }
        Op::GetRows => 2.0 * bytes(dst),
        Op::SetRows => source(sources, 0).map_or(whole, |rows| 2.0 * bytes(rows)),
        _ => whole,
    }
}

//! A machine's devices at work: their streams, the tested paths between them, and whose turn it is.

use super::error::{At, ExecError};
use super::failure;
use super::paths::{PathReport, PathTable};
use super::schedule::Queue;
use super::selftest;
use crate::machine::Machine;
use loadmaster_alloc::Arenas;
use loadmaster_backends::{Device, DeviceError, Stream};
use loadmaster_graph::{DeviceId, IdVec};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// Devices, streams and paths, shared by everything that is bound to them.
#[derive(Debug)]
pub struct Runtime {
    machine: Machine,
    devices: IdVec<DeviceId, Arc<dyn Device>>,
    compute: IdVec<DeviceId, Arc<dyn Stream>>,
    /// Made when the first plan needs one.
    receive: IdVec<DeviceId, Lazy>,
    send: IdVec<DeviceId, Lazy>,
    paths: PathTable,
    report: Vec<PathReport>,
    turnstile: Mutex<Turnstile>,
}

/// A stream that is made at the first use.
type Lazy = Mutex<Option<Arc<dyn Stream>>>;

/// Who issued last. Held while a run is issued.
#[derive(Debug, Default)]
pub(super) struct Turnstile {
    last: Option<Owner>,
    next: u64,
    /// What went wrong in runs of somebody before somebody else's run.
    lost: Vec<(Owner, DeviceId, DeviceError)>,
}

/// One of those that share the streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner(u64);

impl Owner {
    /// No two have the same.
    pub(super) const fn number(self) -> u64 {
        self.0
    }
}

impl Runtime {
    /// Makes streams and tests every pair of devices. `devices` are those of `machine`, in its order.
    ///
    /// Errors: another number of devices, a device that fails.
    pub fn new(machine: Machine, devices: Vec<Arc<dyn Device>>) -> Result<Arc<Self>, ExecError> {
        let devices = IdVec::<DeviceId, _>::from_vec(devices);
        let (found, expected) = (devices.len(), machine.devices().len());
        if found != expected {
            return Err(ExecError::DeviceCount { found, expected });
        }
        let machine = machine.with_gpus(devices.values().map(|d| d.gpu()));
        let failed = |device, error| ExecError::device(device, At::default(), error);
        let compute = devices.iter().map(|(id, d)| d.create_stream().map_err(|e| failed(id, e)));
        let compute = compute.collect::<Result<Vec<_>, _>>()?;
        let compute = IdVec::from_vec(compute);
        let report = selftest::test_all(&devices, &compute);
        let mut paths = PathTable::all(devices.len(), super::paths::CopyPath::Direct);
        for found in &report {
            paths.set(found.from, found.to, found.path);
            let (from, to) = (devices[found.from].name(), devices[found.to].name());
            let (path, why, bandwidth) = (found.path.to_string(), found.why.as_str(), found.bandwidth);
            tracing::info!(target: "loadmaster::exec", from, to, path, why, bandwidth, "copy path");
        }
        let lazy = || devices.ids().map(|_| Lazy::default()).collect();
        let (receive, send) = (lazy(), lazy());
        Ok(Arc::new(Self { machine, devices, compute, receive, send, paths, report, turnstile: Mutex::default() }))
    }

    /// The machine, its GPUs described as the devices say.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }
    /// The devices, in the machine's order.
    #[must_use]
    pub fn devices(&self) -> &IdVec<DeviceId, Arc<dyn Device>> {
        &self.devices
    }
    /// One device.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> &Arc<dyn Device> {
        &self.devices[id]
    }
    /// The devices' own kinds of memory, in the machine's order: what a graph allocator is made with.
    #[must_use]
    pub fn arenas(&self) -> Arenas {
        Arenas::new(self.devices.values().map(|d| d.buffer_type()).collect())
    }
    /// The path of every pair of devices that cannot read each other's memory.
    #[must_use]
    pub fn paths(&self) -> &PathTable {
        &self.paths
    }
    /// The paths with the reasons for them.
    #[must_use]
    pub fn path_report(&self) -> &[PathReport] {
        &self.report
    }

    /// The stream of a queue; `None` for the host. Errors: the device gives none.
    pub(super) fn stream(&self, queue: Queue) -> Result<Option<Arc<dyn Stream>>, ExecError> {
        match queue {
            Queue::Host => Ok(None),
            Queue::Compute(device) => Ok(Some(Arc::clone(&self.compute[device]))),
            Queue::Receive(device) => self.lazy_stream(device, &self.receive[device]).map(Some),
            Queue::Send(device) => self.lazy_stream(device, &self.send[device]).map(Some),
        }
    }

    fn lazy_stream(&self, device: DeviceId, slot: &Lazy) -> Result<Arc<dyn Stream>, ExecError> {
        let mut slot = slot.lock();
        if let Some(stream) = slot.as_ref() {
            return Ok(Arc::clone(stream));
        }
        let made = self.devices[device].create_stream();
        let stream = made.map_err(|error| ExecError::device(device, At::default(), error))?;
        Ok(Arc::clone(slot.insert(stream)))
    }

    /// A new user of the streams.
    pub(super) fn enter(&self) -> Owner {
        let mut turnstile = self.turnstile.lock();
        turnstile.next += 1;
        Owner(turnstile.next)
    }

    /// The right to issue. If somebody else issued last, everything of theirs has ended when this returns.
    pub(super) fn take_turn(&self, owner: Owner) -> Turn<'_> {
        let mut turnstile = self.turnstile.lock();
        let before = turnstile.last.replace(owner);
        let is_new = before != Some(owner);
        if let Some(other) = before.filter(|&other| other != owner) {
            let failures = self.drain();
            turnstile.lost.extend(failures.into_iter().map(|(device, error)| (other, device, error)));
        }
        Turn { _guard: turnstile, is_new }
    }

    /// Waits for everything of `owner`, makes the streams usable again, and returns what went wrong.
    pub(super) fn settle(&self, owner: Owner) -> Vec<(DeviceId, DeviceError)> {
        let mut turnstile = self.turnstile.lock();
        let mut failures = if turnstile.last == Some(owner) { self.drain() } else { Vec::new() };
        turnstile.lost.retain(|(of, device, error)| {
            let own = *of == owner;
            if own {
                failures.push((*device, error.clone()));
            }
            !own
        });
        failures
    }

    /// Forgets a user.
    pub(super) fn leave(&self, owner: Owner) {
        self.turnstile.lock().lost.retain(|(of, ..)| *of != owner);
    }

    /// Waits for all streams; those that failed are made usable again. What went wrong, root causes first.
    fn drain(&self) -> Vec<(DeviceId, DeviceError)> {
        let mut failures = Vec::new();
        let mut failed = Vec::new();
        for (device, stream) in self.streams() {
            if let Err(error) = stream.synchronize() {
                failures.push((device, error));
                failed.push(stream);
            }
        }
        // A stream that does not recover says so again when it is used.
        failed.iter().for_each(|stream| drop(stream.recover()));
        failure::sort(&mut failures);
        failures
    }

    /// Whether a stream knows of a failure that its events do not tell.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.streams().iter().any(|(_, stream)| stream.check().is_err())
    }

    fn streams(&self) -> Vec<(DeviceId, Arc<dyn Stream>)> {
        let compute = self.compute.iter().map(|(id, s)| (id, Arc::clone(s)));
        let lazy = self.receive.iter().chain(self.send.iter());
        let made = lazy.filter_map(|(id, slot)| slot.lock().as_ref().map(|s| (id, Arc::clone(s))));
        compute.chain(made).collect()
    }
}

/// The right to issue.
pub(super) struct Turn<'a> {
    _guard: MutexGuard<'a, Turnstile>,
    /// Whether somebody else issued last, or nobody did.
    pub(super) is_new: bool,
}

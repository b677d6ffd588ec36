//! What the devices of this process have in common: name, counters, faults, kernels, time.

use crate::clock::{SimClock, TimeModel};
use crate::error::{Call, DeviceError, Fault};
use crate::host::faults::Faults;
use crate::host::kernels::Kernels;
use crate::stats::Counters;
use loadmaster_graph::TensorId;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The part of a device that its streams, buffers and events hold on to.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) name: Box<str>,
    pub(crate) counters: Counters,
    pub(crate) faults: Faults,
    pub(crate) kernels: Arc<dyn Kernels>,
    pub(crate) timing: Option<Timing>,
    pub(crate) arithmetic: Arithmetic,
    pub(crate) peers: Peers,
}

/// The devices to whose memory a device copies directly.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Peers {
    /// None.
    #[default]
    None,
    /// All of its kind.
    All,
    /// Those with these names.
    Only(BTreeSet<Box<str>>),
}

impl Peers {
    /// Whether the device of that name is among them.
    #[must_use]
    pub fn reaches(&self, name: &str) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Only(names) => names.contains(name),
        }
    }
}

/// A device's place in simulated time.
#[derive(Debug, Clone)]
pub(crate) struct Timing {
    pub(crate) clock: Arc<SimClock>,
    pub(crate) model: TimeModel,
}

/// Whether a virtual device has bytes and computes with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Arithmetic {
    /// It does.
    #[default]
    Real,
    /// It has no bytes and computes nothing: only simulated time and counters move. For models larger than the host.
    TimeOnly,
}

impl Core {
    pub(crate) fn error(&self, call: Call, tensor: Option<TensorId>, fault: Fault) -> DeviceError {
        DeviceError { device: self.name.clone(), call, tensor, fault }
    }

    pub(crate) fn alive(&self, call: Call) -> Result<(), DeviceError> {
        self.faults.check_alive().map_err(|fault| self.error(call, None, fault))
    }

    /// Counts an attempt to allocate. Errors: the device is lost, or was told to refuse this one.
    pub(crate) fn may_allocate(&self) -> Result<(), Fault> {
        self.faults.check_alive()?;
        if self.faults.allocations.trips() { Err(Faults::injected("allocation")) } else { Ok(()) }
    }

    /// Counts an attempt to make something. Errors: the device is lost, or was told to fail this one.
    pub(crate) fn may_create(&self, call: Call) -> Result<(), DeviceError> {
        self.alive(call)?;
        let trip = if call == Call::Compile { &self.faults.compiles } else { &self.faults.creations };
        if trip.trips() { Err(self.error(call, None, Faults::injected("creation"))) } else { Ok(()) }
    }
}

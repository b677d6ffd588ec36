//! Why a tensor has its device.

use loadmaster_graph::{BufferId, DeviceId, TensorId};
use std::fmt;

/// One of the four sweeps of rule 1.3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sweep {
    /// 1.3a: forwards; the fallback is not carried and clears what is.
    ForwardsAccelerators,
    /// 1.3b: backwards, the same.
    BackwardsAccelerators,
    /// 1.3c: forwards, carrying any device.
    ForwardsAny,
    /// 1.3d: backwards, the same.
    BackwardsAny,
}

impl Sweep {
    /// The sweeps in order.
    pub const ALL: [Self; 4] =
        [Self::ForwardsAccelerators, Self::BackwardsAccelerators, Self::ForwardsAny, Self::BackwardsAny];

    /// What the sweep carries after meeting a node of `device`.
    #[inline]
    pub(super) fn carries(self, device: DeviceId, fallback: DeviceId) -> Option<DeviceId> {
        let any = matches!(self, Self::ForwardsAny | Self::BackwardsAny);
        (any || device != fallback).then_some(device)
    }
}

impl fmt::Display for Sweep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::ForwardsAccelerators => "forwards from accelerators",
            Self::BackwardsAccelerators => "backwards from accelerators",
            Self::ForwardsAny => "forwards from any device",
            Self::BackwardsAny => "backwards from any device",
        })
    }
}

/// What decided a tensor's device: the sub-rule, and what led to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// 1.1: the caller fixed it.
    Pinned,
    /// 1.2a: it is in a buffer already.
    InBuffer {
        /// The buffer (of its root, for a view).
        buffer: BufferId,
    },
    /// 1.2b: the caller writes it, on the host.
    Input,
    /// 1.2c: its weights are there.
    WeightSource {
        /// The weights.
        source: TensorId,
    },
    /// 1.2c, exception: its weights are in host memory, but the batch is worth uploading them.
    Offload {
        /// The weights.
        source: TensorId,
    },
    /// 1.3: a neighbour in execution order is there.
    Expanded {
        /// Which sweep carried the device.
        sweep: Sweep,
        /// The neighbour.
        from: TensorId,
    },
    /// 1.4: of the devices that support it, this one can use most sources in place.
    BestFit {
        /// How many sources it can use in place.
        usable_sources: u16,
    },
    /// 1.4: a device of higher priority works in the same memory.
    Upgraded {
        /// The device that it had before.
        from: DeviceId,
    },
    /// 1.5: it is a view, and goes with its root.
    ViewOf {
        /// The root.
        root: TensorId,
    },
    /// 1.5: it goes with the first node that uses it.
    SourceOf {
        /// That node's tensor.
        user: TensorId,
    },
    /// 1.5: nothing speaks for a device; the first that supports it.
    FirstSupporting,
    /// Left over by the rules: it goes with the first view of it.
    RootOf {
        /// The view.
        view: TensorId,
    },
    /// Left over by the rules: nothing uses it, so it stays on the fallback.
    Unused,
}

impl Cause {
    /// The number of the rule, as in the project's statement of ggml's rules; `-` for what no rule covers.
    #[must_use]
    pub const fn rule(self) -> &'static str {
        match self {
            Self::Pinned => "1.1",
            Self::InBuffer { .. } => "1.2a",
            Self::Input => "1.2b",
            Self::WeightSource { .. } | Self::Offload { .. } => "1.2c",
            Self::Expanded { sweep, .. } => match sweep {
                Sweep::ForwardsAccelerators => "1.3a",
                Sweep::BackwardsAccelerators => "1.3b",
                Sweep::ForwardsAny => "1.3c",
                Sweep::BackwardsAny => "1.3d",
            },
            Self::BestFit { .. } | Self::Upgraded { .. } => "1.4",
            Self::ViewOf { .. } | Self::SourceOf { .. } | Self::FirstSupporting => "1.5",
            Self::RootOf { .. } | Self::Unused => "-",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pinned => f.write_str("pinned by the caller"),
            Self::InBuffer { buffer } => write!(f, "is in {buffer} already"),
            Self::Input => f.write_str("an input, written on the host"),
            Self::WeightSource { source } => write!(f, "its weights {source} are there"),
            Self::Offload { source } => write!(f, "its batch is worth uploading the weights {source}"),
            Self::Expanded { sweep, from } => write!(f, "next to {from} ({sweep})"),
            Self::BestFit { usable_sources } => write!(f, "can use {usable_sources} of its sources in place"),
            Self::Upgraded { from } => write!(f, "moved up from {from}, which works in the same memory"),
            Self::ViewOf { root } => write!(f, "a view of {root}"),
            Self::SourceOf { user } => write!(f, "first used by {user}"),
            Self::FirstSupporting => f.write_str("the first device that supports it"),
            Self::RootOf { view } => write!(f, "used only through its view {view}"),
            Self::Unused => f.write_str("not used by any node"),
        }
    }
}

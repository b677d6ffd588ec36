//! Memory that plans take beside arenas and resident buffers: host memory for fetched outputs and for staged copies, and
//! memory of GPUs that kernels need beside their operands, one buffer for each GPU.
//!
//! What a plan needs is a value, [`ScratchNeeds`], known before anything is bound. A session holds as much as the largest
//! needs of its plans, and a bind takes nothing else: so whoever adds up the needs of the plans knows what is taken.

use super::build::{Outputs, Planned, ScheduleOptions};
use super::error::ExecError;
use super::paths::CopyPath;
use super::runtime::{Owner, Runtime};
use crate::machine::DeviceKind;
use crate::split::InputCopy;
use loadmaster_alloc::{Buffer, Refused};
use loadmaster_backends::OpShape;
use loadmaster_backends::cuda::workspace;
use loadmaster_graph::{Bytes, DeviceId, TensorId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most pieces of a staged copy.
pub(super) const MAX_PIECES: u64 = 16;
/// Slots of a staging buffer: one is filled while the other is emptied.
pub(super) const SLOTS: u64 = 2;
/// Alignment of slots and pieces.
pub(super) const LINE: u64 = 64;

/// What a scratch buffer is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ScratchUse {
    /// Slots for outputs, one for each turn; of the device that computes the first of them.
    Outputs {
        /// That device.
        of: DeviceId,
    },
    /// Slots for copies between two devices that do not reach each other.
    Staging {
        /// Where they come from.
        from: DeviceId,
        /// Where they go.
        to: DeviceId,
    },
    /// What kernels need beside operands, one after another.
    Workspace {
        /// The device that they run on, in whose own memory it is.
        of: DeviceId,
    },
}

/// A scratch buffer before it is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScratchNeed {
    /// The device whose pinned host memory it is, or whose own memory if it is a workspace; the host's own device:
    /// pageable memory of the host.
    pub home: DeviceId,
    /// Its bytes.
    pub size: Bytes,
}

/// The scratch buffers of one or several plans.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScratchNeeds(BTreeMap<ScratchUse, ScratchNeed>);

impl ScratchNeeds {
    /// What a plan needs. Pure: where tensors with memory of their own are does not matter. O(nodes + copies).
    #[must_use]
    pub fn of(planned: &Planned<'_, '_>, options: &ScheduleOptions) -> Self {
        let mut needs = BTreeMap::new();
        let slots = OutputSlots::of(planned, options);
        if let Some((use_, home)) = slots.place(planned) {
            let turns = u64::from(planned.lowered.n_copies());
            needs.insert(use_, ScratchNeed { home, size: Bytes(slots.slot.get().saturating_mul(turns)) });
        }
        for copy in planned.splits.copies().values().filter(|c| is_staged(planned, options, c)) {
            let (from, to) = (copy.from, copy.to);
            let need = || ScratchNeed {
                home: staging_home(planned, options, from, to),
                size: staging_size(planned, options, from, to),
            };
            needs.entry(ScratchUse::Staging { from, to }).or_insert_with(need);
        }
        for split in planned.splits.splits().values() {
            let Some(target) = planned.machine.gpu(split.device) else { continue };
            let of_node = |node| workspace(&OpShape::of(planned.graph(), planned.tensor_of(node)), &target);
            // A node that there is no kernel for needs nothing, and is refused by name when it is bound.
            let size = split.nodes().filter_map(|node| of_node(node).ok()).max().unwrap_or(Bytes::ZERO);
            if size > Bytes::ZERO {
                let home = split.device;
                let need = needs.entry(ScratchUse::Workspace { of: home }).or_insert(ScratchNeed { home, size });
                need.size = need.size.max(size);
            }
        }
        Self(needs)
    }

    /// The needs by use.
    pub fn iter(&self) -> impl Iterator<Item = (ScratchUse, ScratchNeed)> {
        self.0.iter().map(|(&use_, &need)| (use_, need))
    }

    /// Bytes in the pinned memory of a device, or for the host's own device in its memory.
    #[must_use]
    pub fn bytes_of(&self, home: DeviceId) -> Bytes {
        let in_host = |use_: &ScratchUse| !matches!(use_, ScratchUse::Workspace { .. });
        self.iter().filter(|(use_, need)| in_host(use_) && need.home == home).map(|(_, need)| need.size).sum()
    }

    /// Bytes of a device's own memory that its kernels need beside operands.
    #[must_use]
    pub fn workspace_of(&self, device: DeviceId) -> Bytes {
        self.0.get(&ScratchUse::Workspace { of: device }).map_or(Bytes::ZERO, |need| need.size)
    }

    /// The larger need of each use.
    pub fn raise_to(&mut self, other: &Self) {
        for (&use_, need) in &other.0 {
            let own = self.0.entry(use_).or_insert(*need);
            own.size = own.size.max(need.size);
        }
    }
}

/// Where fetched outputs go in the slot of a turn.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct OutputSlots {
    /// The outputs with their first byte and their length.
    pub(super) outputs: Vec<(TensorId, Bytes, Bytes)>,
    /// Bytes of a slot.
    pub(super) slot: Bytes,
}

impl OutputSlots {
    pub(super) fn of(planned: &Planned<'_, '_>, options: &ScheduleOptions) -> Self {
        let mut slots = Self::default();
        if options.outputs == Outputs::InPlace {
            return slots;
        }
        let graph = planned.graph();
        for &tensor in graph.nodes().values().filter(|t| graph.tensor(**t).flags.is_output()) {
            let len = graph.tensor(tensor).nbytes();
            slots.outputs.push((tensor, slots.slot, len));
            slots.slot = Bytes(slots.slot.saturating_add(len).get().next_multiple_of(LINE));
        }
        slots
    }

    /// What the slots are and whose memory they take; `None` where nothing is fetched.
    pub(super) fn place(&self, planned: &Planned<'_, '_>) -> Option<(ScratchUse, DeviceId)> {
        let device = |&(tensor, ..): &(TensorId, Bytes, Bytes)| planned.assignment.device(tensor);
        let first = self.outputs.first().map(device)?;
        let of = self.outputs.iter().map(device).find(|&d| is_gpu(planned, d)).unwrap_or(first);
        let home = if is_gpu(planned, of) { of } else { planned.machine.fallback() };
        Some((ScratchUse::Outputs { of }, home))
    }
}

fn is_gpu(planned: &Planned<'_, '_>, device: DeviceId) -> bool {
    planned.machine.device(device).kind == DeviceKind::Gpu
}

/// Whether a copy passes through host slots.
pub(super) fn is_staged(planned: &Planned<'_, '_>, options: &ScheduleOptions, copy: &InputCopy) -> bool {
    !super::build::is_host_source(planned, copy)
        && !planned.machine.compute_type(copy.to).host
        && options.paths.get(copy.from, copy.to) != CopyPath::Direct
}

/// The first end of the pair that has pinned memory.
fn staging_home(planned: &Planned<'_, '_>, options: &ScheduleOptions, from: DeviceId, to: DeviceId) -> DeviceId {
    if options.paths.get(from, to) == CopyPath::Pageable {
        return planned.machine.fallback();
    }
    [from, to].into_iter().find(|&d| is_gpu(planned, d)).unwrap_or(planned.machine.fallback())
}

/// Bytes of a pair's slots: enough for the largest piece that any copy of the pair has.
fn staging_size(planned: &Planned<'_, '_>, options: &ScheduleOptions, from: DeviceId, to: DeviceId) -> Bytes {
    let of_pair = planned.splits.copies().values().filter(|c| c.from == from && c.to == to);
    let largest = of_pair.map(|c| c.bytes.get()).max().unwrap_or(0);
    let piece = largest.div_ceil(MAX_PIECES).max(options.piece.get().min(largest));
    Bytes(piece.next_multiple_of(LINE) * SLOTS)
}

/// The scratch buffers of a session.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    buffers: BTreeMap<ScratchUse, Arc<dyn Buffer>>,
    /// Who ran last with them, plus one.
    user: AtomicU64,
}

impl Scratch {
    /// Takes what is needed, keeping the buffers of `old` that are large enough. Errors: memory that is refused.
    pub(super) fn take(runtime: &Runtime, needs: &ScratchNeeds, old: &Self) -> Result<Self, ExecError> {
        let buffer = |(use_, need): (ScratchUse, ScratchNeed)| match old.buffers.get(&use_) {
            Some(kept) if kept.size() >= need.size => Ok((use_, Arc::clone(kept))),
            _ => Ok((use_, allocate(runtime, use_, need)?)),
        };
        Ok(Self { buffers: needs.iter().map(buffer).collect::<Result<_, ExecError>>()?, user: AtomicU64::new(0) })
    }

    pub(super) fn holds(&self, needs: &ScratchNeeds) -> bool {
        needs.iter().all(|(use_, need)| self.buffers.get(&use_).is_some_and(|b| b.size() >= need.size))
    }

    pub(super) fn buffer(&self, use_: ScratchUse) -> Option<Arc<dyn Buffer>> {
        self.buffers.get(&use_).cloned()
    }

    /// Notes who writes there from now on.
    pub(super) fn used_by(&self, owner: Owner) {
        self.user.store(owner.number().saturating_add(1), Ordering::Relaxed);
    }

    /// Whether nobody else has written there since.
    pub(super) fn is_of(&self, owner: Owner) -> bool {
        self.user.load(Ordering::Relaxed) == owner.number().saturating_add(1)
    }
}

fn allocate(runtime: &Runtime, use_: ScratchUse, need: ScratchNeed) -> Result<Arc<dyn Buffer>, ExecError> {
    if let ScratchUse::Workspace { of } = use_ {
        return allocate_workspace(runtime, of, need.size);
    }
    let purpose = || match use_ {
        ScratchUse::Outputs { of } | ScratchUse::Workspace { of } => {
            format!("fetched outputs of {}", runtime.device(of).name())
        }
        ScratchUse::Staging { from, to } => {
            format!("copies from {} to {}", runtime.device(from).name(), runtime.device(to).name())
        }
    };
    let pinned = runtime.device(need.home).staging_type();
    let host = || {
        let mut devices = runtime.devices().values();
        devices.find(|d| d.kind() == loadmaster_backends::DeviceKind::Cpu).map(|d| d.buffer_type())
    };
    let memory = pinned.or_else(host).ok_or_else(|| ExecError::NoBuffer { what: purpose() })?;
    memory.alloc_buffer(need.size).map_err(|refused| ExecError::Staging { purpose: purpose(), refused })
}

fn allocate_workspace(runtime: &Runtime, of: DeviceId, size: Bytes) -> Result<Arc<dyn Buffer>, ExecError> {
    let machine = runtime.machine();
    let refused = |Refused { needed, available, reason, .. }| ExecError::Workspace {
        device: machine.device(of).name.clone(),
        pool: machine.pools()[machine.compute_type(of).pool].name.clone(),
        needed,
        available,
        reason: reason.into(),
    };
    runtime.device(of).buffer_type().alloc_buffer(size).map_err(refused)
}

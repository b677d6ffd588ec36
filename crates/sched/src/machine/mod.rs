//! The machine as data: devices in priority order, memory pools, buffer types, links, and the fallback device.
//!
//! Nothing here asks a driver. A machine comes from probing, from a file, from short specs, or from a test; planners
//! read it and never change it.

pub mod build;
mod error;
mod size;
mod spec;
mod validate;

pub use error::{MachineError, SpecError};
pub use size::{SizeError, SizeFault, parse_size};
pub use spec::{DeviceSpec, MAX_GPU_FIGURE};

use crate::device_set::{self, DeviceSet, Mask, MaskTable};
use crate::op_set::OpSet;
use loadmaster_backends::cuda::GpuTarget;
use loadmaster_graph::{Align, BufferTypeId, Bytes, DeviceId, IdVec, Op, PoolId, Tensor};
use std::fmt;

/// Quantized rows end at multiples of this many elements in CUDA buffers.
pub const CUDA_ROW_PADDING: u64 = 512;
/// Alignment of device memory, as CUDA back ends ask for.
pub const DEVICE_ALIGN: u64 = 128;
/// Alignment of host memory.
pub const HOST_ALIGN: u64 = 32;
/// Smallest batch that makes uploading weights worth while, as CUDA back ends have it.
pub const OFFLOAD_MIN_BATCH: u64 = 32;

/// What a device is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DeviceKind {
    /// A host processor.
    Cpu,
    /// An accelerator.
    Gpu,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
        })
    }
}

/// Which back end drives a device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Driver {
    /// The host processor.
    Host,
    /// A virtual GPU.
    Sim,
    /// A CUDA device.
    Cuda {
        /// The driver's number of the device.
        ordinal: u32,
    },
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host => f.write_str("host"),
            Self::Sim => f.write_str("sim"),
            Self::Cuda { ordinal } => write!(f, "cuda:{ordinal}"),
        }
    }
}

/// Something that executes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its name, unique in the machine.
    pub name: Box<str>,
    /// What it is.
    pub kind: DeviceKind,
    /// Which back end drives it.
    pub driver: Driver,
    /// The kind of memory that holds what it computes.
    pub buffer_type: BufferTypeId,
    /// What it can compute.
    pub ops: OpSet,
    /// Smallest batch for which it takes an operation whose weights are in host memory (rule 1.2c). `None`: never.
    pub offload_min_batch: Option<u64>,
    /// The GPU whose kernels will compute, if it is one: what they need beside operands depends on it. `None`: kernels
    /// that need nothing of the device's memory, or a CUDA device that nobody described yet ([`Machine::gpu`]).
    pub gpu: Option<GpuTarget>,
    /// Pools it holds bytes in: its own memory first, then those it stages copies through.
    pub pools: Vec<PoolId>,
}

impl Device {
    /// Whether it takes `tensor`'s operation although the weights must be uploaded for it.
    #[must_use]
    pub fn wants_offload(&self, tensor: &Tensor) -> bool {
        self.offload_min_batch.is_some_and(|min| offload_batch(tensor) >= min)
    }
}

/// The batch that decides whether uploading an operation's weights pays (as ggml's CUDA back end counts it).
#[must_use]
pub fn offload_batch(tensor: &Tensor) -> u64 {
    match tensor.op {
        Op::GetRows => 0,
        Op::MulMat => tensor.ne[1],
        Op::MulMatId | Op::Rope => tensor.ne[2],
        _ => tensor.rows(),
    }
}

/// What a memory pool is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PoolKind {
    /// A device's own memory.
    Device,
    /// Pageable host memory.
    Host,
    /// Host memory that devices read and write directly.
    PinnedHost,
    /// Memory that host and devices share.
    Unified,
}

impl fmt::Display for PoolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::PinnedHost => "pinned",
            Self::Unified => "unified",
        })
    }
}

/// Something that holds bytes. Two devices may share one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pool {
    /// Its name, unique in the machine.
    pub name: Box<str>,
    /// What it is.
    pub kind: PoolKind,
    /// How much it holds; `None`: not known, and never an obstacle.
    pub capacity: Option<Bytes>,
    /// The pool that it is a part of, in which its bytes count too: a limit within a limit.
    pub within: Option<PoolId>,
}

/// A kind of memory with its rules.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BufferTypeDesc {
    /// Its name.
    pub name: Box<str>,
    /// The pool its bytes come from.
    pub pool: PoolId,
    /// Every tensor starts at a multiple of this.
    pub alignment: Align,
    /// The largest single buffer; `None`: no limit.
    pub max_size: Option<Bytes>,
    /// Whether the host reads it in place.
    pub host: bool,
    /// Quantized rows are padded to a multiple of this many elements, at the end of a tensor. `None`: they are not.
    pub row_padding: Option<u64>,
    /// Devices that can use it in place.
    pub usable_by: DeviceSet,
}

impl BufferTypeDesc {
    /// Bytes that a tensor takes. A quantized tensor whose rows are no multiple of the padding takes the missing
    /// elements of one row more, so that kernels may read past the last row.
    #[must_use]
    pub fn alloc_size(&self, tensor: &Tensor) -> Bytes {
        let size = tensor.nbytes();
        let Some(padding) =
            self.row_padding.filter(|&p| tensor.dtype.is_quantized() && !tensor.ne[0].is_multiple_of(p))
        else {
            return size;
        };
        let missing = tensor.dtype.row_size(padding - tensor.ne[0] % padding).unwrap_or(Bytes::ZERO);
        size.saturating_add(missing)
    }
}

/// How bytes travel over a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkPath {
    /// Directly between two devices' memories.
    Peer,
    /// Through pinned host memory.
    Pinned,
    /// Through pageable host memory.
    Pageable,
    /// Both ends see the same memory.
    Shared,
}

impl fmt::Display for LinkPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Peer => "peer",
            Self::Pinned => "pinned",
            Self::Pageable => "pageable",
            Self::Shared => "shared",
        })
    }
}

/// A way for bytes from one device to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Where the bytes are.
    pub from: DeviceId,
    /// Where they go.
    pub to: DeviceId,
    /// How they travel.
    pub path: LinkPath,
    /// Bytes a second.
    pub bandwidth: Bytes,
    /// Nanoseconds before the first byte arrives.
    pub latency_ns: u64,
}

/// The parts of a machine, before they are checked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MachineParts {
    /// Devices, highest priority first.
    pub devices: IdVec<DeviceId, Device>,
    /// Memory pools.
    pub pools: IdVec<PoolId, Pool>,
    /// Buffer types.
    pub buffer_types: IdVec<BufferTypeId, BufferTypeDesc>,
    /// Links between devices.
    pub links: Vec<Link>,
    /// The device that runs what no other takes, and holds the inputs. `None`: the last one.
    pub fallback: Option<DeviceId>,
}

/// A checked machine with its look-up tables.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Machine {
    parts: MachineParts,
    fallback: DeviceId,
    tables: Tables,
}

/// What planners look up, as bits.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Tables {
    /// By operation: devices that support it.
    support: MaskTable,
    /// By buffer type: devices that can use it in place.
    usable: MaskTable,
    /// By device: devices that can use its compute buffer type in place.
    readers: MaskTable,
    /// By device: devices of higher priority with the same compute buffer type.
    upgrades: MaskTable,
}

impl Machine {
    /// Checks and freezes. Errors: the first contradiction. O(devices × (operations + devices)).
    pub fn new(parts: MachineParts) -> Result<Self, MachineError> {
        let fallback = validate::validate(&parts)?;
        let tables = Tables::of(&parts);
        Ok(Self { parts, fallback, tables })
    }

    /// Devices, highest priority first.
    #[must_use]
    pub fn devices(&self) -> &IdVec<DeviceId, Device> {
        &self.parts.devices
    }
    /// One device.
    #[must_use]
    pub fn device(&self, id: DeviceId) -> &Device {
        &self.parts.devices[id]
    }
    /// The device of that name.
    #[must_use]
    pub fn device_named(&self, name: &str) -> Option<DeviceId> {
        self.parts.devices.iter().find(|(_, d)| &*d.name == name).map(|(id, _)| id)
    }
    /// A pool and those that it is a part of, from the inside out. O(pools).
    pub fn pool_and_outer(&self, pool: PoolId) -> impl Iterator<Item = PoolId> + '_ {
        std::iter::successors(Some(pool), |&p| self.parts.pools[p].within)
    }
    /// Memory pools.
    #[must_use]
    pub fn pools(&self) -> &IdVec<PoolId, Pool> {
        &self.parts.pools
    }
    /// Buffer types.
    #[must_use]
    pub fn buffer_types(&self) -> &IdVec<BufferTypeId, BufferTypeDesc> {
        &self.parts.buffer_types
    }
    /// The kind of memory that holds what a device computes.
    #[must_use]
    pub fn compute_type(&self, device: DeviceId) -> &BufferTypeDesc {
        &self.parts.buffer_types[self.parts.devices[device].buffer_type]
    }
    /// Links between devices.
    #[must_use]
    pub fn links(&self) -> &[Link] {
        &self.parts.links
    }
    /// The best link for a copy: the one of most bandwidth.
    #[must_use]
    pub fn link(&self, from: DeviceId, to: DeviceId) -> Option<&Link> {
        self.parts.links.iter().filter(|l| l.from == from && l.to == to).max_by_key(|l| l.bandwidth)
    }
    /// The device that runs what no other takes, and holds the inputs.
    #[must_use]
    pub fn fallback(&self) -> DeviceId {
        self.fallback
    }
    /// The unchecked parts, to make another machine of.
    #[must_use]
    pub fn parts(&self) -> &MachineParts {
        &self.parts
    }

    /// Whether a device supports an operation.
    #[inline]
    #[must_use]
    pub fn supports(&self, device: DeviceId, op: Op) -> bool {
        self.tables.support.contains(op as usize, device)
    }
    /// Whether a device can use a buffer type in place.
    #[inline]
    #[must_use]
    pub fn can_use(&self, device: DeviceId, buffer_type: BufferTypeId) -> bool {
        self.tables.usable.contains(buffer_type.index(), device)
    }
    /// Whether a device can use in place what another computes.
    #[inline]
    #[must_use]
    pub fn can_read(&self, reader: DeviceId, owner: DeviceId) -> bool {
        self.tables.readers.contains(owner.index(), reader)
    }
    /// The GPU whose kernels a device runs: as described, or assumed of a CUDA device that nobody described.
    #[must_use]
    pub fn gpu(&self, device: DeviceId) -> Option<GpuTarget> {
        let device = self.device(device);
        let is_cuda = matches!(device.driver, Driver::Cuda { .. });
        device.gpu.or(is_cuda.then_some(GpuTarget::ASSUMED))
    }
    /// The machine with GPUs described as `found` says, by device; where that says nothing they stay as they are.
    #[must_use]
    pub fn with_gpus(mut self, found: impl IntoIterator<Item = Option<GpuTarget>>) -> Self {
        for (device, found) in self.parts.devices.values_mut().zip(found) {
            device.gpu = found.or(device.gpu);
        }
        self
    }
    /// Names of devices, for messages.
    pub(crate) fn names(&self, devices: impl Iterator<Item = DeviceId>) -> String {
        let names: Vec<&str> = devices.map(|d| &*self.parts.devices[d].name).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }

    #[inline]
    pub(crate) fn support_mask(&self, op: Op) -> &Mask {
        self.tables.support.row(op as usize)
    }
    #[inline]
    pub(crate) fn usable_mask(&self, buffer_type: BufferTypeId) -> &Mask {
        self.tables.usable.row(buffer_type.index())
    }
    #[inline]
    pub(crate) fn upgrade_mask(&self, device: DeviceId) -> &Mask {
        self.tables.upgrades.row(device.index())
    }
    /// Whether two devices share a compute buffer type, so that rule 1.4 can move a node.
    pub(crate) fn has_upgrades(&self) -> bool {
        !self.tables.upgrades.is_empty()
    }
}

impl Tables {
    fn of(parts: &MachineParts) -> Self {
        let n = parts.devices.len();
        let mut support = MaskTable::new(Op::ALL.len(), n);
        let mut readers = MaskTable::new(n, n);
        let mut upgrades = MaskTable::new(n, n);
        let usable = MaskTable::of_sets(parts.buffer_types.values().map(|t| &t.usable_by), n);
        for (id, device) in parts.devices.iter() {
            device.ops.iter().for_each(|op| support.insert(op as usize, id));
            for reader in device_set::bits(usable.row(device.buffer_type.index())) {
                readers.insert(id.index(), reader);
            }
            for (higher, other) in parts.devices.iter().take(id.index()) {
                if other.buffer_type == device.buffer_type {
                    upgrades.insert(id.index(), higher);
                }
            }
        }
        Self { support, usable, readers, upgrades }
    }
}

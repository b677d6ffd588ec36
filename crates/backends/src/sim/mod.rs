//! `sim`: a virtual GPU.
//!
//! Its memory is its own: the host reads and writes it through copies only, and what nobody wrote is poison. It has a
//! capacity, an alignment and a largest buffer. Its streams are threads that run their commands in order, asynchronously.
//! It computes with the CPU's kernels, so results agree bit for bit. It fails on demand, counts what it does, and can
//! keep simulated time.

pub(crate) mod memory;

pub use memory::POISON;
pub(crate) use memory::SimBuffer;
use memory::SimMemory;

use crate::clock::{SimClock, TimeModel};
use crate::device::{Device, DeviceKind, MemoryInfo, OpShape, PeerAccess};
use crate::error::{Call, DeviceError, Fault, Unsupported};
use crate::host::core::{Core, Peers, Timing};
use crate::host::program::HostProgram;
use crate::host::{Arithmetic, Faults, HostEvent, HostMemory, Kernels, QueueStream, transfer};
use crate::program::{Compiled, Program};
use crate::stats::{DeviceStats, Space};
use crate::stream::{Event, Region, Stream};
use loadmaster_alloc::{Buffer, BufferType, InPlaceTable};
use loadmaster_graph::{Align, Bytes};
use std::any::Any;
use std::sync::Arc;

/// What a virtual GPU is like.
#[derive(Clone, Debug)]
pub struct SimOptions {
    /// Its name.
    pub name: Box<str>,
    /// Bytes of its memory.
    pub capacity: Bytes,
    /// Alignment of tensors.
    pub align: Align,
    /// Its largest buffer.
    pub max_buffer: Option<Bytes>,
    /// Quantized rows are padded to a multiple of this many elements (0: not).
    pub row_padding: u64,
    /// The devices that it copies to directly.
    pub peers: Peers,
    /// Whether it has pinned host memory.
    pub staging: Staging,
    /// Whether it computes.
    pub arithmetic: Arithmetic,
    /// Its speed, for simulated time.
    pub time: Option<(Arc<SimClock>, TimeModel)>,
}

/// Whether a virtual GPU has pinned host memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Staging {
    /// It has: copies between devices are staged there.
    Pinned,
    /// It has none: copies are staged in pageable memory.
    Pageable,
}

impl SimOptions {
    /// A GPU as the golden graphs have it: alignment 128, quantized rows padded to 512 elements, direct copies to all
    /// other virtual GPUs, pinned host memory, real arithmetic, no simulated time.
    #[must_use]
    pub fn new(name: impl Into<Box<str>>, capacity: Bytes) -> Self {
        // 128 is a power of two.
        let align = Align::new(128).unwrap_or(Align::ONE);
        Self {
            name: name.into(),
            capacity,
            align,
            max_buffer: None,
            row_padding: 512,
            peers: Peers::All,
            staging: Staging::Pinned,
            arithmetic: Arithmetic::Real,
            time: None,
        }
    }
}

/// A virtual GPU.
#[derive(Debug)]
pub struct SimDevice {
    core: Arc<Core>,
    memory: Arc<SimMemory>,
    staging: Option<Arc<HostMemory>>,
}

impl SimDevice {
    /// A virtual GPU with the given kernels. Errors: the time model's speeds are not positive.
    pub fn new(options: SimOptions, kernels: Arc<dyn Kernels>) -> Result<Self, DeviceError> {
        if let Some((_, model)) = &options.time {
            model.check(&options.name)?;
        }
        let core = Arc::new(Core {
            name: options.name,
            counters: Default::default(),
            faults: Faults::default(),
            kernels,
            timing: options.time.map(|(clock, model)| Timing { clock, model }),
            arithmetic: options.arithmetic,
            peers: options.peers,
        });
        let memory = Arc::new(SimMemory {
            core: Arc::clone(&core),
            align: options.align,
            max_size: options.max_buffer,
            capacity: options.capacity,
            row_padding: options.row_padding,
        });
        let staging = (options.staging == Staging::Pinned).then(|| {
            let name = format!("{} pinned", core.name).into();
            Arc::new(HostMemory {
                core: Arc::clone(&core),
                name,
                align: Align::ONE,
                max_size: None,
                space: Space::Unlimited,
            })
        });
        Ok(Self { core, memory, staging })
    }

    /// What it can be told to do wrong.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.core.faults
    }
}

impl Device for SimDevice {
    fn name(&self) -> &str {
        &self.core.name
    }
    fn kind(&self) -> DeviceKind {
        DeviceKind::Gpu
    }
    fn description(&self) -> String {
        format!("virtual GPU, {}", self.memory.capacity)
    }
    fn memory(&self) -> MemoryInfo {
        let used = self.core.counters.own_bytes();
        MemoryInfo { total: Some(self.memory.capacity), free: Some(self.memory.capacity.saturating_sub(used)) }
    }
    fn buffer_type(&self) -> Arc<dyn BufferType> {
        Arc::clone(&self.memory) as Arc<dyn BufferType>
    }
    fn staging_type(&self) -> Option<Arc<dyn BufferType>> {
        self.staging.as_ref().map(|s| Arc::clone(s) as Arc<dyn BufferType>)
    }
    fn can_use(&self, buffer: &dyn Buffer) -> bool {
        buffer.as_any().downcast_ref::<SimBuffer>().is_some_and(|b| Arc::ptr_eq(b.core(), &self.core))
    }
    fn supports(&self, op: &OpShape<'_>) -> Result<(), Unsupported> {
        self.core.kernels.supports(op)
    }
    fn in_place(&self) -> InPlaceTable {
        self.core.kernels.in_place()
    }
    fn peer(&self, other: &dyn Device) -> PeerAccess {
        if other.as_any().downcast_ref::<Self>().is_none() {
            return PeerAccess::None { why: format!("{} is no virtual GPU", other.name()) };
        }
        if self.core.peers.reaches(other.name()) {
            return PeerAccess::Direct;
        }
        PeerAccess::None { why: format!("{} is not configured to reach {}", self.name(), other.name()) }
    }
    fn keeps_bytes(&self) -> bool {
        self.core.arithmetic == Arithmetic::Real
    }
    fn create_stream(&self) -> Result<Arc<dyn Stream>, DeviceError> {
        self.core.may_create(Call::Create)?;
        QueueStream::start(&self.core)
    }
    fn create_event(&self) -> Result<Arc<dyn Event>, DeviceError> {
        self.core.may_create(Call::Create)?;
        Ok(Arc::new(HostEvent::new(&self.core)))
    }
    fn compile(&self, program: Program) -> Result<Arc<dyn Compiled>, DeviceError> {
        self.core.may_create(Call::Compile)?;
        let resolve = |buffer: &dyn Buffer, offset, len| match buffer.as_any().downcast_ref::<SimBuffer>() {
            Some(own) if Arc::ptr_eq(own.core(), &self.core) => own.address(offset, len),
            _ => Err(Fault::WrongMemory { buffer_type: format!("{buffer:?}") }),
        };
        Ok(Arc::new(HostProgram::new(&self.core, program, &resolve)?))
    }
    fn upload(&self, to: &Region, bytes: &[u8]) -> Result<(), DeviceError> {
        transfer::upload(&self.core, to, bytes)
    }
    fn download(&self, from: &Region, bytes: &mut [u8]) -> Result<(), DeviceError> {
        transfer::download(&self.core, from, bytes)
    }
    fn stats(&self) -> DeviceStats {
        self.core.counters.snapshot()
    }
    fn health(&self) -> Result<(), DeviceError> {
        self.core.alive(Call::Synchronize)
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

//! `cpu`: the host's processor as a device.
//!
//! It computes on host memory in place, whoever allocated or mapped it. Its streams are threads, so that a run never
//! blocks the thread that puts commands in.

use crate::clock::{SimClock, TimeModel};
use crate::device::{Device, DeviceKind, MemoryInfo, OpShape, PeerAccess};
use crate::error::{Call, DeviceError, Fault, Unsupported};
use crate::host::core::{Core, Peers, Timing};
use crate::host::program::HostProgram;
use crate::host::{Arithmetic, Faults, HostBuffer, HostEvent, HostMemory, Kernels, QueueStream, transfer};
use crate::program::{Compiled, Program};
use crate::stats::{DeviceStats, Space};
use crate::stream::{Event, Region, Stream};
use loadmaster_alloc::{Buffer, BufferType, InPlaceTable};
use loadmaster_graph::{Align, Bytes};
use std::any::Any;
use std::sync::Arc;

/// How the CPU is used.
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Its name.
    pub name: Box<str>,
    /// Alignment of tensors.
    pub align: Align,
    /// Most bytes that its buffers take together; `None`: what the system gives.
    pub limit: Option<Bytes>,
    /// Whether it computes.
    pub arithmetic: Arithmetic,
    /// Its speed, for simulated time.
    pub time: Option<(Arc<SimClock>, TimeModel)>,
}

impl Default for CpuOptions {
    /// Named `cpu`, alignment 32, no limit, real arithmetic, no simulated time.
    fn default() -> Self {
        // 32 is a power of two.
        let align = Align::new(32).unwrap_or(Align::ONE);
        Self { name: "cpu".into(), align, limit: None, arithmetic: Arithmetic::Real, time: None }
    }
}

/// The host's processor.
#[derive(Debug)]
pub struct CpuDevice {
    core: Arc<Core>,
    memory: Arc<HostMemory>,
    limit: Option<Bytes>,
}

impl CpuDevice {
    /// The CPU with the given kernels. Errors: the time model's speeds are not positive.
    pub fn new(options: CpuOptions, kernels: Arc<dyn Kernels>) -> Result<Self, DeviceError> {
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
            peers: Peers::None,
        });
        let memory = Arc::new(HostMemory {
            core: Arc::clone(&core),
            name: core.name.clone(),
            align: options.align,
            max_size: None,
            space: options.limit.map_or(Space::Unlimited, Space::Limited),
        });
        Ok(Self { core, memory, limit: options.limit })
    }

    /// What it can be told to do wrong.
    #[must_use]
    pub fn faults(&self) -> &Faults {
        &self.core.faults
    }
}

impl Device for CpuDevice {
    fn name(&self) -> &str {
        &self.core.name
    }
    fn kind(&self) -> DeviceKind {
        DeviceKind::Cpu
    }
    fn description(&self) -> String {
        format!("CPU, {}", self.core.kernels.description())
    }
    fn memory(&self) -> MemoryInfo {
        let free = self.limit.map(|limit| limit.saturating_sub(self.core.counters.own_bytes()));
        MemoryInfo { total: self.limit, free }
    }
    fn buffer_type(&self) -> Arc<dyn BufferType> {
        Arc::clone(&self.memory) as Arc<dyn BufferType>
    }
    fn staging_type(&self) -> Option<Arc<dyn BufferType>> {
        None
    }
    fn can_use(&self, buffer: &dyn Buffer) -> bool {
        buffer.as_any().is::<HostBuffer>()
    }
    fn supports(&self, op: &OpShape<'_>) -> Result<(), Unsupported> {
        self.core.kernels.supports(op)
    }
    fn in_place(&self) -> InPlaceTable {
        self.core.kernels.in_place()
    }
    fn peer(&self, other: &dyn Device) -> PeerAccess {
        PeerAccess::None {
            why: format!("{} reads host memory, which {} copies from itself", self.name(), other.name()),
        }
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
        let resolve = |buffer: &dyn Buffer, offset, len| match buffer.as_any().downcast_ref::<HostBuffer>() {
            Some(host) => host.address(offset, len).map(Some),
            None => Err(Fault::WrongMemory { buffer_type: format!("{buffer:?}") }),
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

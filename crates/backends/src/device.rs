//! The contract between an executor and a device.
//!
//! A device computes programs on streams and owns memory. Everything is asynchronous unless its documentation says
//! otherwise, nothing is ordered but by streams and events, and nothing in a steady run allocates: programs are compiled
//! once, regions and events are handles.
//!
//! It is made so that a CUDA driver fits: a context per device, streams and events with `cuStreamWaitEvent`'s meaning,
//! pinned host memory as [`Device::staging_type`], peer copies, a graph captured per compiled program. It is also made so
//! that the CPU loses nothing: host memory of any origin (own, mapped, pinned) is one type that it computes on in place.

use crate::cuda::GpuTarget;
use crate::error::{DeviceError, Unsupported};
use crate::program::{Compiled, Program};
use crate::stats::DeviceStats;
use crate::stream::{Event, Region, Stream};
use loadmaster_alloc::{Buffer, BufferType, InPlaceTable};
use loadmaster_graph::{Bytes, Graph, Op, Tensor, TensorId};
use smallvec::SmallVec;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// What kind of device it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The host's processor: computes on host memory in place.
    Cpu,
    /// A device with memory of its own.
    Gpu,
}

/// Bytes of a device's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryInfo {
    /// All of it, if known.
    pub total: Option<Bytes>,
    /// What could be allocated now, if known.
    pub free: Option<Bytes>,
}

/// An operation with the shapes that it works on: what a device is asked whether it can compute.
#[derive(Clone, Debug)]
pub struct OpShape<'g> {
    /// The result: type, shape, operation, parameters.
    pub tensor: &'g Tensor,
    /// The sources, holes included.
    pub sources: SmallVec<[Option<&'g Tensor>; 4]>,
}

impl<'g> OpShape<'g> {
    /// The operation of a tensor of a graph.
    #[must_use]
    pub fn of(graph: &'g Graph, id: TensorId) -> Self {
        let tensor = graph.tensor(id);
        Self { tensor, sources: tensor.src.iter().map(|s| s.map(|s| graph.tensor(s))).collect() }
    }

    /// Its operation.
    #[must_use]
    pub const fn op(&self) -> Op {
        self.tensor.op
    }
}

/// Whether a device can copy to another one directly.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PeerAccess {
    /// The driver says so. Whether the bytes arrive is for a self-test to find out.
    Direct,
    /// It cannot.
    None {
        /// Why.
        why: String,
    },
}

/// A device. Object-safe; all methods may be called from any thread.
pub trait Device: fmt::Debug + Send + Sync {
    /// Its name, unique among the devices of a process (`cpu`, `sim0`, `cuda:1`).
    fn name(&self) -> &str;
    /// What kind of device it is.
    fn kind(&self) -> DeviceKind;
    /// What it is, for people: model, bus, threads.
    fn description(&self) -> String;
    /// Its memory now.
    fn memory(&self) -> MemoryInfo;
    /// Its own kind of memory: weights, KV cache and compute buffers. The same handle every time.
    fn buffer_type(&self) -> Arc<dyn BufferType>;
    /// Host memory that it copies from and to without a detour (pinned), if it has such.
    fn staging_type(&self) -> Option<Arc<dyn BufferType>>;
    /// Whether it reads and writes this buffer in place.
    fn can_use(&self, buffer: &dyn Buffer) -> bool;
    /// Whether it can compute this, and if not, why.
    fn supports(&self, op: &OpShape<'_>) -> Result<(), Unsupported>;
    /// Which operands may share bytes with the result: a property of the kernels, published for the planner.
    fn in_place(&self) -> InPlaceTable;
    /// The GPU that its kernels are chosen for, where they need memory beside their operands
    /// ([`crate::cuda::workspace`]).
    fn gpu(&self) -> Option<GpuTarget> {
        None
    }
    /// Whether it can copy from its own memory to that of `other` directly.
    fn peer(&self, other: &dyn Device) -> PeerAccess;
    /// Whether its memory holds bytes. A device that only simulates time has none: what is read from it is arbitrary.
    fn keeps_bytes(&self) -> bool {
        true
    }
    /// Makes a stream.
    fn create_stream(&self) -> Result<Arc<dyn Stream>, DeviceError>;
    /// Makes an event, not recorded yet.
    fn create_event(&self) -> Result<Arc<dyn Event>, DeviceError>;
    /// Checks a program (operands inside their buffers, aligned, reachable; operations supported) and prepares it.
    /// Errors name the tensor. O(operands).
    fn compile(&self, program: Program) -> Result<Arc<dyn Compiled>, DeviceError>;
    /// Copies bytes from the host to the device's memory and returns when that is done. Not ordered with any stream:
    /// the caller sees to it that nothing uses the region.
    fn upload(&self, to: &Region, bytes: &[u8]) -> Result<(), DeviceError>;
    /// Copies bytes from the device's memory to the host and returns when that is done. Not ordered with any stream.
    fn download(&self, from: &Region, bytes: &mut [u8]) -> Result<(), DeviceError>;
    /// What it has done so far.
    fn stats(&self) -> DeviceStats;
    /// Whether it still answers. Errors: how it was lost.
    fn health(&self) -> Result<(), DeviceError>;
    /// The concrete type, for devices of the same backend.
    fn as_any(&self) -> &dyn Any;
}

//! Graph files: a graph with its devices, buffers and, optionally, the plan that a reference made for it.
//!
//! JSON, plain or gzip (told apart by the first two bytes), format `loadmaster-graph`, version 1. Keys that this
//! version does not know are skipped. Reading is linear in the file; counts and lengths are bounded by
//! [`ReadLimits`](crate::limits::ReadLimits). What is written and read again is equal.

mod check;
mod error;
mod raw;
mod read;
mod read_expected;
mod write;

pub use error::FileError;

use crate::graph::Graph;
use crate::id::{BufferId, DeviceId, IdVec, LeafId, NodeId, SplitId, TensorId};
use crate::units::{Align, Bytes};
use std::collections::BTreeMap;

/// Value of the key `format`.
pub const FORMAT: &str = "loadmaster-graph";
/// The only known value of the key `version`.
pub const VERSION: u32 = 1;

/// Everything a graph file says.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphFile {
    /// The graph (verified); its name is the file's.
    pub graph: Graph,
    /// Devices in priority order, highest first; the last is the host.
    pub devices: IdVec<DeviceId, FileDevice>,
    /// Pipeline copies of each split input; 1 without pipelining.
    pub n_copies: u32,
    /// Whether a GPU may take an operation whose weights are in host memory.
    pub op_offload: bool,
    /// Buffers that exist before the graph is planned.
    pub buffers: IdVec<BufferId, FileBuffer>,
    /// Tensors that the caller put on a device before planning.
    pub pinned: BTreeMap<TensorId, DeviceId>,
    /// The buffer that each tensor is in already.
    pub buffer_of: IdVec<TensorId, Option<BufferId>>,
    /// Tensors that have memory of their own without having been given a buffer (views of a KV cache, say).
    pub external: IdVec<TensorId, bool>,
    /// Bytes that a tensor takes on each device, where some device needs more than the tensor's own size.
    pub alloc_sizes: BTreeMap<TensorId, IdVec<DeviceId, Bytes>>,
    /// What the reference chose.
    pub expected: Option<Expected>,
}

/// A device of a graph file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileDevice {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: FileDeviceKind,
    /// The kind of memory it computes in.
    pub buffer_type: FileBufferType,
}

/// What a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileDeviceKind {
    /// The host processor.
    Cpu,
    /// A graphics processor.
    Gpu,
}

/// A kind of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileBufferType {
    /// Its name; devices that name the same one share it.
    pub name: String,
    /// Every tensor starts at a multiple of this.
    pub alignment: Align,
    /// The largest single buffer; `None`: no limit.
    pub max_size: Option<Bytes>,
    /// Whether the host reads it in place.
    pub host: bool,
}

/// A buffer that exists before the graph is planned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileBuffer {
    /// Name of its kind of memory (not necessarily that of a device).
    pub buffer_type: String,
    /// What it holds.
    pub usage: BufferUsage,
    /// Whether the host reads it in place.
    pub host: bool,
    /// Devices that read it in place.
    pub usable_by: Vec<DeviceId>,
}

/// What a buffer holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferUsage {
    /// Weights: the scheduler moves operations to them.
    Weights,
    /// Intermediate results.
    Compute,
    /// Anything else (the KV cache, say).
    Any,
}

/// What the reference chose for a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// Device of each node.
    pub node_devices: IdVec<NodeId, DeviceId>,
    /// Device of each leaf.
    pub leaf_devices: IdVec<LeafId, DeviceId>,
    /// Splits in execution order.
    pub splits: IdVec<SplitId, ExpectedSplit>,
    /// The graph as handed to the allocator.
    pub alloc_graph: ExpectedAlloc,
    /// Bytes that the graph allocator needs on each device, all chunks together.
    pub buffer_sizes: Option<IdVec<DeviceId, Bytes>>,
    /// Place of each entry of [`ExpectedAlloc::nodes`]; `None` for what the allocator does not place.
    pub node_offsets: Option<Vec<Option<ExpectedPlace>>>,
    /// Place of each entry of [`ExpectedAlloc::leafs`].
    pub leaf_offsets: Option<Vec<Option<ExpectedPlace>>>,
}

/// A run of nodes on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedSplit {
    /// Where it runs.
    pub device: DeviceId,
    /// Its first node.
    pub start: NodeId,
    /// Past its last node.
    pub end: NodeId,
    /// Tensors copied to the device when the split starts, in order.
    pub inputs: Vec<TensorId>,
}

/// The graph as handed to the allocator. Buffer ids are device ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpectedAlloc {
    /// Nodes in order.
    pub nodes: Vec<AllocEntry>,
    /// Buffer id of each node.
    pub node_buffer_ids: Vec<DeviceId>,
    /// Leafs in order.
    pub leafs: Vec<AllocEntry>,
    /// Buffer id of each leaf.
    pub leaf_buffer_ids: Vec<DeviceId>,
    /// Sources of the nodes that read a copy instead of the original; a hole is `None`.
    pub changed_src: BTreeMap<TensorId, Vec<Option<AllocEntry>>>,
}

/// Something the allocator sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AllocEntry {
    /// A tensor of the graph.
    Tensor(TensorId),
    /// A copy of a tensor.
    CopyOf {
        /// The original.
        of: TensorId,
        /// The device it is copied to.
        device: DeviceId,
        /// Which of the pipeline copies.
        copy: u32,
    },
    /// A node without operation that only keeps a tensor alive.
    Keep(TensorId),
}

/// Where the reference placed something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ExpectedPlace {
    /// The buffer id.
    pub buffer: DeviceId,
    /// The chunk of that buffer.
    pub chunk: u32,
    /// Offset in the chunk.
    pub offset: Bytes,
    /// Bytes taken.
    pub size: Bytes,
}

//! Errors of this crate.

use crate::machine::{MachineError, SpecError};
use loadmaster_alloc::AllocError;
use loadmaster_graph::{BufferId, BufferTypeId, DeviceId, NodeId, Op, TensorId};

/// Why something cannot be scheduled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SchedError {
    /// The description of a machine contradicts itself.
    #[error("the machine is invalid: {0}")]
    Machine(#[from] MachineError),
    /// A short device description cannot be read.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A graph file was made for devices that the given machine does not have.
    #[error(transparent)]
    Remap(#[from] crate::from_file::RemapError),
    /// The allocator found no place.
    #[error(transparent)]
    Alloc(#[from] AllocError),
    /// Two devices name the same buffer type, but describe it differently.
    #[error("{first} and {second} both compute in buffer type `{name}`, but describe it differently")]
    BufferTypeClash {
        /// The buffer type.
        name: Box<str>,
        /// A device.
        first: DeviceId,
        /// A later device.
        second: DeviceId,
    },
    /// An argument belongs to another graph.
    #[error("{what} has {found} entries where the graph has {expected}: it was made for another graph")]
    Mismatch {
        /// The argument.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The graph's.
        expected: usize,
    },
    /// A buffer is of a type that the machine does not have.
    #[error("{buffer} is of buffer type {buffer_type}, but the machine has only {count}")]
    UnknownBufferType {
        /// The buffer.
        buffer: BufferId,
        /// Its type.
        buffer_type: BufferTypeId,
        /// How many the machine has.
        count: usize,
    },
    /// A tensor is in a buffer that does not exist.
    #[error("{tensor} is in {buffer}, but there are only {count} buffers")]
    UnknownBuffer {
        /// The tensor.
        tensor: TensorId,
        /// The buffer.
        buffer: BufferId,
        /// How many there are.
        count: usize,
    },
    /// Something names a tensor that does not exist.
    #[error("{place} names {tensor}, but the graph has only {count} tensors")]
    UnknownTensor {
        /// What names it.
        place: &'static str,
        /// The tensor.
        tensor: TensorId,
        /// How many there are.
        count: usize,
    },
    /// Something names a node that does not exist.
    #[error("{place} names {node}, but the graph has only {count} nodes")]
    UnknownNode {
        /// What names it.
        place: &'static str,
        /// The node.
        node: NodeId,
        /// How many there are.
        count: usize,
    },
    /// A tensor is pinned to a device that does not exist.
    #[error("{tensor} is pinned to {device}, but the machine has only {count} devices")]
    PinnedToUnknown {
        /// The tensor.
        tensor: TensorId,
        /// The device.
        device: DeviceId,
        /// How many there are.
        count: usize,
    },
    /// A tensor is in a buffer already, and no device that can use the buffer supports its operation (rule 1.2a).
    #[error(
        "{tensor} `{name}` is in {buffer} (type `{buffer_type}`) and cannot move, but no device that can use that \
         buffer supports {op}; devices that can use it: {usable_by}"
    )]
    CannotMove {
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
        /// The operation.
        op: Op,
        /// Where it is.
        buffer: BufferId,
        /// Name of the buffer's type.
        buffer_type: Box<str>,
        /// Names of the devices that can use it.
        usable_by: String,
    },
    /// No device supports a node's operation (rule 1.5).
    #[error("no device supports {op}, which {node} ({tensor} `{name}`) needs; devices: {devices}")]
    NoDevice {
        /// The node.
        node: NodeId,
        /// Its tensor.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
        /// The operation.
        op: Op,
        /// Names of the machine's devices.
        devices: String,
    },
    /// More pipeline copies, or more items altogether, than ids can number.
    #[error("{what}: {found} exceeds the limit of {limit}")]
    Limit {
        /// What was counted.
        what: &'static str,
        /// How many there would be.
        found: u64,
        /// How many there may be.
        limit: u64,
    },
}

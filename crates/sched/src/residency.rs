//! What is in memory before a graph is planned: weights, KV caches, and tensors that the caller put on a device.

use crate::error::SchedError;
use crate::machine::Machine;
use loadmaster_graph::{BufferId, BufferTypeId, DeviceId, Graph, IdVec, TensorId};
use std::collections::BTreeMap;
use std::fmt;

/// What a buffer holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Usage {
    /// Weights: operations go to them (rule 1.2c).
    Weights,
    /// Results of a graph.
    Compute,
    /// Anything else, such as a KV cache.
    Any,
}

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Weights => "weights",
            Self::Compute => "compute",
            Self::Any => "any",
        })
    }
}

/// A buffer that exists already.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ResidentBuffer {
    /// Its kind of memory; the machine knows who can use it in place.
    pub buffer_type: BufferTypeId,
    /// What it holds.
    pub usage: Usage,
}

/// Where the tensors of one graph are before it is planned.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Residency {
    /// Buffers that exist already.
    pub buffers: IdVec<BufferId, ResidentBuffer>,
    /// The buffer that a tensor has been given. A view has an entry only if it was given one itself.
    pub buffer_of: IdVec<TensorId, Option<BufferId>>,
    /// Tensors with memory of their own that is in no buffer of the list: never placed, but no reason for a device.
    pub external: IdVec<TensorId, bool>,
    /// Tensors that the caller fixed to a device (rule 1.1).
    pub pinned: BTreeMap<TensorId, DeviceId>,
}

impl Residency {
    /// Nothing is in memory yet.
    #[must_use]
    pub fn nothing(graph: &Graph) -> Self {
        Self {
            buffers: IdVec::new(),
            buffer_of: IdVec::filled(None, graph.tensors().len()),
            external: IdVec::filled(false, graph.tensors().len()),
            pinned: BTreeMap::new(),
        }
    }

    /// Whether a tensor is in a buffer itself, or has memory of its own (rule 4.1).
    #[inline]
    #[must_use]
    pub fn has_memory(&self, tensor: TensorId) -> bool {
        self.buffer_of[tensor].is_some() || self.external[tensor]
    }

    /// The buffer that holds a tensor's bytes: for a view, that of its root.
    #[inline]
    #[must_use]
    pub fn storage_of(&self, graph: &Graph, tensor: TensorId) -> Option<BufferId> {
        self.buffer_of[graph.topology().link(tensor).root.unwrap_or(tensor)]
    }

    /// Checks that it speaks of this graph and this machine. O(tensors).
    pub fn check(&self, graph: &Graph, machine: &Machine) -> Result<(), SchedError> {
        let tensors = graph.tensors().len();
        for (what, found) in
            [("residency.buffer_of", self.buffer_of.len()), ("residency.external", self.external.len())]
        {
            if found != tensors {
                return Err(SchedError::Mismatch { what, found, expected: tensors });
            }
        }
        for (buffer, resident) in self.buffers.iter() {
            if machine.buffer_types().get(resident.buffer_type).is_none() {
                let count = machine.buffer_types().len();
                return Err(SchedError::UnknownBufferType { buffer, buffer_type: resident.buffer_type, count });
            }
        }
        let mut held = self.buffer_of.iter().filter_map(|(tensor, buffer)| buffer.map(|b| (tensor, b)));
        if let Some((tensor, buffer)) = held.find(|&(_, b)| b.index() >= self.buffers.len()) {
            return Err(SchedError::UnknownBuffer { tensor, buffer, count: self.buffers.len() });
        }
        for (&tensor, &device) in &self.pinned {
            if tensor.index() >= tensors {
                return Err(SchedError::UnknownTensor { place: "residency.pinned", tensor, count: tensors });
            }
            if device.index() >= machine.devices().len() {
                return Err(SchedError::PinnedToUnknown { tensor, device, count: machine.devices().len() });
            }
        }
        Ok(())
    }
}

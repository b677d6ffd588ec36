//! What the passes of an assignment share.

use super::cause::Cause;
use crate::machine::Machine;
use crate::residency::{Residency, Usage};
use loadmaster_graph::{BufferId, DeviceId, Graph, IdVec, TensorId, Topology};

/// Devices chosen so far, with their causes.
pub(super) struct State<'a> {
    pub(super) graph: &'a Graph,
    pub(super) topology: &'a Topology,
    pub(super) machine: &'a Machine,
    pub(super) residency: &'a Residency,
    pub(super) devices: IdVec<TensorId, Option<DeviceId>>,
    pub(super) causes: IdVec<TensorId, Cause>,
    /// Nodes that are no view operations, in execution order.
    pub(super) computed: Vec<TensorId>,
    /// How many of them have no device yet.
    pub(super) open: usize,
}

impl<'a> State<'a> {
    pub(super) fn new(graph: &'a Graph, machine: &'a Machine, residency: &'a Residency) -> Self {
        let tensors = graph.tensors().len();
        Self {
            graph,
            topology: graph.topology(),
            machine,
            residency,
            devices: IdVec::filled(None, tensors),
            causes: IdVec::filled(Cause::Unused, tensors),
            computed: Vec::with_capacity(graph.nodes().len()),
            open: 0,
        }
    }

    #[inline]
    pub(super) fn set(&mut self, tensor: TensorId, device: DeviceId, cause: Cause) {
        self.devices[tensor] = Some(device);
        self.causes[tensor] = cause;
    }

    /// Rule 1.1.
    pub(super) fn take_pinned(&mut self) {
        for (&tensor, &device) in &self.residency.pinned {
            self.set(tensor, device, Cause::Pinned);
        }
    }

    /// The buffer that holds a tensor's bytes: its root's, for a view.
    #[inline]
    pub(super) fn storage(&self, tensor: TensorId) -> Option<BufferId> {
        let root = self.topology.link(tensor).root;
        self.residency.buffer_of[root.unwrap_or(tensor)]
    }

    /// The first source that has been given a buffer of usage `weights` itself, with that buffer.
    #[inline]
    pub(super) fn weight_source(&self, tensor: TensorId) -> Option<(TensorId, BufferId)> {
        self.topology.sources_some(tensor).find_map(|source| {
            let buffer = self.residency.buffer_of[source]?;
            (self.residency.buffers[buffer].usage == Usage::Weights).then_some((source, buffer))
        })
    }

    /// Whether a device can use a tensor in place: the tensor's buffer, or else the compute buffer type of the device
    /// that the tensor, or its root, is assigned to.
    #[inline]
    pub(super) fn can_use(&self, device: DeviceId, tensor: TensorId) -> bool {
        if let Some(buffer) = self.storage(tensor) {
            return self.machine.can_use(device, self.residency.buffers[buffer].buffer_type);
        }
        self.owner(tensor).is_some_and(|owner| self.machine.can_read(device, owner))
    }

    /// The device of a tensor, or else of its root.
    #[inline]
    pub(super) fn owner(&self, tensor: TensorId) -> Option<DeviceId> {
        self.devices[tensor].or_else(|| self.topology.link(tensor).root.and_then(|root| self.devices[root]))
    }
}

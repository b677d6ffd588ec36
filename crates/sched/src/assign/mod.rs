//! Which device runs each node, and why (section 1 of the rules).

mod cause;
mod expand;
mod fill;
mod first;
mod state;
mod upgrade;

pub use cause::{Cause, Sweep};

use crate::error::SchedError;
use crate::machine::Machine;
use crate::residency::Residency;
use loadmaster_graph::{DeviceId, Graph, IdVec, LeafId, NodeId, TensorId};
use state::State;

/// How devices are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Policy {
    /// As ggml's scheduler does.
    #[default]
    Ggml,
}

/// Whether a device may take an operation whose weights are in host memory (rule 1.2c).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OpOffload {
    /// It may, where its threshold says that uploading pays.
    #[default]
    On,
    /// Operations stay with their weights.
    Off,
}

/// What `assign` is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct AssignOptions {
    /// How devices are chosen.
    pub policy: Policy,
    /// Whether weights may be uploaded for a large batch.
    pub op_offload: OpOffload,
}

/// The device of every tensor, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    devices: IdVec<TensorId, DeviceId>,
    causes: IdVec<TensorId, Cause>,
}

impl Assignment {
    /// The device of every tensor: where a node runs, where a leaf is.
    #[must_use]
    pub fn devices(&self) -> &IdVec<TensorId, DeviceId> {
        &self.devices
    }
    /// The device of a tensor.
    #[inline]
    #[must_use]
    pub fn device(&self, tensor: TensorId) -> DeviceId {
        self.devices[tensor]
    }
    /// Why every tensor has its device.
    #[must_use]
    pub fn causes(&self) -> &IdVec<TensorId, Cause> {
        &self.causes
    }
    /// Why a tensor has its device.
    #[must_use]
    pub fn cause(&self, tensor: TensorId) -> Cause {
        self.causes[tensor]
    }
    /// The device of each node of the graph that was assigned.
    #[must_use]
    pub fn node_devices(&self, graph: &Graph) -> IdVec<NodeId, DeviceId> {
        graph.nodes().values().map(|&t| self.devices[t]).collect()
    }
    /// The device of each leaf of the graph that was assigned.
    #[must_use]
    pub fn leaf_devices(&self, graph: &Graph) -> IdVec<LeafId, DeviceId> {
        graph.leafs().values().map(|&t| self.devices[t]).collect()
    }
    /// Checks that it was made for a graph of this size.
    pub(crate) fn check(&self, graph: &Graph) -> Result<(), SchedError> {
        let (found, expected) = (self.devices.len(), graph.tensors().len());
        if found == expected {
            return Ok(());
        }
        Err(SchedError::Mismatch { what: "assignment", found, expected })
    }
}

/// Chooses a device for every tensor. Errors: a tensor that cannot stay where it is, a node that no device supports, or
/// a residency that does not fit graph and machine. O(nodes + sources), times the devices where rule 1.4 applies.
pub fn assign(
    graph: &Graph,
    machine: &Machine,
    residency: &Residency,
    options: AssignOptions,
) -> Result<Assignment, SchedError> {
    residency.check(graph, machine)?;
    let Policy::Ggml = options.policy;
    let mut state = State::new(graph, machine, residency);
    state.take_pinned();
    state.first_pass(options.op_offload)?;
    Sweep::ALL.into_iter().for_each(|sweep| state.expand(sweep));
    state.upgrade();
    state.fill()?;
    let (devices, causes) = state.finish();
    Ok(Assignment { devices, causes })
}

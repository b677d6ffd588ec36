//! From what devices report to what a caller is told.

use super::error::{At, ExecError, Named};
use loadmaster_backends::{DeviceError, Fault};
use loadmaster_graph::{DeviceId, IdVec, NodeId, SplitId, TensorId};

/// Root causes before their consequences, then by device.
pub(super) fn sort(failures: &mut [(DeviceId, DeviceError)]) {
    let rank = |error: &DeviceError| match error.fault {
        Fault::Upstream(_) => 2,
        Fault::Closed => 1,
        _ => 0,
    };
    failures.sort_by_key(|(device, error)| (rank(error), *device));
}

/// What errors are told about a graph.
#[derive(Debug)]
pub(super) struct Labels {
    pub(super) names: IdVec<TensorId, Box<str>>,
    pub(super) node_of: IdVec<TensorId, Option<NodeId>>,
    /// By node: its split.
    pub(super) split_of: IdVec<NodeId, SplitId>,
    /// Copied tensor, target and split of every copy.
    pub(super) copies: Vec<(TensorId, DeviceId, SplitId)>,
    /// By device: its name.
    pub(super) devices: IdVec<DeviceId, Box<str>>,
}

impl Labels {
    pub(super) fn named(&self, tensor: TensorId) -> Named {
        Named { tensor, name: self.names.get(tensor).cloned().unwrap_or_default() }
    }

    /// A device's error with its place in the run. The device is the one whose error began it.
    pub(super) fn error(&self, device: DeviceId, error: &DeviceError) -> ExecError {
        let root = error.root();
        let origin = self.devices.iter().find(|(_, name)| **name == root.device).map_or(device, |(id, _)| id);
        ExecError::device(origin, self.at(origin, root), root.clone())
    }

    fn at(&self, device: DeviceId, error: &DeviceError) -> At {
        let Some(tensor) = error.tensor else { return At::default() };
        let node = self.node_of.get(tensor).copied().flatten();
        let named = Some(self.named(tensor));
        let computing = matches!(error.call, loadmaster_backends::Call::Execute | loadmaster_backends::Call::Compile);
        if computing {
            return At { split: node.map(|n| self.split_of[n]), node, tensor: named };
        }
        let copied = self.copies.iter().filter(|(t, ..)| *t == tensor);
        let to_device = copied.clone().find(|(_, to, _)| *to == device);
        let split = to_device.or_else(|| copied.clone().next()).map(|&(.., split)| split);
        At { split, node, tensor: named }
    }
}

//! Rule 1.5: views follow their roots, sources their users; and what the rules leave over.

use super::cause::Cause;
use super::state::State;
use crate::device_set::first_common;
use crate::error::SchedError;
use loadmaster_graph::{DeviceId, IdVec, NodeId, TensorId};

impl State<'_> {
    pub(super) fn fill(&mut self) -> Result<(), SchedError> {
        let (graph, topology) = (self.graph, self.topology);
        for (node, &tensor) in graph.nodes().iter() {
            if self.devices[tensor].is_none() {
                self.follow_root(tensor);
            }
            let user = self.devices[tensor];
            for source in topology.sources_some(tensor) {
                if self.devices[source].is_none() {
                    self.place_source(source, tensor, user);
                }
            }
            if self.devices[tensor].is_none() {
                self.place_on_first(node, tensor)?;
            }
        }
        Ok(())
    }

    /// Gives a view its root's device, if that is known.
    fn follow_root(&mut self, view: TensorId) {
        let Some(root) = self.topology.link(view).root else { return };
        if let Some(device) = self.devices[root] {
            self.set(view, device, Cause::ViewOf { root });
        }
    }

    fn place_source(&mut self, source: TensorId, user: TensorId, device: Option<DeviceId>) {
        if self.topology.link(source).root.is_some() {
            return self.follow_root(source);
        }
        if let Some(device) = device {
            self.set(source, device, Cause::SourceOf { user });
        }
    }

    fn place_on_first(&mut self, node: NodeId, tensor: TensorId) -> Result<(), SchedError> {
        let supporting = self.machine.support_mask(self.topology.link(tensor).op);
        let Some(device) = first_common(supporting, supporting) else {
            let t = self.graph.tensor(tensor);
            let devices = self.machine.names(self.machine.devices().ids());
            return Err(SchedError::NoDevice { node, tensor, name: t.name.clone(), op: t.op, devices });
        };
        self.set(tensor, device, Cause::FirstSupporting);
        Ok(())
    }

    /// What no rule reached: roots that only views use go with the first of these, unused tensors to the fallback.
    pub(super) fn finish(mut self) -> (IdVec<TensorId, DeviceId>, IdVec<TensorId, Cause>) {
        let fallback = self.machine.fallback();
        if self.devices.values().any(Option::is_none) {
            self.place_bare_roots();
        }
        let devices = self.devices.values().map(|d| d.unwrap_or(fallback)).collect();
        (devices, self.causes)
    }

    fn place_bare_roots(&mut self) {
        for view in self.graph.nodes().values().copied() {
            let Some(root) = self.topology.link(view).root else { continue };
            if self.devices[root].is_some() {
                continue;
            }
            if let Some(device) = self.devices[view] {
                self.set(root, device, Cause::RootOf { view });
            }
        }
    }
}

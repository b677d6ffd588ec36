//! Rule 1.3: neighbours in execution order share a device.

use super::cause::{Cause, Sweep};
use super::state::State;
use loadmaster_graph::TensorId;

impl State<'_> {
    /// One sweep over the nodes that are no views.
    pub(super) fn expand(&mut self, sweep: Sweep) {
        if self.open == 0 {
            return;
        }
        // The list is taken out for the sweep, because the sweep changes the rest of the state.
        let computed = std::mem::take(&mut self.computed);
        match sweep {
            Sweep::ForwardsAccelerators | Sweep::ForwardsAny => self.carry(computed.iter(), sweep),
            Sweep::BackwardsAccelerators | Sweep::BackwardsAny => self.carry(computed.iter().rev(), sweep),
        }
        self.computed = computed;
    }

    #[inline]
    fn carry<'t>(&mut self, nodes: impl Iterator<Item = &'t TensorId>, sweep: Sweep) {
        let fallback = self.machine.fallback();
        let mut carried = None;
        for &node in nodes {
            if let Some(device) = self.devices[node] {
                carried = sweep.carries(device, fallback).map(|d| (d, node));
                continue;
            }
            let Some((device, from)) = carried else { continue };
            if self.machine.supports(device, self.topology.link(node).op) {
                self.set(node, device, Cause::Expanded { sweep, from });
                self.open -= 1;
            }
        }
    }
}

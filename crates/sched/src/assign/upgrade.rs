//! Rule 1.4: the rest goes where most sources are; shared memory lets a node move to a higher priority.

use super::cause::Cause;
use super::state::State;
use crate::device_set;
use loadmaster_graph::{DeviceId, TensorId};

impl State<'_> {
    /// Over the nodes that are no views, in order: later decisions see earlier ones.
    pub(super) fn upgrade(&mut self) {
        if self.open == 0 && !self.machine.has_upgrades() {
            return;
        }
        for i in 0..self.computed.len() {
            let node = self.computed[i];
            match self.devices[node] {
                None => self.place_by_fit(node),
                Some(device) => self.move_up(node, device),
            }
        }
    }

    fn place_by_fit(&mut self, node: TensorId) {
        let mut best: Option<(DeviceId, u16)> = None;
        let machine = self.machine;
        for device in device_set::bits(machine.support_mask(self.topology.link(node).op)) {
            let usable = self.usable_sources(node, device);
            if best.is_none_or(|(_, most)| usable > most) {
                best = Some((device, usable));
                // A cast is its own second source: it counts as being on the best device so far.
                self.devices[node] = Some(device);
            }
        }
        if let Some((device, usable_sources)) = best {
            self.set(node, device, Cause::BestFit { usable_sources });
            self.open -= 1;
        }
    }

    /// Sources of a known device, or with a root of one, that `device` can use in place.
    fn usable_sources(&self, node: TensorId, device: DeviceId) -> u16 {
        let usable = |&source: &TensorId| self.owner(source).is_some() && self.can_use(device, source);
        let count = self.topology.sources_some(node).filter(usable).count();
        u16::try_from(count).unwrap_or(u16::MAX)
    }

    fn move_up(&mut self, node: TensorId, device: DeviceId) {
        if self.causes[node] == Cause::Pinned {
            return;
        }
        let op = self.topology.link(node).op;
        let higher = device_set::bits(self.machine.upgrade_mask(device)).find(|&higher| {
            self.machine.supports(higher, op)
                && self.topology.sources_some(node).all(|source| self.can_use(higher, source))
        });
        if let Some(higher) = higher {
            self.set(node, higher, Cause::Upgraded { from: device });
        }
    }
}

//! Names in place of ids.

use super::Explained;
use loadmaster_alloc::{ArenaId, ItemId, Origin};
use loadmaster_graph::{BufferId, DeviceId, TensorId};
use loadmaster_sched::arena_of;
use std::fmt::Display;

impl Explained<'_> {
    /// Names of all devices, by priority.
    pub(super) fn device_names(&self) -> Vec<&str> {
        self.setup.machine.devices().values().map(|d| &*d.name).collect()
    }

    /// The name of a device.
    pub(super) fn device_name(&self, device: DeviceId) -> &str {
        &self.setup.machine.device(device).name
    }

    /// A tensor's id and name.
    pub(super) fn tensor_name(&self, tensor: TensorId) -> String {
        format!("{tensor} `{}`", self.file.graph.tensor(tensor).name)
    }

    /// An item of the allocator's list: a tensor, or a copy of one.
    pub(super) fn item_name(&self, item: ItemId) -> String {
        match self.plan.lowered.graph.item(item).origin {
            Origin::Tensor(tensor) => self.tensor_name(tensor),
            Origin::Keep(tensor) => format!("keeps {}", self.tensor_name(tensor)),
            Origin::Copy { of, device, copy } if self.plan.lowered.n_copies() > 1 => {
                format!("copy {copy} of {} for {}", self.tensor_name(of), self.device_name(device))
            }
            Origin::Copy { of, device, .. } => {
                format!("copy of {} for {}", self.tensor_name(of), self.device_name(device))
            }
        }
    }

    /// A buffer with its type and what it holds.
    fn buffer_name(&self, buffer: BufferId) -> Option<String> {
        let resident = self.setup.residency.buffers.get(buffer)?;
        let buffer_type = &self.setup.machine.buffer_types()[resident.buffer_type];
        Some(format!("{buffer} ({} {})", buffer_type.name, resident.usage))
    }

    /// Something for every device, in priority order.
    pub(super) fn per_device<T>(&self, of: impl Fn(ArenaId) -> T) -> Vec<T> {
        self.setup.machine.devices().ids().map(|d| of(arena_of(d))).collect()
    }

    /// A message of the planner with names beside, or instead of, its ids.
    pub(super) fn words(&self, message: &impl Display) -> String {
        let message = message.to_string();
        let mut words = String::with_capacity(message.len());
        for word in message.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
            let end = word.trim_end_matches(|c: char| !c.is_ascii_alphanumeric()).len();
            words.push_str(&self.named(&word[..end]).unwrap_or_else(|| word[..end].to_owned()));
            words.push_str(&word[end..]);
        }
        words
    }

    /// What an id stands for, if the word is one.
    fn named(&self, word: &str) -> Option<String> {
        let digits = word.find(|c: char| c.is_ascii_digit())?;
        let index: usize = word[digits..].parse().ok()?;
        match &word[..digits] {
            "dev" if index < self.setup.machine.devices().len() => {
                Some(self.device_name(DeviceId::new(index)).to_owned())
            }
            "t" if index < self.file.graph.tensors().len() => Some(self.tensor_name(TensorId::new(index))),
            "buf" if index < self.setup.residency.buffers.len() => self.buffer_name(BufferId::new(index)),
            _ => None,
        }
    }
}

//! Whether a plan that was read contradicts itself, as one may that was changed by hand.

use super::SavedPlan;
use crate::engine::Room;
use loadmaster_graph::Bytes;

impl SavedPlan {
    /// What in it contradicts what else it says; `None`: nothing.
    pub(super) fn contradiction(&self) -> Option<String> {
        self.choices
            .check()
            .err()
            .map(|e| e.to_string())
            .or_else(|| self.odd_device())
            .or_else(|| self.odd_pool())
            .or_else(|| self.odd_layer())
            .or_else(|| self.odd_summary())
    }

    fn odd_device(&self) -> Option<String> {
        let (devices, machine) = (&self.devices, &self.machine);
        if devices.len() != machine.len() {
            return Some(format!("it has {} devices of a machine of {}", devices.len(), machine.len()));
        }
        for (device, here) in devices.iter().zip(machine) {
            if device.name != here.name {
                return Some(format!("its device `{}` is `{}` of the machine", device.name, here.name));
            }
            let parts = [device.weights, device.kv, device.compute, device.workspace];
            let sum = parts.iter().try_fold(0u64, |sum, n| sum.checked_add(*n));
            if sum != Some(device.total) {
                return Some(format!("the total of `{}` is not the sum of its parts", device.name));
            }
        }
        None
    }

    fn odd_pool(&self) -> Option<String> {
        let missing = |capacity: Option<u64>, reserved, used| {
            let room = Room { capacity: capacity.map(Bytes), reserved: Bytes(reserved), used: Bytes(used) };
            room.missing().get()
        };
        let odd = self.pools.iter().find(|p| p.short != missing(p.capacity, p.reserved, p.used));
        odd.map(|p| format!("`{}` is not short by {} bytes", p.name, p.short))
    }

    fn odd_layer(&self) -> Option<String> {
        let is_known = |name: &str| self.devices.iter().any(|d| d.name == name);
        let names = self.layers.iter().flat_map(|l| std::iter::once(&l.device).chain(l.elsewhere.keys()));
        names.into_iter().find(|n| !is_known(n)).map(|n| format!("layers are on `{n}`, which is none of its devices"))
    }

    fn odd_summary(&self) -> Option<String> {
        if self.fits != self.pools.iter().all(|p| p.short == 0) {
            return Some("whether it fits is not what its pools say".to_owned());
        }
        if self.copies != self.choices.copies {
            return Some(format!("its depth is {}, but {} was chosen", self.copies, self.choices.copies));
        }
        if self.llama_cpp_flags != self.choices.llama_cpp_flags() {
            return Some("its flags for llama.cpp are not those of its choices".to_owned());
        }
        let is_speed = |n: f64| (0.0..1e12).contains(&n);
        let odd = self.predicted.filter(|p| !is_speed(p.decode) || !is_speed(p.prefill));
        odd.map(|p| format!("a speed of {:e} or {:e} tokens a second makes no sense", p.decode, p.prefill))
    }
}

//! Random devices and existing buffers.

use super::Generator;
use super::ops::{RARE, USUAL};
use crate::file::{Buffer, BufferType, Device, DeviceKind, Usage};

impl Generator {
    pub(super) fn devices(&mut self) {
        let gpus = *self.r.pick(&[0, 1, 1, 2, 2, 2, 3, 3, 5, 9, 15]);
        let limits = self.r.one_in(4);
        let odd_types = self.r.one_in(4);
        let unsupported = self.r.one_in(3);
        let cpu = BufferType {
            name: "CPU".to_owned(),
            alignment: *self.r.pick(&[32, 32, 32, 64, 1]),
            max_size: (limits && self.r.one_in(3)).then(|| self.limit()),
            host: true,
        };
        for i in 0..gpus {
            let own = BufferType {
                name: format!("SIM{i}"),
                alignment: *self.r.pick(&[128, 128, 128, 256, 64, 32, 1]),
                max_size: (limits && self.r.percent(70)).then(|| self.limit()),
                host: odd_types && self.r.one_in(4),
            };
            let buffer_type = match self.r.below(6) {
                0 if odd_types && i > 0 => self.file.devices[self.r.below(i)].buffer_type.clone(),
                1 if odd_types => cpu.clone(),
                _ => own,
            };
            let mut device =
                Device { name: format!("SIM{i}"), kind: DeviceKind::Gpu, buffer_type, unsupported: vec![] };
            if unsupported && self.r.percent(60) {
                // As BLAS does: a device that takes a few operations only, or all but a few.
                let few = self.r.one_in(3);
                device.unsupported = USUAL
                    .iter()
                    .chain(RARE)
                    .filter(|_| if few { !self.r.one_in(6) } else { self.r.one_in(6) })
                    .map(|&op| op.to_owned())
                    .collect();
            }
            self.file.devices.push(device);
        }
        self.file.devices.push(Device {
            name: "CPU".to_owned(),
            kind: DeviceKind::Cpu,
            buffer_type: cpu,
            unsupported: Vec::new(),
        });
    }

    pub(super) fn limit(&mut self) -> u64 {
        self.r.between(1, 40) as u64 * 512
    }

    pub(super) fn buffers(&mut self) {
        let cpu = self.file.devices.len() as u32 - 1;
        let mut kinds: Vec<(String, bool, Vec<u32>)> = Vec::new();
        for device in &self.file.devices {
            let t = &device.buffer_type;
            if kinds.iter().any(|(name, ..)| *name == t.name) {
                continue;
            }
            let sharing = |d: &Device| d.buffer_type.name == t.name || (t.host && d.kind == DeviceKind::Cpu);
            let usable = (0..=cpu).filter(|&d| sharing(&self.file.devices[d as usize])).collect();
            kinds.push((t.name.clone(), t.host, usable));
        }
        if self.r.one_in(3) {
            kinds.push(("CPU_REPACK".to_owned(), false, vec![cpu]));
        }
        if self.r.one_in(3) {
            kinds.push(("CPU_Mapped".to_owned(), true, vec![cpu]));
        }
        if self.r.one_in(4) {
            // Such as pinned host memory, or a split over GPUs: some devices use it in place, and it is nobody's own.
            let usable = (0..=cpu).filter(|_| self.r.one_in(2)).collect::<Vec<_>>();
            let host = usable.contains(&cpu) && self.r.one_in(2);
            if !usable.is_empty() {
                kinds.push(("SHARED".to_owned(), host, usable));
            }
        }
        for (buffer_type, host, usable_by) in kinds {
            for usage in [Usage::Weights, Usage::Any, Usage::Compute] {
                if usage == Usage::Compute && !self.r.one_in(5) {
                    continue;
                }
                let id = self.file.buffers.len() as u32;
                let (buffer_type, usable_by) = (buffer_type.clone(), usable_by.clone());
                self.file.buffers.push(Buffer { id, buffer_type, usage, host, usable_by });
            }
        }
    }
}

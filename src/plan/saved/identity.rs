//! Which model and which machine a plan is for; another one is refused.

use super::{GpuPlan, MachineDevice, ModelIdentity, SavedError, SavedPlan};
use crate::engine::{Model, Prepared};
use loadmaster_backends::cuda::GpuTarget;
use loadmaster_graph::Bytes;
use loadmaster_sched::Machine;

impl SavedPlan {
    /// Errors: a device takes other bytes than the plan says, so that its memory has other rules.
    pub fn check_prepared(&self, machine: &Machine, prepared: &Prepared) -> Result<(), SavedError> {
        check_count(self.devices.len(), prepared.devices.len())?;
        let bytes = |need: [u64; 4]| need.map(|b| Bytes(b).to_string()).join(" + ");
        for ((id, need), planned) in prepared.devices.iter().zip(&self.devices) {
            let found = [need.weights, need.cache, need.compute, need.workspace].map(Bytes::get);
            let planned = [planned.weights, planned.kv, planned.compute, planned.workspace];
            if found != planned {
                let what = format!("what {} takes (weights, KV cache, compute, workspace)", machine.device(id).name);
                return Err(SavedError::OtherMachine { what, planned: bytes(planned), found: bytes(found) });
            }
        }
        Ok(())
    }

    /// Errors: the model or the machine is another than the plan's.
    pub fn check(&self, model: &Model, machine: &Machine) -> Result<(), SavedError> {
        let found = ModelIdentity::of(model);
        let planned = &self.model;
        let parts = [
            ("architecture", planned.architecture.clone(), found.architecture),
            ("number of tensors", planned.tensors.to_string(), found.tensors.to_string()),
            ("size", planned.bytes.to_string(), found.bytes.to_string()),
            ("hash of tensors", planned.hash.clone(), found.hash),
        ];
        if let Some((what, planned, found)) = parts.into_iter().find(|(_, a, b)| a != b) {
            return Err(SavedError::OtherModel { what, planned, found });
        }
        let here = machine_devices(machine);
        check_count(self.machine.len(), here.len())?;
        match self.machine.iter().zip(&here).enumerate().find(|(_, (a, b))| !a.is_for(b)) {
            Some((i, (planned, found))) => Err(SavedError::OtherMachine {
                what: format!("device {i}"),
                planned: planned.to_string(),
                found: found.to_string(),
            }),
            None => Ok(()),
        }
    }
}

fn check_count(planned: usize, found: usize) -> Result<(), SavedError> {
    if planned == found {
        return Ok(());
    }
    let what = "the number of devices".to_owned();
    Err(SavedError::OtherMachine { what, planned: planned.to_string(), found: found.to_string() })
}

impl std::fmt::Display for MachineDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}", self.name, self.driver)?;
        if let Some(bytes) = self.memory {
            write!(f, ", {}", Bytes(bytes))?;
        }
        if let Some(gpu) = self.gpu {
            write!(f, ", {}", gpu.target())?;
        }
        f.write_str(")")
    }
}

impl GpuPlan {
    fn of(target: GpuTarget) -> Self {
        let GpuTarget { arch, multiprocessors, library } = target;
        Self { arch, multiprocessors, cublas: library.is_some() }
    }

    /// What the memory of kernels is counted for.
    #[must_use]
    pub fn target(self) -> GpuTarget {
        let described = GpuTarget::described(self.arch, self.multiprocessors);
        GpuTarget { library: described.library.filter(|_| self.cublas), ..described }
    }
}

impl MachineDevice {
    /// Whether a plan for this one is one for `found`. Where the plan does not say which GPU it is for, bytes decide
    /// ([`SavedPlan::check_prepared`]).
    fn is_for(&self, found: &Self) -> bool {
        let is_other = self.gpu.zip(found.gpu).is_some_and(|(planned, found)| planned != found);
        !is_other && *found == Self { gpu: found.gpu, ..self.clone() }
    }
}

impl ModelIdentity {
    /// Of a model.
    #[must_use]
    pub fn of(model: &Model) -> Self {
        // FNV-1a: stable from build to build.
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        let mut add = |bytes: &[u8]| {
            for &byte in bytes {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
        };
        let mut bytes = 0u64;
        for tensor in model.file.tensors() {
            add(tensor.name.as_bytes());
            add(&[0]);
            add(&tensor.type_number.to_le_bytes());
            tensor.ne.iter().for_each(|n| add(&n.to_le_bytes()));
            bytes = bytes.saturating_add(tensor.size.map_or(0, Bytes::get));
        }
        let tensors = model.file.tensors().len();
        Self { architecture: model.params.arch.to_string(), tensors, bytes, hash: format!("{hash:016x}") }
    }
}

pub(super) fn machine_devices(machine: &Machine) -> Vec<MachineDevice> {
    let device = |(id, d): (_, &loadmaster_sched::Device)| MachineDevice {
        name: d.name.to_string(),
        driver: d.driver.to_string(),
        memory: machine.pools()[machine.compute_type(id).pool].capacity.map(Bytes::get),
        gpu: d.gpu.map(GpuPlan::of),
    };
    machine.devices().iter().map(device).collect()
}

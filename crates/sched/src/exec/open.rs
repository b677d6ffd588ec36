//! From the description of a machine to devices.

use super::error::{At, ExecError};
use crate::error::SchedError;
use crate::machine::{BufferTypeDesc, Device as Described, Driver, Machine};
use loadmaster_backends::cpu::{ComputeCtx, Workers};
use loadmaster_backends::{CpuDevice, CpuOptions, Device, Peers, SimDevice, SimOptions};
use loadmaster_graph::{Bytes, DeviceId};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Memory of a virtual GPU whose description gives none.
const UNKNOWN_CAPACITY: Bytes = Bytes::gib(1 << 10);

/// Opens every device of a machine, in its order. Kernels of all devices of the host run on `threads` threads.
///
/// Errors: threads that cannot be started, a device whose driver is not in this program or not on this machine.
pub fn open(machine: &Machine, threads: NonZeroUsize) -> Result<Vec<Arc<dyn Device>>, ExecError> {
    let workers = Workers::new(threads).map_err(|e| ExecError::Threads { threads, reason: e.reason })?;
    machine.devices().iter().map(|(id, device)| open_one(machine, id, device, &workers)).collect()
}

fn open_one(
    machine: &Machine,
    id: DeviceId,
    device: &Described,
    workers: &Workers,
) -> Result<Arc<dyn Device>, ExecError> {
    let kernels = Arc::new(ComputeCtx::new(workers.clone()));
    let memory = machine.compute_type(id);
    let capacity = machine.pools()[memory.pool].capacity;
    let failed = |error| ExecError::device(id, At::default(), error);
    match device.driver {
        Driver::Host => {
            let options = CpuOptions {
                name: device.name.clone(),
                align: memory.alignment,
                limit: capacity,
                ..CpuOptions::default()
            };
            Ok(Arc::new(CpuDevice::new(options, kernels).map_err(failed)?))
        }
        Driver::Sim => {
            let mut options = SimOptions::new(device.name.clone(), capacity.unwrap_or(UNKNOWN_CAPACITY));
            options.align = memory.alignment;
            options.max_buffer = memory.max_size;
            options.row_padding = memory.row_padding.unwrap_or(0);
            let peers = machine.devices().iter().filter(|&(other, _)| super::paths::reaches(machine, id, other));
            options.peers = Peers::Only(peers.map(|(_, d)| d.name.clone()).collect());
            Ok(Arc::new(SimDevice::new(options, kernels).map_err(failed)?))
        }
        Driver::Cuda { ordinal } => cuda::open(device, ordinal, memory, capacity),
    }
}

/// The machine with its CUDA devices as the driver describes them: which GPUs they are, and where the description gives no
/// memory what the driver counts now. A machine without such devices stays as it is, and no driver is looked for.
///
/// Errors: there is no driver, or it does not know the device.
pub fn measured(machine: Machine) -> Result<Machine, ExecError> {
    let unknown = |device: &Described| match device.driver {
        Driver::Cuda { ordinal } => {
            let pool = machine.buffer_types()[device.buffer_type].pool;
            machine.pools()[pool].capacity.is_none().then_some((pool, ordinal))
        }
        Driver::Host | Driver::Sim => None,
    };
    let mut parts = machine.parts().clone();
    for device in machine.devices().values() {
        let Some((pool, ordinal)) = unknown(device) else { continue };
        parts.pools[pool].capacity = Some(cuda::free_memory(device, ordinal)?);
    }
    let machine = Machine::new(parts).map_err(SchedError::from)?;
    described(machine)
}

/// The machine with its CUDA devices as the driver describes them, their memory left as it is. O(1) driver calls for each
/// such device; none, and no driver is looked for, where there is no such device.
///
/// Errors: there is no driver, or it does not know the device.
pub fn described(machine: Machine) -> Result<Machine, ExecError> {
    let target = |device: &Described| match device.driver {
        Driver::Cuda { ordinal } => cuda::target(device, ordinal).map(Some),
        Driver::Host | Driver::Sim => Ok(None),
    };
    let found = machine.devices().values().map(target).collect::<Result<Vec<_>, _>>()?;
    Ok(machine.with_gpus(found))
}

#[cfg(feature = "cuda")]
mod cuda {
    use super::{BufferTypeDesc, Bytes, Described, Device, ExecError};
    use loadmaster_backends::cuda::{CudaDevice, CudaOptions, GpuTarget, free_memory_of, target_of};
    use std::sync::Arc;

    pub(super) fn open(
        device: &Described,
        ordinal: u32,
        memory: &BufferTypeDesc,
        limit: Option<Bytes>,
    ) -> Result<Arc<dyn Device>, ExecError> {
        let options = CudaOptions {
            limit,
            align: memory.alignment,
            max_buffer: memory.max_size,
            row_padding: memory.row_padding.unwrap_or(0),
            ..CudaOptions::new(device.name.clone(), ordinal)
        };
        let opened = CudaDevice::open(options);
        let not_opened = |why: String| ExecError::NotOpened { device: device.name.clone(), why };
        Ok(Arc::new(opened.map_err(|error| not_opened(error.fault.to_string()))?))
    }

    pub(super) fn target(device: &Described, ordinal: u32) -> Result<GpuTarget, ExecError> {
        let not_opened = |why: String| ExecError::NotOpened { device: device.name.clone(), why };
        target_of(ordinal).map_err(not_opened)
    }

    pub(super) fn free_memory(device: &Described, ordinal: u32) -> Result<Bytes, ExecError> {
        let not_opened = |why: String| ExecError::NotOpened { device: device.name.clone(), why };
        free_memory_of(ordinal).map_err(not_opened)
    }
}

#[cfg(not(feature = "cuda"))]
mod cuda {
    use super::{BufferTypeDesc, Bytes, Described, Device, ExecError};
    use loadmaster_backends::cuda::GpuTarget;
    use std::sync::Arc;

    pub(super) fn open(
        device: &Described,
        _: u32,
        _: &BufferTypeDesc,
        _: Option<Bytes>,
    ) -> Result<Arc<dyn Device>, ExecError> {
        Err(ExecError::NoDriver { device: device.name.clone(), driver: device.driver })
    }

    pub(super) fn target(device: &Described, _: u32) -> Result<GpuTarget, ExecError> {
        Err(ExecError::NoDriver { device: device.name.clone(), driver: device.driver })
    }

    pub(super) fn free_memory(device: &Described, _: u32) -> Result<Bytes, ExecError> {
        Err(ExecError::NoDriver { device: device.name.clone(), driver: device.driver })
    }
}

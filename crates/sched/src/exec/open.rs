//! From the description of a machine to devices.

use super::error::{At, ExecError};
use crate::machine::{Device as Described, Driver, Machine};
use loadmaster_backends::cpu::{ComputeCtx, Workers};
use loadmaster_backends::{CpuDevice, CpuOptions, Device, SimDevice, SimOptions};
use loadmaster_graph::{Bytes, DeviceId};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// Memory of a virtual GPU whose description gives none.
const UNKNOWN_CAPACITY: Bytes = Bytes::gib(1 << 10);

/// Opens every device of a machine, in its order. Kernels of all devices of the host run on `threads` threads.
///
/// Errors: threads that cannot be started, a device whose driver is not in this program.
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
            Ok(Arc::new(SimDevice::new(options, kernels).map_err(failed)?))
        }
        Driver::Cuda { .. } => Err(ExecError::NoDriver { device: device.name.clone(), driver: device.driver }),
    }
}

//! Copies between the caller's bytes and a device's memory, at once.

use crate::error::{Call, DeviceError, Fault};
use crate::host::HostBuffer;
use crate::host::core::Core;
use crate::host::faults::Faults;
use crate::sim::SimBuffer;
use crate::stats::Route;
use crate::stream::Region;
use loadmaster_graph::Bytes;

/// The caller's bytes into a region of the device's memory or of host memory.
pub(crate) fn upload(core: &Core, to: &Region, bytes: &[u8]) -> Result<(), DeviceError> {
    let write = || {
        admit(core, to, bytes.len())?;
        if let Some(host) = to.buffer.as_any().downcast_ref::<HostBuffer>() {
            host.write(to.offset, bytes)?;
            return Ok(Route::Local);
        }
        if let Some(address) = own(core, to)? {
            // SAFETY: `own` checked the range; `bytes` is the caller's and lies in no device memory; the caller sees to
            // it that nothing uses the region meanwhile.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, bytes.len()) };
        }
        Ok(Route::ToDevice)
    };
    finish(core, Call::Upload, bytes.len(), write())
}

/// A region of the device's memory or of host memory into the caller's bytes.
pub(crate) fn download(core: &Core, from: &Region, bytes: &mut [u8]) -> Result<(), DeviceError> {
    let len = bytes.len();
    let mut read = || {
        admit(core, from, bytes.len())?;
        if let Some(host) = from.buffer.as_any().downcast_ref::<HostBuffer>() {
            host.read(from.offset, bytes)?;
            return Ok(Route::Local);
        }
        if let Some(address) = own(core, from)? {
            // SAFETY: as in `upload`, with the directions exchanged.
            unsafe { std::ptr::copy_nonoverlapping(address, bytes.as_mut_ptr(), bytes.len()) };
        }
        Ok(Route::ToHost)
    };
    finish(core, Call::Download, len, read())
}

fn admit(core: &Core, region: &Region, len: usize) -> Result<(), Fault> {
    core.faults.check_alive()?;
    if core.faults.copies.trips() {
        return Err(Faults::injected("copy"));
    }
    let len = Bytes(len as u64);
    if region.len == len { Ok(()) } else { Err(Fault::LengthMismatch { from: len, to: region.len }) }
}

fn own(core: &Core, region: &Region) -> Result<Option<*mut u8>, Fault> {
    match region.buffer.as_any().downcast_ref::<SimBuffer>() {
        Some(sim) if std::ptr::eq(sim.core().as_ref(), core) => sim.address(region.offset, region.len),
        Some(sim) => Err(Fault::WrongMemory { buffer_type: sim.core().name.to_string() }),
        None => Err(Fault::Foreign { what: "buffer" }),
    }
}

fn finish(core: &Core, call: Call, len: usize, outcome: Result<Route, Fault>) -> Result<(), DeviceError> {
    let route = outcome.map_err(|fault| core.error(call, None, fault))?;
    core.counters.copied(route, Bytes(len as u64));
    if let Some(timing) = &core.timing {
        timing.clock.host_copies(&core.name, route, Bytes(len as u64));
    }
    Ok(())
}

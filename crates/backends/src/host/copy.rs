//! Copies between the memories of this process.

use crate::clock::LinkEnd;
use crate::error::Fault;
use crate::host::HostBuffer;
use crate::host::core::Core;
use crate::host::faults::Faults;
use crate::sim::SimBuffer;
use crate::stats::Route;
use crate::stream::{CopyCommand, Region};
use loadmaster_graph::Bytes;
use std::sync::Arc;

/// One end of a copy: an address, unless the memory has no bytes, and the device that owns it, unless it is the host's.
struct End<'a> {
    ptr: Option<*mut u8>,
    device: Option<&'a Arc<Core>>,
}

impl<'a> End<'a> {
    fn of(region: &'a Region) -> Result<Self, Fault> {
        let any = region.buffer.as_any();
        if let Some(host) = any.downcast_ref::<HostBuffer>() {
            return Ok(Self { ptr: Some(host.address(region.offset, region.len)?), device: None });
        }
        let Some(sim) = any.downcast_ref::<SimBuffer>() else {
            return Err(Fault::Foreign { what: "buffer" });
        };
        Ok(Self { ptr: sim.address(region.offset, region.len)?, device: Some(sim.core()) })
    }
}

/// Checks a copy that `core` is to make and says which way it goes. Errors: lengths differ, bytes outside the buffer,
/// memory that may not be written or that this device cannot reach.
pub(crate) fn route(core: &Arc<Core>, copy: &CopyCommand) -> Result<Route, Fault> {
    if copy.from.len != copy.to.len {
        return Err(Fault::LengthMismatch { from: copy.from.len, to: copy.to.len });
    }
    if let Some(host) = copy.to.buffer.as_any().downcast_ref::<HostBuffer>() {
        host.check_writable()?;
    }
    let (from, to) = (End::of(&copy.from)?, End::of(&copy.to)?);
    let own = |device: &Arc<Core>| Arc::ptr_eq(device, core);
    match (from.device, to.device) {
        (None, None) => Ok(Route::Local),
        (None, Some(to)) if own(to) => Ok(Route::ToDevice),
        (Some(from), None) if own(from) => Ok(Route::ToHost),
        (Some(from), Some(to)) if own(from) && own(to) => Ok(Route::Local),
        (Some(from), Some(to)) if (own(from) || own(to)) && from.peers.reaches(&to.name) => Ok(Route::Peer),
        (Some(far), _) | (_, Some(far)) => Err(Fault::WrongMemory { buffer_type: far.name.to_string() }),
    }
}

/// The ends of the link that a checked copy uses.
pub(crate) fn link(copy: &CopyCommand) -> (LinkEnd, LinkEnd) {
    let end = |region: &Region| match region.buffer.as_any().downcast_ref::<SimBuffer>() {
        Some(sim) => LinkEnd::Device(sim.core().name.clone()),
        None => LinkEnd::Host,
    };
    (end(&copy.from), end(&copy.to))
}

/// Makes a copy that [`route`] has checked.
pub(crate) fn perform(core: &Core, copy: &CopyCommand, route: Route) -> Result<(), Fault> {
    core.faults.check_alive()?;
    if core.faults.copies.trips() {
        return Err(Faults::injected("copy"));
    }
    core.counters.copied(route, copy.from.len);
    let (Some(from), Some(to)) = (End::of(&copy.from)?.ptr, End::of(&copy.to)?.ptr) else {
        return Ok(());
    };
    // SAFETY: both ranges were checked to lie in their buffers, which `copy` keeps alive; `to` is writable; `copy` allows
    // overlap; the executor's protocol orders this copy with all other uses of both ranges.
    unsafe { std::ptr::copy(from, to, copy.to.len.get() as usize) };
    if route == Route::Peer && core.faults.corrupts_peer() {
        corrupt(to, copy.to.len);
    }
    Ok(())
}

/// Flips bits in every 4 KiB, as a broken peer path does.
fn corrupt(to: *mut u8, len: Bytes) {
    for offset in (0..len.get() as usize).step_by(4096) {
        // SAFETY: `offset < len`, and the caller just wrote `len` bytes from `to`.
        unsafe { *to.add(offset) ^= 0x5a };
    }
}

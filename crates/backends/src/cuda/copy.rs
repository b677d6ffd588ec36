//! Which way a copy goes, and the driver call that makes it.

use super::core::Core;
use super::handles::RawStream;
use super::memory::CudaBuffer;
use crate::error::Fault;
use crate::host::HostBuffer;
use crate::stats::Route;
use crate::stream::{CopyCommand, Region};
use std::sync::Arc;

/// One end of a copy.
enum End<'a> {
    /// Host memory.
    Host(*mut u8),
    /// Memory of a GPU.
    Gpu(&'a Arc<Core>, u64),
}

impl<'a> End<'a> {
    fn of(region: &'a Region) -> Result<Self, Fault> {
        let any = region.buffer.as_any();
        if let Some(host) = any.downcast_ref::<HostBuffer>() {
            return Ok(Self::Host(host.address(region.offset, region.len)?));
        }
        let Some(gpu) = any.downcast_ref::<CudaBuffer>() else {
            return Err(Fault::WrongMemory { buffer_type: format!("{:?}", region.buffer) });
        };
        Ok(Self::Gpu(gpu.core(), gpu.address(region.offset, region.len)?))
    }
}

/// A copy that was checked.
pub(crate) enum Checked {
    /// From host memory to a GPU.
    ToDevice(*const u8, u64),
    /// From a GPU to host memory.
    ToHost(u64, *mut u8),
    /// Within a GPU.
    Within(u64, u64, Route),
    /// From GPU to GPU.
    Peer {
        /// The device that is read, and where.
        from: (Arc<Core>, u64),
        /// The device that is written, and where.
        to: (Arc<Core>, u64),
    },
    /// Within host memory.
    Host,
}

/// Checks a copy that a stream of `core` is to make. Errors: lengths differ, bytes outside the buffer, memory that may
/// not be written or that this device cannot reach.
pub(crate) fn check(core: &Arc<Core>, copy: &CopyCommand) -> Result<Checked, Fault> {
    if copy.from.len != copy.to.len {
        return Err(Fault::LengthMismatch { from: copy.from.len, to: copy.to.len });
    }
    if let Some(host) = copy.to.buffer.as_any().downcast_ref::<HostBuffer>() {
        host.check_writable()?;
    }
    let far = |other: &Arc<Core>| Fault::WrongMemory { buffer_type: other.name.to_string() };
    let own = |other: &Arc<Core>| Arc::ptr_eq(other, core);
    match (End::of(&copy.from)?, End::of(&copy.to)?) {
        (End::Host(_), End::Host(_)) => Ok(Checked::Host),
        (End::Host(from), End::Gpu(device, to)) if own(device) => Ok(Checked::ToDevice(from, to)),
        (End::Gpu(device, from), End::Host(to)) if own(device) => Ok(Checked::ToHost(from, to)),
        (End::Host(_), End::Gpu(device, _)) | (End::Gpu(device, _), End::Host(_)) => Err(far(device)),
        (End::Gpu(a, from), End::Gpu(b, to)) if own(a) && own(b) => Ok(Checked::Within(from, to, Route::Local)),
        (End::Gpu(a, from), End::Gpu(b, to)) if own(a) || own(b) => {
            let (near, other) = if own(a) { (a, b) } else { (b, a) };
            if near.context.ordinal() == other.context.ordinal() {
                return Ok(Checked::Within(from, to, Route::Peer));
            }
            reach_both(near, other).map_err(|_| far(other))?;
            Ok(Checked::Peer { from: (Arc::clone(a), from), to: (Arc::clone(b), to) })
        }
        (End::Gpu(a, _), End::Gpu(..)) => Err(far(a)),
    }
}

/// Lets two devices reach each other's memory. Errors: why one of them cannot.
pub(crate) fn reach_both(a: &Core, b: &Core) -> Result<(), String> {
    a.context.reach(&b.context)?;
    b.context.reach(&a.context)
}

/// Puts a checked copy of `len` bytes into a stream. Copies within host memory are not the driver's.
///
/// # Safety
/// Both ends must stay valid until the copy has been made, and nothing else may use them meanwhile but as the executor's
/// protocol orders.
pub(crate) unsafe fn put(core: &Core, stream: &RawStream, checked: &Checked, len: usize) -> Result<(), Fault> {
    let raw = stream.raw();
    core.context.call(|driver| {
        // SAFETY: the ranges were checked to lie in their buffers; the caller vouches for the rest.
        unsafe {
            match checked {
                Checked::ToDevice(from, to) => driver.copy_to_device(*to, from.cast(), len, raw),
                Checked::ToHost(from, to) => driver.copy_to_host(to.cast(), *from, len, raw),
                Checked::Within(from, to, _) => driver.copy_within(*to, *from, len, raw),
                Checked::Peer { from, to } => {
                    driver.copy_peer(to.1, to.0.context.raw(), from.1, from.0.context.raw(), len, raw)
                }
                Checked::Host => Ok(()),
            }
        }
    })
}

impl Checked {
    /// How it counts.
    pub(crate) fn route(&self) -> Route {
        match self {
            Self::ToDevice(..) => Route::ToDevice,
            Self::ToHost(..) => Route::ToHost,
            Self::Within(.., route) => *route,
            Self::Peer { .. } => Route::Peer,
            Self::Host => Route::Local,
        }
    }
}

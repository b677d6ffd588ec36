//! What a device's buffers, streams, events and programs hold on to.

use super::context::Context;
use super::cublas::NoCublas;
use super::handles::{RawEvent, RawStream};
use super::launch::types::Target;
use super::products::Chosen;
use crate::error::{Call, DeviceError, Fault};
use crate::stats::{Counters, Space};
use loadmaster_graph::{Bytes, TensorId};
use parking_lot::{Mutex, MutexGuard};
use std::sync::Arc;

/// The stream that used the scratch memory of a device last.
pub(crate) type ScratchUser = Option<Arc<RawStream>>;

/// A logical device: a GPU, or a part of its memory.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) name: Box<str>,
    pub(crate) context: Arc<Context>,
    pub(crate) counters: Counters,
    pub(crate) target: Target,
    /// cuBLAS, or why our own kernels compute all products.
    pub(crate) products: Result<Chosen, NoCublas>,
    /// Most bytes that its buffers take together.
    pub(crate) limit: Option<Bytes>,
    /// Locked before what a program knows of its replays.
    pub(crate) scratch_user: Mutex<ScratchUser>,
}

impl Core {
    pub(crate) fn error(&self, call: Call, tensor: Option<TensorId>, fault: Fault) -> DeviceError {
        DeviceError { device: self.name.clone(), call, tensor, fault }
    }

    pub(crate) fn alive(&self, call: Call) -> Result<(), DeviceError> {
        self.context.alive().map_err(|fault| self.error(call, None, fault))
    }

    pub(crate) fn space(&self) -> Space {
        self.limit.map_or(Space::Unlimited, Space::Limited)
    }

    /// Lets a stream use the scratch memory, behind the one that used it before. Whoever wants it next waits until the
    /// guard is dropped: by then everything that uses it must have been put into the stream.
    pub(crate) fn enter_scratch(&self, stream: &Arc<RawStream>) -> Result<MutexGuard<'_, ScratchUser>, Fault> {
        let mut user = self.scratch_user.lock();
        if let Some(before) = user.as_ref().filter(|before| !Arc::ptr_eq(before, stream)) {
            let event = RawEvent::new(&self.context)?;
            event.record(before)?;
            event.hold(stream)?;
        }
        *user = Some(Arc::clone(stream));
        Ok(user)
    }

    /// Free and total bytes of the GPU, as the driver says. Errors: the driver's.
    pub(crate) fn driver_memory(&self) -> Result<(Bytes, Bytes), Fault> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the pointers are to numbers.
        self.context.call(|driver| unsafe { driver.memory_info(&raw mut free, &raw mut total) })?;
        Ok((Bytes(free as u64), Bytes(total as u64)))
    }

    /// Bytes that could be taken now, if the driver says.
    pub(crate) fn free(&self) -> Option<Bytes> {
        let free = self.driver_memory().ok().map(|(free, _)| free);
        let within = self.limit.map(|limit| limit.saturating_sub(self.counters.own_bytes()));
        match (free, within) {
            (Some(free), Some(within)) => Some(free.min(within)),
            (known, None) | (None, known) => known,
        }
    }
}

//! Queues of commands, events, and the regions that copies move.

use crate::error::DeviceError;
use crate::program::Compiled;
use loadmaster_alloc::Buffer;
use loadmaster_graph::{Bytes, TensorId, define_id};
use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

define_id! {
    /// A command of a program: one node.
    pub CommandId, "cmd";
}

/// Some bytes of a buffer: `[offset, offset + len)`. Cloning it allocates nothing.
#[derive(Clone, Debug)]
pub struct Region {
    /// The buffer.
    pub buffer: Arc<dyn Buffer>,
    /// First byte.
    pub offset: Bytes,
    /// Number of bytes.
    pub len: Bytes,
}

impl Region {
    /// A part of it: `len` bytes from `offset` (relative to this region); `None` if it leaves the region.
    #[must_use]
    pub fn part(&self, offset: Bytes, len: Bytes) -> Option<Self> {
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len);
        inside.then(|| Self { buffer: Arc::clone(&self.buffer), offset: self.offset.saturating_add(offset), len })
    }
}

/// A copy for a stream to make.
#[derive(Clone, Debug)]
pub struct CopyCommand {
    /// What is read.
    pub from: Region,
    /// What is written; as long as `from`.
    pub to: Region,
    /// The tensor whose bytes these are, for errors.
    pub tensor: Option<TensorId>,
}

/// A queue whose commands run one after another, in the order in which they were put in. Two streams are ordered only
/// by events.
///
/// Putting a command in returns at once, except where a device cannot queue it. A command that fails stops its stream:
/// what follows is skipped, the events recorded there carry the failure to whoever waits for them, and
/// [`Stream::synchronize`] reports it until [`Stream::recover`] is called. So a failure never leaves a waiter hanging.
pub trait Stream: fmt::Debug + Send + Sync {
    /// Computes the commands `[range.start, range.end)` of a program in order. Allocates nothing.
    fn execute(&self, program: &Arc<dyn Compiled>, range: Range<CommandId>) -> Result<(), DeviceError>;
    /// Copies bytes. Both ends must be reachable: the device's own memory, host memory, or a peer's memory where
    /// [`crate::Device::peer`] says so.
    fn copy(&self, copy: &CopyCommand) -> Result<(), DeviceError>;
    /// Records an event of the same device: it is reached when everything put in before has finished. Recording again
    /// replaces the earlier record for later waits only. An event is recorded in one stream all its life.
    fn record(&self, event: &Arc<dyn Event>) -> Result<(), DeviceError>;
    /// Lets what follows wait for the record of `event` that is the latest now. An event never recorded is no wait.
    /// Events of any device in the process are accepted.
    fn wait(&self, event: &Arc<dyn Event>) -> Result<(), DeviceError>;
    /// Calls a function of the host when everything before has finished. It must not call into a device.
    fn call(&self, function: Box<dyn FnOnce() + Send>) -> Result<(), DeviceError>;
    /// Waits on the host until everything put in has finished or was skipped. Errors: the first failure.
    fn synchronize(&self) -> Result<(), DeviceError>;
    /// What has gone wrong so far that events of this stream do not tell, without waiting. Devices whose events tell all
    /// have nothing to add. Errors: as [`Stream::synchronize`].
    fn check(&self) -> Result<(), DeviceError> {
        Ok(())
    }
    /// Waits like [`Stream::synchronize`], forgets the failure and makes the stream usable again. Errors: the device is
    /// lost.
    fn recover(&self) -> Result<(), DeviceError>;
}

/// The number of a record of an event; later records have larger numbers. Zero: never recorded.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Mark(pub u64);

/// A point in a stream that others can wait for.
pub trait Event: fmt::Debug + Send + Sync {
    /// The latest record put into a stream.
    fn mark(&self) -> Mark;
    /// Whether a record has been reached, without waiting. Errors: its stream failed before it.
    fn reached(&self, mark: Mark) -> Result<bool, DeviceError>;
    /// Waits on the host until a record has been reached. Errors: its stream failed before it.
    fn wait(&self, mark: Mark) -> Result<(), DeviceError>;
    /// The concrete type, for streams of the same backend.
    fn as_any(&self) -> &dyn Any;

    /// Whether the latest record has been reached.
    fn query(&self) -> Result<bool, DeviceError> {
        self.reached(self.mark())
    }
    /// Waits on the host for the latest record.
    fn synchronize(&self) -> Result<(), DeviceError> {
        self.wait(self.mark())
    }
}

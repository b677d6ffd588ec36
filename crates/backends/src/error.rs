//! Errors of devices.

use loadmaster_alloc::Refused;
use loadmaster_graph::{Bytes, Op, TensorId};
use std::fmt;
use std::sync::Arc;

/// What a device was asked to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Call {
    /// Take memory.
    Allocate,
    /// Make a stream or an event.
    Create,
    /// Prepare a program.
    Compile,
    /// Compute nodes.
    Execute,
    /// Copy bytes in a stream.
    Copy,
    /// Copy bytes from host memory at once.
    Upload,
    /// Copy bytes to host memory at once.
    Download,
    /// Record an event.
    Record,
    /// Wait for an event.
    Wait,
    /// Call a function of the host in a stream.
    HostCall,
    /// Wait for a stream or an event on the host.
    Synchronize,
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Allocate => "allocate",
            Self::Create => "create",
            Self::Compile => "compile",
            Self::Execute => "execute",
            Self::Copy => "copy",
            Self::Upload => "upload",
            Self::Download => "download",
            Self::Record => "record",
            Self::Wait => "wait",
            Self::HostCall => "host call",
            Self::Synchronize => "synchronize",
        })
    }
}

/// A device could not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceError {
    /// Name of the device.
    pub device: Box<str>,
    /// What it was asked to do.
    pub call: Call,
    /// The tensor that was computed or moved, where there is one.
    pub tensor: Option<TensorId>,
    /// What went wrong.
    pub fault: Fault,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.device, self.call)?;
        if let Some(tensor) = self.tensor {
            write!(f, " of {tensor}")?;
        }
        write!(f, ": {}", self.fault)
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.fault {
            Fault::Upstream(cause) => Some(cause.as_ref()),
            _ => None,
        }
    }
}

impl DeviceError {
    /// The error that began a chain of [`Fault::Upstream`].
    #[must_use]
    pub fn root(&self) -> &Self {
        match &self.fault {
            Fault::Upstream(cause) => cause.root(),
            _ => self,
        }
    }

    /// Whether the device is gone for good.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self.fault, Fault::Lost { .. })
    }
}

/// What went wrong in a device.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The driver refused to give memory.
    #[error("{0}")]
    OutOfMemory(Refused),
    /// Less memory was planned for what kernels need beside their operands than they need here.
    #[error(
        "{needed} are needed beside operands on {target}, but {given} were planned: the plan is for another GPU; plan again"
    )]
    Workspace {
        /// The GPU.
        target: String,
        /// Bytes needed.
        needed: Bytes,
        /// Bytes that the program brought.
        given: Bytes,
    },
    /// The device has no kernel for this.
    #[error("no kernel for {op}: {why}; place it on another device")]
    Unsupported {
        /// The operation.
        op: Op,
        /// What is missing.
        why: String,
    },
    /// A kernel failed while it ran.
    #[error("{op} failed: {why}")]
    Kernel {
        /// The operation.
        op: Op,
        /// What the kernel says.
        why: String,
    },
    /// Bytes outside a buffer.
    #[error("bytes {offset}..{end} of a buffer of {size}", offset = offset.get(), end = offset.get().saturating_add(len.get()))]
    OutOfRange {
        /// First byte.
        offset: Bytes,
        /// Number of bytes.
        len: Bytes,
        /// Size of the buffer.
        size: Bytes,
    },
    /// Source and destination of a copy have different lengths.
    #[error("{from} do not go into {to}")]
    LengthMismatch {
        /// Bytes of the source.
        from: Bytes,
        /// Bytes of the destination.
        to: Bytes,
    },
    /// A tensor does not start, or its rows do not, where the device needs them.
    #[error("{offset} bytes are no multiple of {align}", offset = offset.get())]
    Misaligned {
        /// The offset in its buffer, the stride, or the distance of its address from an aligned one.
        offset: Bytes,
        /// The alignment that the device needs.
        align: u64,
    },
    /// A result lies over an operand that its kernel still reads.
    #[error(
        "the result of {op} lies over operand {operand}, which its kernel does not allow: plan with its in-place table"
    )]
    Overlap {
        /// The operation.
        op: Op,
        /// Position of the operand.
        operand: usize,
    },
    /// A buffer that this device cannot reach.
    #[error("cannot reach a buffer of {buffer_type}")]
    WrongMemory {
        /// The kind of memory.
        buffer_type: String,
    },
    /// Memory that may only be read.
    #[error("{buffer_type} may only be read")]
    ReadOnly {
        /// The kind of memory.
        buffer_type: String,
    },
    /// The driver's own error.
    #[error("the driver says {code}: {reason}")]
    Driver {
        /// Its number.
        code: i64,
        /// Its words.
        reason: String,
    },
    /// A library beside the driver refused a call.
    #[error("{call} of {library} says {code}: {reason}")]
    Library {
        /// The library.
        library: &'static str,
        /// The function.
        call: &'static str,
        /// Its number for what went wrong.
        code: i64,
        /// What that means.
        reason: String,
    },
    /// The kernels of a source cannot be had.
    #[error("the kernels of {module} cannot be had: {why}")]
    Module {
        /// The source.
        module: String,
        /// What the compiler or the program says.
        why: String,
    },
    /// The device is gone; it answers every later call with this.
    #[error("the device is lost: {why}")]
    Lost {
        /// How it was lost.
        why: String,
    },
    /// Something that was waited for had failed.
    #[error("waited for something that failed ({0})")]
    Upstream(Arc<DeviceError>),
    /// An object of another backend where one of the device's own is needed.
    #[error("the {what} belongs to another backend")]
    Foreign {
        /// What kind of object.
        what: &'static str,
    },
    /// The stream was closed before the command ran.
    #[error("the stream was closed")]
    Closed,
}

/// Why a device cannot compute something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unsupported {
    /// What is missing.
    pub why: String,
}

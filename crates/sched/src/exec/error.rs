//! Errors of binding and running.

use crate::error::SchedError;
use crate::machine::Driver;
use loadmaster_alloc::Refused;
use loadmaster_backends::DeviceError;
use loadmaster_graph::{Bytes, DeviceId, Graph, NodeId, SplitId, TensorId};
use std::fmt;
use std::num::NonZeroUsize;

/// A tensor with its name, for messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The tensor.
    pub tensor: TensorId,
    /// Its name.
    pub name: Box<str>,
}

impl Named {
    /// A tensor of a graph.
    #[must_use]
    pub fn of(graph: &Graph, tensor: TensorId) -> Self {
        Self { tensor, name: graph.tensors().get(tensor).map_or_else(Box::default, |t| t.name.clone()) }
    }
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} `{}`", self.tensor, self.name)
    }
}

/// Where in a run something failed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct At {
    /// The split, if it was in one.
    pub split: Option<SplitId>,
    /// The node, if it was one.
    pub node: Option<NodeId>,
    /// The tensor that was computed or moved, if it is known.
    pub tensor: Option<Named>,
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = " in ";
        if let Some(split) = self.split {
            write!(f, "{separator}{split}")?;
            separator = ", ";
        }
        if let Some(node) = self.node {
            write!(f, "{separator}{node}")?;
            separator = ", ";
        }
        match &self.tensor {
            Some(tensor) => write!(f, "{separator}{tensor}"),
            None => Ok(()),
        }
    }
}

/// Why a plan cannot be bound or run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// A tensor is neither placed by the plan nor in memory.
    #[error("{0} is neither placed by the plan nor in memory: say where it is, or flag it as input and reserve again")]
    NotPlaced(Named),
    /// The graph cannot be planned, or the plan gets no memory.
    #[error(transparent)]
    Planning(Box<SchedError>),
    /// The threads of the kernels could not be started.
    #[error("{threads} threads could not be started: {reason}")]
    Threads {
        /// How many were asked for.
        threads: NonZeroUsize,
        /// The system's words.
        reason: String,
    },
    /// A device's driver is not in this program.
    #[error("device `{device}` needs the driver {driver}, which is not in this program")]
    NoDriver {
        /// The device.
        device: Box<str>,
        /// The driver.
        driver: Driver,
    },
    /// A device's driver is not on this machine, or does not know the device.
    #[error("device `{device}` cannot be opened: {why}")]
    NotOpened {
        /// The device.
        device: Box<str>,
        /// What is missing.
        why: String,
    },
    /// Two turns of a plan have different steps, which is our own fault.
    #[error("a turn has {found} steps, the first has {expected}")]
    TurnsDiffer {
        /// Steps of the turn.
        found: usize,
        /// Steps of the first turn.
        expected: usize,
    },
    /// The parts of a plan were made for different graphs.
    #[error("a part of the plan has {found} nodes, the graph {expected}: they do not belong together")]
    Mismatch {
        /// Nodes of the part.
        found: usize,
        /// Nodes of the graph.
        expected: usize,
    },
    /// A split copies something that is computed only in that split or later, such as a view on another device than its
    /// root.
    #[error(
        "{split} copies {tensor} when it starts, but that is not computed before: keep a view on its root's device"
    )]
    CopiedTooEarly {
        /// What is copied.
        tensor: Named,
        /// The split that copies it.
        split: SplitId,
    },
    /// The number of devices is not the machine's.
    #[error("{found} devices were given for a machine of {expected}")]
    DeviceCount {
        /// How many were given.
        found: usize,
        /// How many the machine has.
        expected: usize,
    },
    /// A chunk of the plan has no buffer behind it.
    #[error("{what} has no buffer: allocate the plan before it is bound")]
    NoBuffer {
        /// The memory.
        what: String,
    },
    /// The host's memory for staging or outputs was refused.
    #[error("staging memory for {purpose}: {refused}")]
    Staging {
        /// What it was for.
        purpose: String,
        /// The refusal.
        refused: Refused,
    },
    /// A GPU's memory for what kernels need beside operands was refused. Nothing has changed.
    #[error(
        "{device} has no room in its pool {pool} for what its kernels need beside operands: {needed} are needed, {} are \
         free ({reason}); give a smaller --ubatch or fewer --n-gpu-layers",
        .available.map_or("it is not known how many".to_owned(), |bytes| bytes.to_string())
    )]
    Workspace {
        /// The device.
        device: Box<str>,
        /// The pool of its memory.
        pool: Box<str>,
        /// Bytes needed, in one buffer.
        needed: Bytes,
        /// Bytes that could be had, if known.
        available: Option<Bytes>,
        /// What the device says.
        reason: Box<str>,
    },
    /// A device failed.
    #[error("{device} failed{at}: {error}")]
    Device {
        /// The device.
        device: DeviceId,
        /// Where.
        at: Box<At>,
        /// What it says; the root of the failure.
        error: Box<DeviceError>,
    },
    /// A tensor that is no input, or that has memory of its own.
    #[error("{0} is not written by the caller: it is computed, or has memory of its own")]
    NotAnInput(Named),
    /// An input was not written for this run.
    #[error("{0} was not written for this run: write every input before each run")]
    InputMissing(Named),
    /// The bytes given or asked for are not as many as the tensor has.
    #[error("{tensor} has {expected}, not {found}")]
    Length {
        /// The tensor.
        tensor: Named,
        /// Its size.
        expected: Bytes,
        /// The length of the slice.
        found: Bytes,
    },
    /// A tensor that no longer holds its value when a run has ended.
    #[error("{0} is no output: its memory is used again during the run; flag it as output, or observe it")]
    NotKept(Named),
    /// The last run failed or was stopped, or there was none.
    #[error("there are no results: the last run failed or was stopped, or nothing ran yet")]
    NoResults,
    /// An output was asked for whose slot a later run, or another plan of the session, uses.
    #[error("the outputs of run {run} were overwritten: {kept} runs are kept, until another plan runs")]
    Overwritten {
        /// The run.
        run: u64,
        /// How many turns there are.
        kept: u32,
    },
    /// An id that names no expert.
    #[error("{ids} names expert {id} of {weights}, which has {experts}")]
    ExpertId {
        /// The ids.
        ids: Named,
        /// The id.
        id: i64,
        /// The weights.
        weights: Named,
        /// How many experts there are.
        experts: u64,
    },
}

impl ExecError {
    pub(super) fn device(device: DeviceId, at: At, error: DeviceError) -> Self {
        Self::Device { device, at: Box::new(at), error: Box::new(error) }
    }

    pub(super) fn not_placed(graph: &Graph, tensor: TensorId) -> Self {
        Self::NotPlaced(Named::of(graph, tensor))
    }
}

impl From<SchedError> for ExecError {
    fn from(error: SchedError) -> Self {
        Self::Planning(Box::new(error))
    }
}

//! Why a model cannot be prepared, loaded or run.

use loadmaster_alloc::AllocError;
use loadmaster_backends::DeviceError;
use loadmaster_graph::Bytes;
use loadmaster_models::families::FamilyError;
use loadmaster_models::gguf::{GgufError, OpenError};
use loadmaster_models::inputs::InputError;
use loadmaster_models::kv::KvError;
use loadmaster_sched::SchedError;
use loadmaster_sched::exec::ExecError;

/// Why a model cannot be prepared, loaded or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The file cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] GgufError),
    /// The model's graph cannot be built for these settings.
    #[error(transparent)]
    Family(#[from] FamilyError),
    /// The graph cannot be planned.
    #[error(transparent)]
    Plan(#[from] SchedError),
    /// Settings that contradict each other or the machine.
    #[error("{0}")]
    Settings(String),
    /// More memory is needed than a device has.
    #[error(
        "{device} has {available}, but {needed} are needed: {weights} of weights, {cache} of KV cache, {compute} to compute in, {workspace} beside operands; {advice}"
    )]
    OverCapacity {
        /// The device.
        device: Box<str>,
        /// All of its memory.
        available: Bytes,
        /// Bytes needed.
        needed: Bytes,
        /// Of these, weights.
        weights: Bytes,
        /// KV cache.
        cache: Bytes,
        /// Compute arena.
        compute: Bytes,
        /// What kernels need beside operands.
        workspace: Bytes,
        /// What would help.
        advice: &'static str,
    },
    /// More pinned host memory is needed than there is.
    #[error(
        "the pool {pool} has {available}, but {needed} are needed for outputs and copies; give fewer --copies, a smaller --ubatch, or a larger pool"
    )]
    PinnedCapacity {
        /// The pool.
        pool: Box<str>,
        /// What it has.
        available: Bytes,
        /// What is needed.
        needed: Bytes,
    },
    /// A device gave no memory for weights or a KV cache.
    #[error("{device} has no memory for the {what}: {why}")]
    Load {
        /// The device.
        device: Box<str>,
        /// What it was for.
        what: &'static str,
        /// Why.
        why: Box<AllocError>,
    },
    /// A weight could not be brought to its device.
    #[error("the weight `{weight}` did not reach its device: {error}")]
    Upload {
        /// The weight, or what else was written.
        weight: Box<str>,
        /// What the device says.
        error: Box<DeviceError>,
    },
    /// A tensor that no part of the loaded model stands for: a graph that was built for other settings.
    #[error("`{tensor}` was not loaded")]
    NotLoaded {
        /// The tensor.
        tensor: Box<str>,
    },
    /// The plan cannot be bound, or a run failed.
    #[error(transparent)]
    Exec(Box<ExecError>),
    /// There is no room in the cache, or the batch is not usable.
    #[error(transparent)]
    Cache(#[from] KvError),
    /// A batch cannot be fed.
    #[error(transparent)]
    Input(#[from] InputError),
}

impl From<ExecError> for EngineError {
    fn from(error: ExecError) -> Self {
        Self::Exec(Box::new(error))
    }
}

impl EngineError {
    /// Whether the request makes no sense or cannot be read, as opposed to a run that failed.
    #[must_use]
    pub fn is_bad_input(&self) -> bool {
        matches!(self, Self::Open(_) | Self::File(_) | Self::Family(_) | Self::Settings(_) | Self::Input(_))
            || matches!(self, Self::Exec(error) if matches!(**error, ExecError::NoDriver { .. }))
    }
}

//! Graphs of model families: the same operations in the same order as llama.cpp's, so that plans agree with it.
//!
//! A graph is made from hyper-parameters, the file's tensor table (no data), and a [`GraphSpec`]. It knows nothing of
//! devices: each weight and cache tensor says which part of the model it belongs to.

mod attention;
mod context;
mod decoder;
mod error;
mod feed_forward;
mod linear;
mod model;
mod spec;

pub use error::FamilyError;
pub use model::{CacheUse, Input, InputKind, ModelGraph, WeightUse};
pub use spec::{
    Attention, BatchShape, CachePart, CacheRequest, HomeId, Homes, KvLayout, MAX_MICRO_BATCH, Part, SlidingCells,
};

use crate::gguf::Gguf;
use crate::hparams::HParams;

/// What a graph depends on beside the model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphSpec {
    /// The batch.
    pub shape: BatchShape,
    /// The caches.
    pub layout: KvLayout,
    /// How attention is computed.
    pub attention: Attention,
    /// Where weights are kept.
    pub homes: Homes,
}

/// Builds the graph of a model for one shape of batch. O(tensors of the graph).
///
/// Errors: weights that are missing or do not fit the hyper-parameters, shapes that do not fit the caches.
pub fn build(file: &Gguf, params: &HParams, spec: &GraphSpec) -> Result<ModelGraph, FamilyError> {
    decoder::build(file, params, spec)
}

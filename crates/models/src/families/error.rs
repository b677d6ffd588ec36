//! Why a graph cannot be built.

use crate::gguf::GgufError;
use loadmaster_graph::{BuildError, DType};

/// Why a graph cannot be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum FamilyError {
    /// A weight is missing, of an unknown type or of other extents than the hyper-parameters say.
    #[error(transparent)]
    Weight(#[from] GgufError),
    /// An operation was refused.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The batch does not fit the cache.
    #[error("{what} is {found}, which is not {expected}")]
    Shape {
        /// What.
        what: &'static str,
        /// Its value.
        found: u64,
        /// What it must be.
        expected: String,
    },
    /// A type that the cache cannot have.
    #[error("the cache of {part} cannot be {dtype}: {reason}")]
    CacheType {
        /// Keys or values.
        part: super::CachePart,
        /// The type.
        dtype: DType,
        /// Why.
        reason: String,
    },
    /// Homes are missing.
    #[error("{found} homes were given for {expected} layers")]
    Homes {
        /// Layers of the model.
        expected: usize,
        /// Homes given.
        found: usize,
    },
}

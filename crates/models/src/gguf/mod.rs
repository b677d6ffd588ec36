//! GGUF files: versions 2 and 3, little-endian, one file or a split model, read from bytes without copying tensor data.
//!
//! What a file claims is checked against its own size and against [`limits`] before anything is allocated. Errors say
//! where and why. A file that ends exactly where its tensor data would begin is a *header-only* file: everything but
//! [`Gguf::data`] works, which is what planning needs. A tensor of an unknown type number is listed; only its size and
//! data are an error, so a file with one exotic tensor can still be looked at.

mod cursor;
mod error;
mod header;
pub mod limits;
mod model;
mod open;
mod value;
mod write;

pub use error::{GgufError, GgufFault, OpenError, Place, Subject};
pub use model::{Gguf, TensorInfo, WeightId};
pub use value::{Array, Value, ValueType};
pub use write::{MetaValue, Writer};

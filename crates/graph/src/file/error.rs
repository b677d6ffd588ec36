//! What can be wrong with a graph file.

use crate::error::GraphError;
use crate::id::TensorId;
use crate::units::Bytes;
use std::path::PathBuf;

/// Why a graph file cannot be read or written. Every variant says where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The refusal.
        source: std::io::Error,
    },
    /// The compressed stream is damaged.
    #[error("the gzip stream is damaged after {read} bytes of text: {source}")]
    Gzip {
        /// Decompressed bytes up to there.
        read: usize,
        /// What the decompressor says.
        source: std::io::Error,
    },
    /// More of something than the limit allows.
    #[error("{place}: {found} exceeds the limit of {limit}")]
    Limit {
        /// What is too large.
        place: String,
        /// How large it is (at least).
        found: usize,
        /// How large it may be.
        limit: usize,
    },
    /// Not JSON, or not of the expected shape.
    #[error("{place}: {why}")]
    Syntax {
        /// Path of the value in the file, such as `tensors[17].ne`.
        place: String,
        /// What the parser expected, with line and column.
        why: String,
    },
    /// JSON, but another kind of file.
    #[error("`format` is `{found}`, not `{expected}`: this is no graph file")]
    Format {
        /// What the file says.
        found: String,
        /// What it should say.
        expected: &'static str,
    },
    /// A version of the format that this program does not know.
    #[error("`version` is {found}, but only version {supported} is known: use a newer program")]
    Version {
        /// What the file says.
        found: u32,
        /// What is supported.
        supported: u32,
    },
    /// A name outside its list.
    #[error("{place}: unknown {what} `{name}`")]
    UnknownName {
        /// Where it stands.
        place: String,
        /// What it should name.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A number that should be an index of something that exists.
    #[error("{place} is {index}, but there are only {count}")]
    Reference {
        /// Where it stands.
        place: String,
        /// The number.
        index: u64,
        /// How many there are.
        count: usize,
    },
    /// A list whose length must equal that of another.
    #[error("{place} has {found} entries, not {expected}")]
    Length {
        /// The list.
        place: String,
        /// Its length.
        found: usize,
        /// The length it should have.
        expected: usize,
    },
    /// A value that contradicts another, or itself.
    #[error("{place}: {why}")]
    Value {
        /// Where it stands.
        place: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// `nbytes` is not what type, extents and strides give.
    #[error(
        "tensor {tensor} `{name}` key `nbytes`: {found} bytes, but type, extents and strides give {computed}",
        found = found.get(),
        computed = computed.get()
    )]
    SizeMismatch {
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
        /// What the file says.
        found: Bytes,
        /// What the tensor takes.
        computed: Bytes,
    },
    /// The file is well formed, but its graph is not.
    #[error("the graph is invalid: {0}")]
    Graph(#[from] GraphError),
}

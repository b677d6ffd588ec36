//! Where and why a GGUF file is refused.

use loadmaster_graph::Bytes;
use std::fmt;
use std::path::PathBuf;

/// A GGUF file that cannot be used: the place and the reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {fault}")]
pub struct GgufError {
    /// Where.
    pub place: Place,
    /// Why.
    pub fault: GgufFault,
}

/// A place in a model file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Which file of a split model, counted from 0.
    pub shard: u16,
    /// Byte offset in that file, where there is one.
    pub offset: Option<Bytes>,
    /// What stands there.
    pub subject: Subject,
}

/// What stands at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Subject {
    /// Magic, version and counts.
    Header,
    /// A metadata pair whose key could not be read, by its number.
    PairNumber(u64),
    /// The value of a metadata key.
    Key(Box<str>),
    /// A tensor whose name could not be read, by its number.
    TensorNumber(u64),
    /// A tensor.
    Tensor(Box<str>),
    /// The files of a split model together.
    Split,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.subject {
            Subject::Header => write!(f, "header"),
            Subject::PairNumber(n) => write!(f, "metadata pair {n}"),
            Subject::Key(key) => write!(f, "metadata key `{key}`"),
            Subject::TensorNumber(n) => write!(f, "tensor number {n}"),
            Subject::Tensor(name) => write!(f, "tensor `{name}`"),
            Subject::Split => write!(f, "split model"),
        }?;
        if let Some(offset) = self.offset {
            write!(f, " at byte {}", offset.get())?;
        }
        if self.shard > 0 {
            write!(f, " of file {} of the split model", self.shard + 1)?;
        }
        Ok(())
    }
}

/// Why a GGUF file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufFault {
    /// The file does not begin with `GGUF`.
    #[error("not a GGUF file (it begins with {found:02x?})")]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// A version that is not supported.
    #[error("GGUF version {version} is not supported (2 and 3 are): convert the file anew")]
    Version {
        /// The version.
        version: u32,
    },
    /// A big-endian file.
    #[error("the file is big-endian; only little-endian files are supported")]
    BigEndian,
    /// The file ends too early.
    #[error("the file ends here: {needed} needed, {available} left (is it truncated?)")]
    Truncated {
        /// Bytes needed at this place.
        needed: Bytes,
        /// Bytes left.
        available: Bytes,
    },
    /// A count or length above its named limit.
    #[error("{what} {found} exceeds the limit of {limit}")]
    Limit {
        /// What was counted.
        what: &'static str,
        /// The file's claim.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A value type number that does not exist.
    #[error("there is no metadata value type {number}")]
    ValueType {
        /// The number.
        number: u32,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("a boolean has the value {value}, neither 0 nor 1")]
    Bool {
        /// The byte.
        value: u8,
    },
    /// Text that is not UTF-8.
    #[error("the text is not UTF-8 (byte {valid_up_to} of it is wrong)")]
    Utf8 {
        /// Bytes that are fine.
        valid_up_to: usize,
    },
    /// The same key or tensor name twice.
    #[error("it occurs twice")]
    Duplicate,
    /// An alignment that is no power of two or is too large.
    #[error("the alignment {value} is not a power of two up to the limit of {limit}")]
    Alignment {
        /// The value.
        value: u64,
        /// The largest alignment.
        limit: u64,
    },
    /// A tensor whose data does not begin at a multiple of the alignment.
    #[error("its data offset {offset} is not a multiple of the alignment {alignment}")]
    Misaligned {
        /// Offset in the data section.
        offset: u64,
        /// The alignment.
        alignment: u64,
    },
    /// A tensor whose size overflows or whose rows are no whole number of blocks.
    #[error("its extents {extents:?} do not make a valid size for its type {dtype}")]
    Extents {
        /// Extents, innermost first.
        extents: Vec<u64>,
        /// Name of the type.
        dtype: &'static str,
    },
    /// A tensor that ends past the end of the file.
    #[error("its data ends at byte {end} of the file, which has {size} bytes (is it truncated?)")]
    OutOfFile {
        /// End of the data in the file.
        end: u64,
        /// Size of the file.
        size: u64,
    },
    /// Two tensors share bytes.
    #[error("its data shares bytes with tensor `{other}`")]
    Overlap {
        /// The other tensor.
        other: Box<str>,
    },
    /// A tensor of a type that this version does not know.
    #[error("its type number {number} is unknown: the tensor can be listed, but not sized or read")]
    TensorType {
        /// The number.
        number: u32,
    },
    /// The file holds no tensor data.
    #[error("the file holds a header only: it can be planned with, but there is no data to load")]
    HeaderOnly,
    /// A required key or tensor is missing.
    #[error("it is missing")]
    Missing,
    /// A value of another type, or out of range.
    #[error("{expected} expected, but it is {found}")]
    WrongType {
        /// What was asked for.
        expected: &'static str,
        /// What stands there.
        found: String,
    },
    /// A value that makes no sense.
    #[error("{reason}")]
    BadValue {
        /// Why.
        reason: String,
    },
    /// A split file that is not the one expected.
    #[error(
        "this file says it is number {found} of {found_count}, but number {expected} of {expected_count} is needed"
    )]
    ShardNumber {
        /// Its own number, from 0.
        found: u64,
        /// Its own count.
        found_count: u64,
        /// The number needed, from 0.
        expected: u64,
        /// The count needed.
        expected_count: u64,
    },
    /// Files of a split model are missing.
    #[error("{expected} files make up the model, {found} were given")]
    ShardCount {
        /// Files that the first one names.
        expected: u64,
        /// Files given.
        found: u64,
    },
    /// Other tensors than announced.
    #[error("the files hold {found} tensors together, but {expected} are announced")]
    TensorCount {
        /// Tensors announced.
        expected: u64,
        /// Tensors found.
        found: u64,
    },
}

/// Why a model could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file could not be read.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not usable.
    #[error("{path}: {source}", path = path.display())]
    Gguf {
        /// The file (the first of a split model).
        path: PathBuf,
        /// Where and why.
        source: GgufError,
    },
    /// A file of a split model whose name does not say so: the others cannot be found.
    #[error("{path}: the file belongs to a split model of {count}, so its name must end in -00001-of-{count:05}.gguf", path = path.display())]
    ShardName {
        /// The file.
        path: PathBuf,
        /// Number of files.
        count: u64,
    },
}

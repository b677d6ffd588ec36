//! Named limits on everything a GGUF file counts. A file may not claim more than its own bytes can hold either, so the
//! memory that a header takes is a small multiple of the file's size and below these caps.

use loadmaster_graph::Bytes;

/// Most metadata pairs of one file.
pub const MAX_METADATA: u64 = 1 << 16;
/// Most tensors of one file, and of a model over all its files.
pub const MAX_TENSORS: u64 = 1 << 18;
/// Longest metadata key in bytes (the format's own limit).
pub const MAX_KEY_LEN: u64 = (1 << 16) - 1;
/// Longest tensor name in bytes.
pub const MAX_TENSOR_NAME_LEN: u64 = loadmaster_graph::limits::MAX_NAME_LEN as u64;
/// Longest string value in bytes.
pub const MAX_STRING_LEN: u64 = 64 << 20;
/// Most elements of one array.
pub const MAX_ARRAY_LEN: u64 = 1 << 26;
/// Deepest nesting of arrays in arrays.
pub const MAX_NESTING: u32 = 4;
/// Most dimensions of a tensor.
pub const MAX_DIMS: u32 = loadmaster_graph::tensor::DIMS as u32;
/// Largest alignment of the data section.
pub const MAX_ALIGNMENT: Bytes = Bytes(1 << 20);
/// Most files of a split model.
pub const MAX_SHARDS: u64 = 1 << 12;
/// Alignment where the file does not give one.
pub const DEFAULT_ALIGNMENT: u64 = 32;

//! Named limits on what is read from files and built by callers.

/// Most tensors of a graph.
pub const MAX_TENSORS: usize = 1 << 24;
/// Most sources of a tensor.
pub const MAX_SOURCES: usize = 64;
/// Most 32-bit words of operation parameters.
pub const MAX_OP_PARAMS: usize = 64;
/// Longest name in bytes.
pub const MAX_NAME_LEN: usize = 1024;
/// Most bytes, and most elements, of a tensor (ggml's counts are signed 64-bit numbers).
pub const MAX_TENSOR_SIZE: u64 = i64::MAX as u64;
/// Longest graph file in bytes, after decompression.
pub const MAX_FILE_BYTES: usize = 128 << 20;
/// Deepest nesting of objects and arrays in a graph file. The format itself nests six deep.
pub const MAX_NESTING: usize = 16;
/// Most devices of a graph file.
pub const MAX_DEVICES: usize = 1 << 12;
/// Most buffers of a graph file.
pub const MAX_BUFFERS: usize = 1 << 16;
/// Most pipeline copies.
pub const MAX_COPIES: usize = 1 << 10;
/// Most entries of a list that a scheduler makes: splits, inputs of a split, nodes and leafs for the allocator.
pub const MAX_LIST_LEN: usize = 1 << 24;

/// The limits under which a graph file is read. The default is the constants of this module; a service that reads
/// files of strangers may set lower ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadLimits {
    /// Bytes of the file, after decompression.
    pub file_bytes: usize,
    /// Depth of nested objects and arrays.
    pub nesting: usize,
    /// Tensors.
    pub tensors: usize,
    /// Sources of a tensor.
    pub sources: usize,
    /// Parameter words of a tensor.
    pub op_params: usize,
    /// Bytes of a name.
    pub name_len: usize,
    /// Devices.
    pub devices: usize,
    /// Buffers.
    pub buffers: usize,
    /// Pipeline copies.
    pub copies: usize,
    /// Entries of any other list.
    pub list_len: usize,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            file_bytes: MAX_FILE_BYTES,
            nesting: MAX_NESTING,
            tensors: MAX_TENSORS,
            sources: MAX_SOURCES,
            op_params: MAX_OP_PARAMS,
            name_len: MAX_NAME_LEN,
            devices: MAX_DEVICES,
            buffers: MAX_BUFFERS,
            copies: MAX_COPIES,
            list_len: MAX_LIST_LEN,
        }
    }
}

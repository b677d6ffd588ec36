//! Named limits on what is read from files and built by callers.

/// Most tensors of a graph.
pub const MAX_TENSORS: usize = 1 << 24;
/// Most sources of a tensor.
pub const MAX_SOURCES: usize = 64;
/// Most 32-bit words of operation parameters.
pub const MAX_OP_PARAMS: usize = 64;
/// Longest name in bytes.
pub const MAX_NAME_LEN: usize = 1024;

//! Files that users name: read up to a limit, whatever length the file system tells.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Why a text cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file system refused, or the bytes are not UTF-8.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is longer than the limit.
    #[error("{found} bytes exceed the limit of {limit}")]
    TooLong {
        /// Bytes that it has at least.
        found: u64,
        /// Bytes allowed.
        limit: u64,
    },
}

/// The text of a file of at most `limit` bytes; no more than one byte beyond is read. Errors: as [`ReadError`] says.
pub fn read_text(path: &Path, limit: u64) -> Result<String, ReadError> {
    let file = File::open(path)?;
    let found = file.metadata()?.len();
    if found > limit {
        return Err(ReadError::TooLong { found, limit });
    }
    let mut text = String::new();
    // Devices and pipes tell no length.
    let found = file.take(limit.saturating_add(1)).read_to_string(&mut text)? as u64;
    if found > limit { Err(ReadError::TooLong { found, limit }) } else { Ok(text) }
}

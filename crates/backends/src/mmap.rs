//! Memory-mapped files.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

struct Mapped(memmap2::Mmap);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Maps a file into memory, read-only. Pages are read when they are touched.
///
/// Whoever changes or truncates the file while it is mapped changes these bytes, or ends the process: model files are
/// not to be written in place.
pub fn mmap(path: &Path) -> io::Result<Arc<dyn AsRef<[u8]> + Send + Sync>> {
    let file = File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // SAFETY: the map is read-only and lives as long as the value that owns it. Another process could still write to
    // the file and change the bytes under us; no program can prevent that for a shared file, so it is part of this
    // function's contract (above) that model files are not written in place.
    let map = unsafe { memmap2::Mmap::map(&file)? };
    Ok(Arc::new(Mapped(map)))
}

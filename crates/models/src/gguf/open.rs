//! Opens a model by path, with the sibling files of a split model.

use super::error::OpenError;
use super::model::Gguf;
use crate::SharedBytes;
use std::io;
use std::path::{Path, PathBuf};

impl Gguf {
    /// Opens the model at `path`; of a split model any of its files may be named. `read` gives the bytes of a file:
    /// a memory map in programs, a vector in tests.
    pub fn open(path: &Path, mut read: impl FnMut(&Path) -> io::Result<SharedBytes>) -> Result<Self, OpenError> {
        let mut get = |path: &Path| read(path).map_err(|source| OpenError::Io { path: path.into(), source });
        let bad = |source| OpenError::Gguf { path: path.into(), source };
        let named = get(path)?;
        let count = Self::shard_count((*named).as_ref()).map_err(bad)?;
        if count == 1 {
            return Self::from_bytes(named).map_err(bad);
        }
        let paths = shard_paths(path, count).ok_or_else(|| OpenError::ShardName { path: path.into(), count })?;
        let files = paths.iter().map(|p| get(p)).collect::<Result<Vec<_>, _>>()?;
        Self::from_shards(files).map_err(bad)
    }
}

/// The names `PREFIX-00001-of-0000N.gguf` … of all files, given one of them.
fn shard_paths(path: &Path, count: u64) -> Option<Vec<PathBuf>> {
    let name = path.file_name()?.to_str()?;
    let stem = name.strip_suffix(&format!("-of-{count:05}.gguf"))?;
    let (prefix, number) = stem.rsplit_once('-')?;
    if number.len() != 5 || !number.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some((1..=count).map(|n| path.with_file_name(format!("{prefix}-{n:05}-of-{count:05}.gguf"))).collect())
}

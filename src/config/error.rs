//! What can be wrong with a machine file.

use loadmaster_sched::machine::{MachineError, SizeError};
use std::path::{Path, PathBuf};

/// Why a machine file cannot be used. Every variant says where.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The refusal.
        source: std::io::Error,
    },
    /// Not TOML, or a key that the schema does not have.
    #[error("{why}")]
    Syntax {
        /// What the parser says, with line and column.
        why: String,
    },
    /// More of something than its named limit.
    #[error("{what}: {found} exceeds the limit of {limit}")]
    Limit {
        /// What was counted.
        what: &'static str,
        /// How many there are.
        found: u64,
        /// How many there may be.
        limit: u64,
    },
    /// A size that cannot be read.
    #[error("{place}: {source}")]
    Size {
        /// Where it stands.
        place: String,
        /// What is wrong with it.
        source: SizeError,
    },
    /// A reference to something that is not there.
    #[error("{place}: there is no {what} `{name}`; there are {known}")]
    UnknownName {
        /// Where it stands.
        place: String,
        /// What it should name.
        what: &'static str,
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// An alignment that is no power of two.
    #[error("{place}: an alignment of {found} is no power of two")]
    Alignment {
        /// Where it stands.
        place: String,
        /// The number.
        found: u64,
    },
    /// A driver that cannot drive such a device.
    #[error("{place}: driver `{driver}` {why}")]
    Driver {
        /// Where it stands.
        place: String,
        /// The driver.
        driver: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A speed that nothing has.
    #[error("{place}: a speed of {found} makes no sense; write a number above 0 and up to {limit:e}")]
    Speed {
        /// Where it stands.
        place: String,
        /// The number.
        found: f64,
        /// The largest allowed.
        limit: f64,
    },
    /// A description of a GPU that none has.
    #[error(
        "{place}: {found} describes no GPU; write arch and multiprocessors of a gpu together, both from 1 to {limit}"
    )]
    Gpu {
        /// Where it stands.
        place: String,
        /// A number of it.
        found: u32,
        /// The largest allowed.
        limit: u32,
    },
    /// The parts contradict each other.
    #[error("{0}")]
    Machine(#[from] MachineError),
    /// One of the above, in a file.
    #[error("{path}: {source}", path = path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: Box<ConfigError>,
    },
}

impl ConfigError {
    /// The same with the file's path.
    pub(super) fn at(self, path: &Path) -> Self {
        Self::InFile { path: path.to_owned(), source: Box::new(self) }
    }
}

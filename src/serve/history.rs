//! What devices held, at every change.

use loadmaster_graph::Bytes;
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Entries that are kept.
const KEPT: usize = 256;

/// What devices held after a change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Microseconds since the service began.
    pub at_us: u64,
    /// Which change it was, from 1.
    pub version: u64,
    /// What changed.
    pub cause: String,
    /// Bytes by device.
    pub used: Vec<(Box<str>, Bytes)>,
}

#[derive(Debug, Default)]
struct Inner {
    version: u64,
    kept: VecDeque<Moment>,
}

/// The last changes. A leaf lock: nothing else is locked while it is held.
#[derive(Debug, Default)]
pub struct History(Mutex<Inner>);

impl History {
    pub(super) fn push(&self, at_us: u64, cause: String, used: Vec<(Box<str>, Bytes)>) {
        let mut inner = self.0.lock();
        inner.version += 1;
        if inner.kept.len() == KEPT {
            inner.kept.pop_front();
        }
        let version = inner.version;
        inner.kept.push_back(Moment { at_us, version, cause, used });
    }

    /// The number of the last change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.lock().version
    }

    /// The last changes, oldest first.
    #[must_use]
    pub fn moments(&self) -> Vec<Moment> {
        self.0.lock().kept.iter().cloned().collect()
    }
}

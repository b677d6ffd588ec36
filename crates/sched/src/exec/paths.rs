//! The way that bytes take from one device's memory to another's.

use crate::machine::{LinkPath, Machine};
use loadmaster_graph::{DeviceId, IdVec};
use std::fmt;

/// How bytes go from one device to another that cannot read its memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CopyPath {
    /// Directly; also whenever one end is host memory.
    Direct,
    /// Through pinned host memory, in pieces.
    Pinned,
    /// Through pageable host memory, in pieces.
    Pageable,
}

impl fmt::Display for CopyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Direct => "direct",
            Self::Pinned => "staged, pinned",
            Self::Pageable => "staged, pageable",
        })
    }
}

/// A path for every ordered pair of devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathTable {
    paths: IdVec<DeviceId, IdVec<DeviceId, CopyPath>>,
}

impl PathTable {
    /// The same path for all pairs.
    #[must_use]
    pub fn all(devices: usize, path: CopyPath) -> Self {
        Self { paths: IdVec::filled(IdVec::filled(path, devices), devices) }
    }
    /// What the paths of a machine are if its description is true: those of its links, and direct ones where it names
    /// none. Which is taken is decided when the devices are there and each path has been tested.
    #[must_use]
    pub fn expected(machine: &Machine) -> Self {
        let mut paths = Self::all(machine.devices().len(), CopyPath::Direct);
        for from in machine.devices().ids() {
            for to in machine.devices().ids() {
                if !reaches(machine, from, to) {
                    paths.set(from, to, CopyPath::Pinned);
                }
            }
        }
        paths
    }
    /// The path of a pair; devices that the table does not know reach each other directly.
    #[must_use]
    pub fn get(&self, from: DeviceId, to: DeviceId) -> CopyPath {
        self.paths.get(from).and_then(|row| row.get(to)).copied().unwrap_or(CopyPath::Direct)
    }
    /// Sets the path of a pair of devices that the table knows.
    pub fn set(&mut self, from: DeviceId, to: DeviceId, path: CopyPath) {
        if from.index() < self.paths.len() && to.index() < self.paths.len() {
            self.paths[from][to] = path;
        }
    }
}

/// Whether a machine's description has bytes go directly from a device to another, which is so where it says nothing.
/// (GPUs have pinned memory, so that pageable memory is a last resort and never planned for.)
pub(super) fn reaches(machine: &Machine, from: DeviceId, to: DeviceId) -> bool {
    let both_gpus = [from, to].iter().all(|&d| machine.device(d).kind == crate::machine::DeviceKind::Gpu);
    let is_direct = |path: LinkPath| matches!(path, LinkPath::Peer | LinkPath::Shared);
    !both_gpus || machine.link(from, to).is_none_or(|link| is_direct(link.path))
}

/// Why two devices copy as they do.
#[derive(Clone, PartialEq, Debug)]
pub struct PathReport {
    /// Where bytes come from.
    pub from: DeviceId,
    /// Where they go.
    pub to: DeviceId,
    /// The path that is taken.
    pub path: CopyPath,
    /// Why not a better one, or that its test passed.
    pub why: String,
    /// Bytes a second that the test reached; `None` where nothing could be measured.
    pub bandwidth: Option<f64>,
}

impl fmt::Display for PathReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}: {} ({})", self.from, self.to, self.path, self.why)
    }
}

//! A hash of what a plan depends on: the structure of a graph, without its names.
//!
//! Two graphs with equal hashes get equal plans from equal machines. The hash is XXH3-128 with its default seed over
//! little-endian 64-bit words, so it is the same on every platform and in every run of one version of this crate (a new
//! operation may renumber others). It is no defence against somebody who constructs collisions.
//!
//! Words of a graph: the number of tensors; for each tensor a head (operation, type, flags, number of sources and of
//! parameters, whether it is a view), `ne`, `nb`, root and offset of a view, sources and parameters two to a word; then
//! nodes and leafs. Lists carry their lengths, so no two structures give the same words.

use crate::graph::Graph;
use crate::id::{Id, IdVec, LeafId, NodeId, TensorId};
use crate::tensor::Tensor;
use std::fmt;
use xxhash_rust::xxh3::Xxh3Default;

/// 128 bits that stand for a structure. Prints as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StructuralHash(u128);

impl StructuralHash {
    /// The bits.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }

    /// A hasher that has seen this hash: mix in placements, a copy index, a policy.
    #[must_use]
    pub fn extend(self) -> StructuralHasher {
        let mut hasher = StructuralHasher::new();
        hasher.hash(self);
        hasher
    }
}

impl fmt::Display for StructuralHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StructuralHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Bytes gathered before they are mixed: one call for many words.
const BUFFER: usize = 2048;

/// Builds a [`StructuralHash`] word by word. What is mixed in, and in which order, is up to the caller; a list must
/// be preceded by its length ([`Self::ids`] does so).
pub struct StructuralHasher {
    state: Xxh3Default,
    buffer: [u8; BUFFER],
    len: usize,
}

impl StructuralHasher {
    /// A hasher that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self { state: Xxh3Default::new(), buffer: [0; BUFFER], len: 0 }
    }

    /// Mixes in a word.
    #[inline]
    pub fn word(&mut self, word: u64) {
        if self.len == BUFFER {
            self.flush();
        }
        self.buffer[self.len..self.len + 8].copy_from_slice(&word.to_le_bytes());
        self.len += 8;
    }

    /// Mixes in another hash.
    pub fn hash(&mut self, hash: StructuralHash) {
        self.word(hash.0 as u64);
        self.word((hash.0 >> 64) as u64);
    }

    /// Mixes in a list of ids with its length.
    pub fn ids<K: Id>(&mut self, ids: &[K]) {
        self.word(ids.len() as u64);
        self.halves(ids, |id| id.index() as u32);
    }

    /// Mixes in a list of ids with holes, with its length.
    pub fn optional_ids<K: Id>(&mut self, ids: &[Option<K>]) {
        self.word(ids.len() as u64);
        self.halves(ids, optional);
    }

    /// Items two to a word. The number of items must be known from earlier words.
    #[inline]
    fn halves<T: Copy>(&mut self, items: &[T], half: impl Fn(T) -> u32) {
        let (pairs, rest) = items.as_chunks::<2>();
        for &[low, high] in pairs {
            self.word(u64::from(half(low)) | u64::from(half(high)) << 32);
        }
        for &last in rest {
            self.word(u64::from(half(last)));
        }
    }

    #[inline]
    fn tensor(&mut self, tensor: &Tensor) {
        // Each part fits its field: limits cap sources and parameters at 64, the others are bytes.
        let head = tensor.op as u64
            | u64::from(tensor.dtype.number()) << 8
            | u64::from(tensor.flags.bits()) << 16
            | (tensor.src.len() as u64) << 24
            | (tensor.params.len() as u64) << 32
            | u64::from(tensor.is_view()) << 40;
        self.word(head);
        tensor.ne.iter().chain(&tensor.nb).for_each(|&n| self.word(n));
        if let Some(view) = tensor.view {
            self.word(view.root.index() as u64);
            self.word(view.offset.get());
        }
        self.halves(&tensor.src, optional);
        self.halves(&tensor.params, |word| word);
    }

    #[cold]
    fn flush(&mut self) {
        self.state.update(&self.buffer[..self.len]);
        self.len = 0;
    }

    /// The hash of everything seen.
    #[must_use]
    pub fn finish(mut self) -> StructuralHash {
        self.flush();
        StructuralHash(self.state.digest128())
    }
}

impl Default for StructuralHasher {
    fn default() -> Self {
        Self::new()
    }
}

/// Ids are below 2³² − 1, so that the hole has a number of its own.
#[inline]
fn optional<K: Id>(id: Option<K>) -> u32 {
    id.map_or(0, |id| id.index() as u32 + 1)
}

/// The hash of a graph, computed anew; [`Graph::structural_hash`] has it ready. O(tensors + sources).
#[must_use]
pub fn of(graph: &Graph) -> StructuralHash {
    of_parts(graph.tensors(), graph.nodes(), graph.leafs())
}

pub(crate) fn of_parts(
    tensors: &IdVec<TensorId, Tensor>,
    nodes: &IdVec<NodeId, TensorId>,
    leafs: &IdVec<LeafId, TensorId>,
) -> StructuralHash {
    let mut hasher = StructuralHasher::new();
    hasher.word(tensors.len() as u64);
    tensors.values().for_each(|tensor| hasher.tensor(tensor));
    hasher.ids(nodes.as_slice());
    hasher.ids(leafs.as_slice());
    hasher.finish()
}

//! Structural keys: what tells one lowered graph from another, as far as memory is concerned.

use loadmaster_graph::Graph;

/// A structural hash, never a count: 128 bits of the graph below ([`Graph::structural_hash`]) and 128 bits over
/// everything that was laid over it (memory, copies, keep nodes, sources, flags, order). Graphs with equal keys have equal
/// plans. The same overlay built by other steps may have another key; it is then compared, not looked up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GraphKey {
    graph: u128,
    overlay: u128,
}

impl GraphKey {
    /// Whether both overlays were built by the same steps, whatever the graphs below.
    #[must_use]
    pub fn same_overlay(self, other: Self) -> bool {
        self.overlay == other.overlay
    }
}

/// The steps that build an overlay, hashed as they happen: two folded-multiply chains over the same words with
/// different constants. Not for keys from an adversary.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    a: u64,
    b: u64,
}

/// A kind of step.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
pub(crate) enum Did {
    SeeMemory,
    AddCopy,
    AddKeep,
    SetSource,
    SetFlags,
    PushNode,
    PushLeaf,
    PushOwnLists,
    AddGroup,
}

/// Digits of pi.
const PI: [u64; 4] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

impl Steps {
    pub(crate) const fn new() -> Self {
        Self { a: PI[0], b: PI[1] }
    }

    /// Mixes in a step. `x` is below 2⁵⁶.
    #[inline]
    pub(crate) fn add(&mut self, did: Did, x: u64, y: u64) {
        let x = x | (did as u64) << 56;
        self.a = fold(self.a ^ x ^ PI[2], y ^ PI[3]);
        self.b = fold(self.b ^ y ^ PI[3], x ^ PI[2]).wrapping_add(y.rotate_left(29) ^ x);
    }

    pub(crate) fn key(self, graph: &Graph) -> GraphKey {
        let a = fold(self.a ^ PI[1], self.b ^ PI[2]);
        let b = fold(self.b ^ PI[0], self.a ^ PI[3]);
        GraphKey { graph: graph.structural_hash().get(), overlay: u128::from(a) << 64 | u128::from(b) }
    }
}

#[inline]
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    (product as u64) ^ (product >> 64) as u64
}

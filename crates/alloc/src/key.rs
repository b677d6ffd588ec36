//! Structural keys: what tells one lowered graph from another, as far as memory is concerned.

use crate::lowered::{AllocGraph, Item, ItemId, Origin};
use loadmaster_graph::Tensor;

/// A structural hash, never a count: 128 bits over operations, flags, sources, views, copies and the order of nodes and
/// leafs, and 128 bits over types, extents and strides. Two graphs with equal keys have equal plans.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GraphKey {
    structure: u128,
    sizes: u128,
}

impl GraphKey {
    pub(crate) fn of(graph: &AllocGraph<'_>) -> Self {
        Self { structure: structure_of(graph), sizes: sizes_of(graph) }
    }

    /// Whether both graphs have the same structure, whatever their sizes.
    #[must_use]
    pub fn same_structure(self, other: Self) -> bool {
        self.structure == other.structure
    }
}

fn structure_of(graph: &AllocGraph<'_>) -> u128 {
    let structure = graph.structure();
    let mut lanes = Lanes::new(0);
    lanes.add(structure.items.len() as u64, structure.nodes.len() as u64);
    lanes.add(structure.leafs.len() as u64, structure.sources.len() as u64);
    for (i, item) in structure.items.iter().enumerate() {
        add_item(&mut lanes, i, item);
    }
    add_ids(&mut lanes, structure.sources.iter().map(|s| s.map_or(0, packed)));
    add_ids(&mut lanes, structure.nodes.iter().copied().map(packed));
    add_ids(&mut lanes, structure.leafs.iter().copied().map(packed));
    lanes.finish()
}

fn add_item(lanes: &mut Lanes, index: usize, item: &Item) {
    let root = item.root.map_or(0, packed);
    let bits = u64::from(item.op as u8) | u64::from(item.flags.bits()) << 8 | u64::from(item.has_memory) << 16;
    let head = root << 32 | u64::from(item.source_count()) << 17 | bits;
    match item.origin {
        Origin::Tensor(t) if t.index() == index => lanes.add(head, 0),
        Origin::Tensor(t) => lanes.add(head, 1 | (t.index() as u64) << 2),
        Origin::Keep(t) => lanes.add(head, 2 | (t.index() as u64) << 2),
        Origin::Copy { of, device, copy } => {
            lanes.add(head, 3 | (of.index() as u64) << 2);
            lanes.add(device.index() as u64, u64::from(copy));
        }
    }
}

fn packed(id: ItemId) -> u64 {
    id.index() as u64 + 1
}

/// Two 32-bit ids a word, two words a step.
fn add_ids(lanes: &mut Lanes, mut ids: impl Iterator<Item = u64>) {
    while let Some(first) = ids.next() {
        let mut next = || ids.next().unwrap_or(0);
        let (second, third, fourth) = (next(), next(), next());
        lanes.add(first | second << 32, third | fourth << 32);
    }
}

fn sizes_of(graph: &AllocGraph<'_>) -> u128 {
    let mut lanes = Lanes::new(1);
    for tensor in graph.graph().tensors().values() {
        add_tensor(&mut lanes, tensor);
    }
    lanes.finish()
}

/// Where a view begins matters to an allocator only as far as "at its root's first byte".
fn add_tensor(lanes: &mut Lanes, t: &Tensor) {
    let at_start = t.view.is_none_or(|v| v.offset.get() == 0);
    lanes.add(u64::from(t.dtype.number()), u64::from(at_start));
    lanes.add(t.ne[0], t.nb[0]);
    lanes.add(t.ne[1], t.nb[1]);
    lanes.add(t.ne[2], t.nb[2]);
    lanes.add(t.ne[3], t.nb[3]);
}

/// Two folded-multiply chains over the same words with different constants. Not for keys from an adversary.
struct Lanes {
    a: u64,
    b: u64,
}

/// Digits of pi.
const PI: [u64; 4] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344, 0xa409_3822_299f_31d0, 0x082e_fa98_ec4e_6c89];

impl Lanes {
    const fn new(seed: u64) -> Self {
        Self { a: PI[0] ^ seed, b: PI[1] ^ seed }
    }

    #[inline]
    fn add(&mut self, x: u64, y: u64) {
        self.a = fold(self.a ^ x ^ PI[2], y ^ PI[3]);
        self.b = fold(self.b ^ y ^ PI[3], x ^ PI[2]).wrapping_add(y.rotate_left(29) ^ x);
    }

    fn finish(self) -> u128 {
        let a = fold(self.a ^ PI[1], self.b ^ PI[2]);
        let b = fold(self.b ^ PI[0], self.a ^ PI[3]);
        u128::from(a) << 64 | u128::from(b)
    }
}

#[inline]
fn fold(x: u64, y: u64) -> u64 {
    let product = u128::from(x) * u128::from(y);
    (product as u64) ^ (product >> 64) as u64
}

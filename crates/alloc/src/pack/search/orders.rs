//! Static orders: which of the items at the same lowest offset comes first.

use super::instance::Instance;
use std::cmp::Reverse;
use std::ops::Range;

/// A key by which the larger comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Key {
    /// Largest sum of sizes at a step the item crosses, then lifetime.
    Load,
    /// Size times lifetime.
    Area,
    /// Lifetime, then size.
    Lifetime,
    /// Sum of the loads of the steps it crosses.
    Total,
    /// Number of items it meets, then lifetime.
    Degree,
}

/// A static order, and what equal and interchangeable items make of it.
pub(in super::super) struct Order {
    /// By item; the lower comes first.
    pub rank: Vec<u32>,
    links: Vec<Links>,
    stack_members: Vec<u32>,
}

#[derive(Clone, Default)]
struct Links {
    twin_below: Option<u32>,
    twin_above: Option<u32>,
    /// Range of `stack_members`.
    stack_before: Range<u32>,
}

impl Order {
    /// From all items in their order.
    pub fn of_sorted(instance: &Instance, order: &[u32]) -> Self {
        let mut rank = vec![0; order.len()];
        for (r, &i) in (0..).zip(order) {
            rank[i as usize] = r;
        }
        let mut links = vec![Links::default(); order.len()];
        link_twins(instance, order, &mut links);
        let stack_members = link_stacks(instance, order, &mut links);
        Self { rank, links, stack_members }
    }

    /// The nearest equal item that must not lie above this one.
    #[inline]
    pub fn twin_below(&self, item: u32) -> Option<u32> {
        self.links[item as usize].twin_below
    }
    /// The nearest equal item that must not lie below this one.
    #[inline]
    pub fn twin_above(&self, item: u32) -> Option<u32> {
        self.links[item as usize].twin_above
    }
    /// Items with the same lifetime that come before this one.
    #[inline]
    pub fn stack_before(&self, item: u32) -> &[u32] {
        let range = &self.links[item as usize].stack_before;
        &self.stack_members[range.start as usize..range.end as usize]
    }
}

/// Links free items that are equal in all that matters, in their order.
fn link_twins(instance: &Instance, order: &[u32], links: &mut [Links]) {
    let mut free: Vec<u32> = order.iter().copied().filter(|&i| instance.items[i as usize].fixed.is_none()).collect();
    let key = |i: u32| {
        let item = &instance.items[i as usize];
        (item.first, item.last, item.size, item.align)
    };
    // Stable: equals stay in their order.
    free.sort_by_key(|&i| key(i));
    for pair in free.windows(2) {
        if key(pair[0]) == key(pair[1]) {
            links[pair[1] as usize].twin_below = Some(pair[0]);
            links[pair[0] as usize].twin_above = Some(pair[1]);
        }
    }
}

/// Groups free items with the same lifetime and alignment whose sizes fill it, in their order.
fn link_stacks(instance: &Instance, order: &[u32], links: &mut [Links]) -> Vec<u32> {
    let fits = |i: &u32| {
        let item = &instance.items[*i as usize];
        item.fixed.is_none() && item.size.is_multiple_of(item.align)
    };
    let key = |i: u32| {
        let item = &instance.items[i as usize];
        (item.first, item.last, item.align)
    };
    let mut members: Vec<u32> = order.iter().copied().filter(fits).collect();
    members.sort_by_key(|&i| key(i));
    let mut start = 0;
    for group in members.chunk_by(|&a, &b| key(a) == key(b)) {
        for (position, &i) in (start..).zip(group) {
            links[i as usize].stack_before = start..position;
        }
        start += group.len() as u32;
    }
    members
}

/// All items by a key.
pub(in super::super) fn sorted(instance: &Instance, key: Key) -> Vec<u32> {
    let loads = instance.loads();
    let load = |i: u32| {
        let item = &instance.items[i as usize];
        loads[item.first as usize..item.last as usize].iter().copied().max().unwrap_or(0)
    };
    let value = |i: u32| {
        let item = &instance.items[i as usize];
        let lifetime = u64::from(item.lifetime);
        let area = item.size.saturating_mul(lifetime);
        match key {
            Key::Load => (load(i), lifetime, item.size),
            Key::Total => (loads[item.first as usize..item.last as usize].iter().sum(), lifetime, item.size),
            Key::Degree => (instance.neighbours.of_buffer(i).len() as u64, lifetime, item.size),
            Key::Area => (area, lifetime, item.size),
            Key::Lifetime => (lifetime, item.size, 0),
        }
    };
    let mut order: Vec<u32> = (0..instance.items.len() as u32).collect();
    order.sort_by_cached_key(|&i| (Reverse(value(i)), i));
    order
}

/// Moves items a few places, the same ones for the same seed.
pub(in super::super) struct Shuffle(u64);

impl Shuffle {
    /// No item is overtaken by one that stood this many places behind it.
    const REACH: u64 = 5;

    pub fn new(round: u64, strategy: u64) -> Self {
        Self(round.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ strategy.wrapping_mul(0xD1B5_4A32_D192_ED03))
    }

    pub fn apply(mut self, order: &mut [u32]) {
        let mut keyed: Vec<(u64, u32)> =
            (0..).zip(order.iter()).map(|(k, &i)| (k + self.below(Self::REACH), i)).collect();
        keyed.sort_by_key(|&(k, _)| k);
        for (slot, (_, i)) in order.iter_mut().zip(keyed) {
            *slot = i;
        }
    }

    /// A step of Knuth's linear congruential generator.
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

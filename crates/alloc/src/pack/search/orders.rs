//! Static orders: which of the items at the same lowest offset comes first.

use super::instance::Instance;

/// A key by which the larger comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Key {
    /// Largest sum of sizes at a step the item crosses, then lifetime.
    Load,
    /// Size times lifetime.
    Area,
    /// Lifetime, then size.
    Lifetime,
    /// Size, then lifetime.
    Size,
    /// Total load
    Total,
    /// Load then size
    LoadSize,
    /// Load then area
    LoadArea,
    /// Neighbours
    Degree,
}

impl Key {
    pub const ALL: [Self; 8] = [Self::Load, Self::Area, Self::Lifetime, Self::Size, Self::Total, Self::LoadSize, Self::LoadArea, Self::Degree];
}

/// The rank of every item.
pub(in super::super) fn ranks(instance: &Instance, key: Key) -> Vec<u32> {
    let loads = instance.loads();
    let mut order: Vec<u32> = (0..instance.items.len() as u32).collect();
    let value = |i: u32| {
        let item = &instance.items[i as usize];
        let lifetime = u64::from(item.lifetime);
        match key {
            Key::Load => {
                let load = loads[item.first as usize..item.last as usize].iter().copied().max();
                (load.unwrap_or(0), lifetime, item.size)
            }
            Key::LoadSize => {
                let load = loads[item.first as usize..item.last as usize].iter().copied().max();
                (load.unwrap_or(0), item.size, lifetime)
            }
            Key::LoadArea => {
                let load = loads[item.first as usize..item.last as usize].iter().copied().max();
                (load.unwrap_or(0), item.size*lifetime, lifetime)
            }
            Key::Total => (loads[item.first as usize..item.last as usize].iter().sum(), lifetime, item.size),
            Key::Degree => (instance.neighbours.of_buffer(i).len() as u64, lifetime, item.size),
            Key::Area => (item.size.saturating_mul(lifetime), lifetime, item.size),
            Key::Lifetime => (lifetime, item.size, 0),
            Key::Size => (item.size, lifetime, 0),
        }
    };
    order.sort_by_cached_key(|&i| (std::cmp::Reverse(value(i)), i));
    let mut ranks = vec![0; order.len()];
    for (rank, &i) in (0..).zip(&order) {
        ranks[i as usize] = rank;
    }
    ranks
}

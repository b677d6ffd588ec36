//! Skyline: always the buffer whose lowest free offset is lowest.

use super::error::PackError;
use super::neighbours::Neighbours;
use super::prepared::Live;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Which of the buffers with the same lowest offset comes first; the larger key does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SkylineKey {
    /// Largest load of a step that it crosses, then lifetime.
    Load,
    /// Lifetime, then size.
    Lifetime,
    /// Sum of the loads of the steps that it crosses, then size.
    TotalLoad,
    /// Size times lifetime.
    Area,
}

impl SkylineKey {
    pub const ALL: [Self; 4] = [Self::Load, Self::Lifetime, Self::TotalLoad, Self::Area];

    fn of(self, b: &Live, loads: &[u64]) -> (u64, u64) {
        let crossed = &loads[b.first as usize..b.last as usize];
        let lifetime = u64::from(b.lifetime);
        match self {
            Self::Load => (crossed.iter().copied().max().unwrap_or(0), lifetime),
            Self::Lifetime => (lifetime, b.size),
            Self::TotalLoad => (crossed.iter().fold(0, |sum, &l| sum.saturating_add(l)), b.size),
            Self::Area => (b.size.saturating_mul(lifetime), lifetime),
        }
    }
}

/// Offsets by position. Every buffer lies on the highest end of those it meets that were placed before. O(pairs log n).
pub(super) fn skyline(
    live: &[Live],
    neighbours: &Neighbours,
    loads: &[u64],
    key: SkylineKey,
) -> Result<Vec<u64>, PackError> {
    let mut order: Vec<u32> = (0..live.len() as u32).collect();
    order.sort_by_cached_key(|&i| (Reverse(key.of(&live[i as usize], loads)), i));
    let mut low: Vec<u64> = live.iter().map(|b| b.fixed.unwrap_or(0)).collect();
    let mut placed = vec![false; live.len()];
    let mut rank = vec![0u32; live.len()];
    for (r, &i) in (0..).zip(&order) {
        rank[i as usize] = r;
    }
    let mut heap: BinaryHeap<Reverse<(u64, u32, u32)>> =
        (0..live.len() as u32).map(|i| Reverse((low[i as usize], rank[i as usize], i))).collect();
    while let Some(Reverse((offset, _, i))) = heap.pop() {
        let (at, b) = (i as usize, &live[i as usize]);
        if placed[at] || offset != low[at] {
            continue;
        }
        let overflow = PackError::OffsetOverflow { buffer: b.id };
        let end = offset.checked_add(b.size).ok_or(overflow.clone())?;
        if let Some(floor) = blocking_end(i, end, live, neighbours, &placed) {
            low[at] = b.end_at(floor).ok_or(overflow)?.0;
            heap.push(Reverse((low[at], rank[at], i)));
            continue;
        }
        placed[at] = true;
        for &n in neighbours.of_buffer(i) {
            let (other, y) = (&live[n as usize], n as usize);
            if placed[y] || other.fixed.is_some() || low[y] >= end {
                continue;
            }
            low[y] = other.end_at(end).ok_or(PackError::OffsetOverflow { buffer: other.id })?.0;
            heap.push(Reverse((low[y], rank[y], n)));
        }
    }
    Ok(low)
}

/// The end of a fixed buffer, not passed yet, that a free one would run into.
fn blocking_end(i: u32, end: u64, live: &[Live], neighbours: &Neighbours, placed: &[bool]) -> Option<u64> {
    if live[i as usize].fixed.is_some() {
        return None;
    }
    let ahead = neighbours.of_buffer(i).iter().filter(|&&n| !placed[n as usize]);
    ahead.filter_map(|&n| live[n as usize].fixed.filter(|&f| f < end).map(|f| f + live[n as usize].size)).max()
}

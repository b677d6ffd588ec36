//! Greedy placement into one chunk: an order, and for each buffer the lowest free offset or the tightest gap.

use super::error::PackError;
use super::prepared::Live;

/// For every buffer the ones it meets.
pub(super) struct Neighbours {
    starts: Vec<u32>,
    list: Vec<u32>,
}

impl Neighbours {
    /// All pairs that meet. O(n log n + pairs).
    pub fn of(live: &[Live]) -> Self {
        let mut by_birth: Vec<u32> = (0..live.len() as u32).collect();
        by_birth.sort_unstable_by_key(|&i| live[i as usize].first);
        let mut alive: Vec<u32> = Vec::new();
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        let mut starts = vec![0u32; live.len() + 1];
        for &i in &by_birth {
            let birth = live[i as usize].first;
            alive.retain(|&a| live[a as usize].last > birth);
            for &a in &alive {
                pairs.push((i, a));
                starts[a as usize] += 1;
            }
            starts[i as usize] += alive.len() as u32;
            alive.push(i);
        }
        Self::from_pairs(starts, &pairs)
    }

    /// `starts` holds the count of each.
    fn from_pairs(mut starts: Vec<u32>, pairs: &[(u32, u32)]) -> Self {
        let mut sum = 0;
        for s in &mut starts {
            sum += *s;
            *s = sum;
        }
        let mut list = vec![0u32; sum as usize];
        for &(a, b) in pairs {
            starts[a as usize] -= 1;
            list[starts[a as usize] as usize] = b;
            starts[b as usize] -= 1;
            list[starts[b as usize] as usize] = a;
        }
        Self { starts, list }
    }

    #[inline]
    pub fn of_buffer(&self, buffer: u32) -> &[u32] {
        let i = buffer as usize;
        &self.list[self.starts[i] as usize..self.starts[i + 1] as usize]
    }
}

/// Which free place a buffer takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gap {
    /// The lowest that holds it.
    Lowest,
    /// The smallest that holds it, the lower on a tie; past everything only if no gap does.
    Tightest,
}

/// Offsets by position in `live`, and the highest end.
#[derive(Clone, Debug)]
pub(super) struct Offsets {
    pub offsets: Vec<u64>,
    pub peak: u64,
}

/// Places in the given order; fixed buffers are there from the start. O(pairs log n).
pub(super) fn place_in_order(
    live: &[Live],
    neighbours: &Neighbours,
    order: &[u32],
    gap: Gap,
) -> Result<Offsets, PackError> {
    const UNPLACED: u64 = u64::MAX;
    let mut offsets: Vec<u64> = live.iter().map(|b| b.fixed.unwrap_or(UNPLACED)).collect();
    let mut peak = live.iter().filter_map(|b| b.fixed.map(|f| f + b.size)).max().unwrap_or(0);
    let mut taken: Vec<(u64, u64)> = Vec::new();
    for &i in order {
        let b = &live[i as usize];
        if b.fixed.is_some() {
            continue;
        }
        taken.clear();
        for &n in neighbours.of_buffer(i) {
            let offset = offsets[n as usize];
            if offset != UNPLACED {
                taken.push((offset, offset + live[n as usize].size));
            }
        }
        taken.sort_unstable();
        let offset = match gap {
            Gap::Lowest => choose_lowest(b, taken.iter().copied()),
            Gap::Tightest => choose_tightest(b, &taken),
        };
        let offset = offset.ok_or(PackError::OffsetOverflow { buffer: b.id })?;
        offsets[i as usize] = offset;
        peak = peak.max(offset + b.size);
    }
    Ok(Offsets { offsets, peak })
}

/// The lowest offset for `b` among the taken ranges, sorted by start; `None` if its end would overflow.
pub(super) fn choose_lowest(b: &Live, taken: impl Iterator<Item = (u64, u64)>) -> Option<u64> {
    let mut floor = 0u64;
    for (start, end) in taken {
        if start > floor && b.end_at(floor).is_some_and(|(_, e)| e <= start) {
            break;
        }
        floor = floor.max(end);
    }
    b.end_at(floor).map(|(offset, _)| offset)
}

/// The offset of the tightest gap; past everything if none holds it; `None` if its end would overflow.
fn choose_tightest(b: &Live, taken: &[(u64, u64)]) -> Option<u64> {
    let mut floor = 0u64;
    let mut best: Option<(u64, u64)> = None;
    for &(start, end) in taken {
        if start > floor
            && let Some((offset, own_end)) = b.end_at(floor)
            && own_end <= start
            && best.is_none_or(|(least, _)| start - floor < least)
        {
            best = Some((start - floor, offset));
        }
        floor = floor.max(end);
    }
    match best {
        Some((_, offset)) => Some(offset),
        None => b.end_at(floor).map(|(offset, _)| offset),
    }
}

/// Of equally large buffers, which comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tie {
    /// The earlier born, then the one given earlier.
    EarlierBirth,
    /// The later born, then the one given earlier.
    LaterBirth,
}

/// Positions from the largest to the smallest buffer.
pub(super) fn largest_first(live: &[Live], tie: Tie) -> Vec<u32> {
    let mut order: Vec<u32> = (0..live.len() as u32).collect();
    match tie {
        Tie::EarlierBirth => order.sort_unstable_by_key(|&i| {
            let b = &live[i as usize];
            (u64::MAX - b.size, b.first, i)
        }),
        Tie::LaterBirth => order.sort_unstable_by_key(|&i| {
            let b = &live[i as usize];
            (u64::MAX - b.size, u32::MAX - b.first, i)
        }),
    }
    order
}

//! A problem in the units of the search: sizes divided by their common divisor, steps reduced to maximal cliques.

use super::super::neighbours::Neighbours;
use super::super::prepared::Live;
use std::ops::Range;

/// Most pairs of items that meet, and most memberships of items in cliques.
const MAX_PAIRS: u64 = 1 << 24;

/// A buffer of the search.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Item {
    pub size: u64,
    /// Offsets are multiples of this (a power of two).
    pub align: u64,
    /// First clique.
    pub first: u32,
    /// Past the last clique.
    pub last: u32,
    /// Steps.
    pub lifetime: u32,
    pub fixed: Option<u64>,
}

impl Item {
    /// The lowest aligned offset from `floor` on.
    #[inline]
    pub fn align_up(&self, floor: u64) -> u64 {
        (floor + self.align - 1) & !(self.align - 1)
    }
}

/// Lists of items in one array.
struct Lists {
    starts: Vec<u32>,
    items: Vec<u32>,
}

/// Items by birth, and who meets whom.
pub(in super::super) struct Instance {
    pub items: Vec<Item>,
    /// By item, once more by themselves: the bound reads little else.
    pub sizes: Vec<u64>,
    /// Position in the caller's list, by item.
    pub origin: Vec<u32>,
    /// Bytes in a unit.
    pub unit: u64,
    pub neighbours: Neighbours,
    cliques: Lists,
}

impl Instance {
    /// `None` if sums of sizes do not stay far below 2⁶⁴, or more pairs meet than memory should hold.
    pub fn new(live: &[Live]) -> Option<Self> {
        if Neighbours::count(live) > MAX_PAIRS {
            return None;
        }
        let mut origin: Vec<u32> = (0..live.len() as u32).collect();
        origin.sort_unstable_by_key(|&i| (live[i as usize].first, live[i as usize].last, i));
        let unit = common_unit(live);
        let sorted: Vec<Live> = origin.iter().map(|&i| live[i as usize]).collect();
        let mut items: Vec<Item> = sorted.iter().map(|b| scaled(b, unit)).collect();
        highest_offset(&items)?;
        let neighbours = Neighbours::of(&sorted);
        reduce_to_cliques(&mut items);
        let memberships: u64 = items.iter().map(|i| u64::from(i.last - i.first)).sum();
        if memberships > MAX_PAIRS {
            return None;
        }
        let cliques = members(&items);
        let sizes = items.iter().map(|i| i.size).collect();
        Some(Self { items, sizes, origin, unit, neighbours, cliques })
    }

    pub fn clique_count(&self) -> u32 {
        self.cliques.starts.len() as u32 - 1
    }

    /// Where a clique's members stand in [`Self::members`].
    #[inline]
    pub fn clique_range(&self, clique: u32) -> Range<usize> {
        self.cliques.starts[clique as usize] as usize..self.cliques.starts[clique as usize + 1] as usize
    }

    /// The members of all cliques.
    pub fn members(&self) -> &[u32] {
        &self.cliques.items
    }

    /// Sum of sizes of each clique.
    pub fn loads(&self) -> Vec<u64> {
        let load = |c| self.members()[self.clique_range(c)].iter().map(|&m| self.items[m as usize].size).sum();
        (0..self.clique_count()).map(load).collect()
    }

    /// Whether two items differ in nothing that matters, and neither is fixed.
    #[inline]
    pub fn are_equal(&self, a: u32, b: u32) -> bool {
        let (a, b) = (&self.items[a as usize], &self.items[b as usize]);
        (a.size, a.first, a.last, a.align) == (b.size, b.first, b.last, b.align)
            && a.fixed.is_none()
            && b.fixed.is_none()
    }
}

fn scaled(buffer: &Live, unit: u64) -> Item {
    Item {
        size: buffer.size / unit,
        align: (buffer.align / unit).max(1),
        first: buffer.first,
        last: buffer.last,
        lifetime: buffer.lifetime,
        fixed: buffer.fixed.map(|f| f / unit),
    }
}

/// No offset worth trying is higher; `None` if that is not far below 2⁶⁴.
fn highest_offset(items: &[Item]) -> Option<u64> {
    const FAR_BELOW: u64 = 1 << 60;
    let mut sum = 0u64;
    for item in items {
        sum = sum.checked_add(item.size)?.checked_add(item.align)?.checked_add(item.fixed.unwrap_or(0))?;
    }
    (sum <= FAR_BELOW).then_some(sum)
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The largest unit of which all offsets worth trying are multiples: it divides all sizes and fixed offsets, and every
/// alignment that the sizes do not fill.
fn common_unit(live: &[Live]) -> u64 {
    let sizes = live.iter().fold(0, |g, b| gcd(gcd(g, b.size), b.fixed.unwrap_or(0)));
    live.iter().filter(|b| sizes % b.align != 0).fold(sizes, |g, b| gcd(g, b.align)).max(1)
}

/// Drops steps whose alive set is part of the next one's: only a birth followed by a death matters.
fn reduce_to_cliques(items: &mut [Item]) {
    let steps = items.iter().map(|i| i.last).max().unwrap_or(0) as usize;
    let mut dies = vec![false; steps + 1];
    for item in items.iter() {
        dies[item.last as usize] = true;
    }
    // rank[s]: cliques that end before step s begins.
    let mut rank = vec![0u32; steps + 1];
    for step in 1..=steps {
        rank[step] = rank[step - 1] + u32::from(dies[step]);
    }
    for item in items.iter_mut() {
        item.first = rank[item.first as usize];
        item.last = rank[item.last as usize];
    }
}

fn members(items: &[Item]) -> Lists {
    let cliques = items.iter().map(|i| i.last).max().unwrap_or(0) as usize;
    let mut starts = vec![0u32; cliques + 1];
    for item in items {
        for clique in item.first..item.last {
            starts[clique as usize] += 1;
        }
    }
    let mut sum = 0;
    for s in &mut starts {
        sum += *s;
        *s = sum;
    }
    let mut list = vec![0u32; sum as usize];
    for (i, item) in (0..).zip(items) {
        for clique in item.first..item.last {
            starts[clique as usize] -= 1;
            list[starts[clique as usize] as usize] = i;
        }
    }
    Lists { starts, items: list }
}

//! The one-machine bound at each maximal clique, kept up to date as offsets rise.

use super::instance::Instance;
use super::state::Conflict;
use std::ops::Range;

/// What is unplaced at each clique, and how high it must reach.
pub(super) struct Cliques<'a> {
    instance: &'a Instance,
    capacity: u64,
    /// Sum of sizes of the unplaced.
    rest: Vec<u64>,
    /// The least end of the topmost item: what starts at an offset or later ends up above it, one on another.
    level: Vec<u64>,
    /// Members; the unplaced first, almost sorted by rising offset.
    members: Vec<u32>,
    /// How many are unplaced.
    open: Vec<u32>,
    /// Conflicts found here in this search.
    conflicts: Vec<u64>,
    /// Old levels.
    trail: Vec<(u32, u64)>,
}

impl<'a> Cliques<'a> {
    pub fn new(instance: &'a Instance) -> Self {
        let count = instance.clique_count() as usize;
        Self {
            instance,
            capacity: 0,
            rest: vec![0; count],
            level: vec![0; count],
            members: instance.members().to_vec(),
            open: vec![0; count],
            conflicts: vec![0; count],
            trail: Vec::new(),
        }
    }

    /// Nothing placed yet.
    pub fn reset(&mut self, capacity: u64, low: &[u64]) -> Result<(), Conflict> {
        self.capacity = capacity;
        self.trail.clear();
        self.conflicts.fill(0);
        self.level.fill(0);
        self.rest = self.instance.loads();
        let count = self.instance.clique_count();
        self.open = (0..count).map(|c| self.instance.clique_range(c).len() as u32).collect();
        (0..count).try_for_each(|c| self.refresh(c, u64::MAX, low))
    }

    #[inline]
    pub fn level(&self, clique: u32) -> u64 {
        self.level[clique as usize]
    }
    #[inline]
    pub fn conflicts(&self, clique: u32) -> u64 {
        self.conflicts[clique as usize]
    }

    /// The unplaced members.
    pub fn open_members(&self, clique: u32) -> &[u32] {
        &self.members[self.open_range(clique)]
    }

    #[inline]
    fn open_range(&self, clique: u32) -> Range<usize> {
        let start = self.instance.clique_range(clique).start;
        start..start + self.open[clique as usize] as usize
    }

    /// A point to rewind to. Items placed since then must be given back one by one.
    pub fn mark(&self) -> usize {
        self.trail.len()
    }

    pub fn rewind(&mut self, mark: usize) {
        for (clique, level) in self.trail.drain(mark..).rev() {
            self.level[clique as usize] = level;
        }
    }

    /// An item is placed.
    pub fn take(&mut self, item: u32) {
        let i = &self.instance.items[item as usize];
        for clique in i.first..i.last {
            let members = &mut self.members[self.instance.clique_range(clique)];
            let open = &mut members[..self.open[clique as usize] as usize];
            // It is among the lowest.
            if let Some(position) = open.iter().position(|&m| m == item) {
                open[position..].rotate_left(1);
            }
            self.open[clique as usize] -= 1;
            self.rest[clique as usize] -= i.size;
        }
    }

    /// The item that was placed last is unplaced again.
    pub fn give_back(&mut self, item: u32) {
        let i = &self.instance.items[item as usize];
        for clique in i.first..i.last {
            self.open[clique as usize] += 1;
            self.rest[clique as usize] += i.size;
        }
    }

    /// Everything unplaced in these cliques lies at `floor` or above.
    pub fn raise_within(&mut self, cliques: Range<u32>, floor: u64) -> Result<(), Conflict> {
        for clique in cliques {
            self.raise_level(clique, floor + self.rest[clique as usize])?;
        }
        Ok(())
    }

    /// Recomputes the levels that may have changed when items were raised to `top` at most.
    pub fn raised(&mut self, mut cliques: Range<u32>, top: u64, low: &[u64]) -> Result<(), Conflict> {
        cliques.try_for_each(|c| {
            let unchanged = top + self.rest[c as usize] <= self.level[c as usize];
            if unchanged { Ok(()) } else { self.refresh(c, top, low) }
        })
    }

    /// Recomputes the part of a level that comes from offsets up to `top`.
    fn refresh(&mut self, clique: u32, top: u64, low: &[u64]) -> Result<(), Conflict> {
        let range = self.open_range(clique);
        let open = &mut self.members[range];
        sort_by_rising_low(open, low);
        let mut level = 0;
        // Sum of sizes from here upwards.
        let mut above = self.rest[clique as usize];
        for &m in open.iter() {
            let offset = low[m as usize];
            if offset > top {
                break;
            }
            level = level.max(offset + above);
            above -= self.instance.sizes[m as usize];
        }
        self.raise_level(clique, level)
    }

    #[inline]
    fn raise_level(&mut self, clique: u32, level: u64) -> Result<(), Conflict> {
        let c = clique as usize;
        if level <= self.level[c] {
            return Ok(());
        }
        if level > self.capacity {
            self.conflicts[c] += 1;
            return Err(Conflict);
        }
        self.trail.push((clique, self.level[c]));
        self.level[c] = level;
        Ok(())
    }
}

/// Insertion sort: the order hardly changes between two looks.
fn sort_by_rising_low(members: &mut [u32], low: &[u64]) {
    let Some(&first) = members.first() else { return };
    let mut highest = low[first as usize];
    for i in 1..members.len() {
        let member = members[i];
        let key = low[member as usize];
        if key >= highest {
            highest = key;
            continue;
        }
        let mut j = i;
        while j > 0 && low[members[j - 1] as usize] > key {
            members[j] = members[j - 1];
            j -= 1;
        }
        members[j] = member;
    }
}

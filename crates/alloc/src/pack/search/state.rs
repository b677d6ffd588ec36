//! What is placed and what that implies, with an undo log.

use super::instance::Instance;
use super::orders::Order;
use std::ops::Range;

/// Marks a placed item in [`State::waits`].
const PLACED: u64 = u64::MAX;

/// An old value.
#[derive(Clone, Copy, Debug)]
enum Change {
    Item { item: u32, low: u64, wait: u64 },
    Level { clique: u32, level: u64 },
}

/// Nothing can be completed from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conflict;

/// A partial packing below a capacity.
pub(super) struct State<'a> {
    instance: &'a Instance,
    capacity: u64,
    /// Offset of a placed item; no completion has an unplaced one below this.
    low: Vec<u64>,
    /// [`PLACED`]; 0: may be placed at `low`; else it was postponed, and something it meets must begin below this.
    waits: Vec<u64>,
    /// By clique: sum of sizes of the unplaced.
    rest: Vec<u64>,
    /// By clique: the least end of its topmost item, from the one-machine bound over `low`.
    level: Vec<u64>,
    /// Members of cliques, kept almost sorted by falling `low`.
    members: Vec<u32>,
    /// By clique: conflicts found there, over all searches.
    conflicts: Vec<u64>,
    trail: Vec<Change>,
}

impl<'a> State<'a> {
    pub fn new(instance: &'a Instance) -> Self {
        let (items, cliques) = (instance.items.len(), instance.clique_count() as usize);
        Self {
            instance,
            capacity: 0,
            low: vec![0; items],
            waits: vec![0; items],
            rest: vec![0; cliques],
            level: vec![0; cliques],
            members: instance.members().to_vec(),
            conflicts: vec![0; cliques],
            trail: Vec::new(),
        }
    }

    /// Nothing placed. Conflict: the bound rules the capacity out.
    pub fn reset(&mut self, capacity: u64) -> Result<(), Conflict> {
        self.capacity = capacity;
        self.trail.clear();
        self.conflicts.fill(0);
        self.waits.fill(0);
        self.level.fill(0);
        self.rest = self.instance.loads();
        for (low, item) in self.low.iter_mut().zip(&self.instance.items) {
            *low = item.fixed.unwrap_or(0);
        }
        (0..self.instance.clique_count()).try_for_each(|c| self.refresh(c))
    }

    #[inline]
    pub fn is_placed(&self, item: u32) -> bool {
        self.waits[item as usize] == PLACED
    }
    #[inline]
    pub fn is_waiting(&self, item: u32) -> bool {
        let wait = self.waits[item as usize];
        wait != 0 && wait != PLACED
    }
    #[inline]
    pub fn low(&self, item: u32) -> u64 {
        self.low[item as usize]
    }
    /// What a goal's outcome depends on, by item.
    #[inline]
    pub fn signature(&self, item: u32) -> (u64, u64) {
        (self.low[item as usize], self.waits[item as usize])
    }
    #[inline]
    pub fn level(&self, clique: u32) -> u64 {
        self.level[clique as usize]
    }
    #[inline]
    pub fn conflicts(&self, clique: u32) -> u64 {
        self.conflicts[clique as usize]
    }
    pub fn offsets(&self) -> Vec<u64> {
        self.low.clone()
    }

    /// The unplaced items that meet `item`.
    #[inline]
    pub fn open_neighbours(&self, item: u32) -> impl Iterator<Item = u32> {
        self.instance.neighbours.of_buffer(item).iter().copied().filter(|&y| !self.is_placed(y))
    }

    /// The unplaced members of a clique.
    pub fn open_members(&self, clique: u32) -> impl Iterator<Item = u32> {
        self.members[self.instance.clique_range(clique)].iter().copied().filter(|&m| !self.is_placed(m))
    }

    /// A point to rewind to.
    pub fn mark(&self) -> usize {
        self.trail.len()
    }

    pub fn rewind(&mut self, mark: usize) {
        while self.trail.len() > mark {
            match self.trail.pop() {
                Some(Change::Item { item, low, wait }) => {
                    if self.is_placed(item) {
                        let i = &self.instance.items[item as usize];
                        self.rest[i.first as usize..i.last as usize].iter_mut().for_each(|r| *r += i.size);
                    }
                    self.low[item as usize] = low;
                    self.waits[item as usize] = wait;
                }
                Some(Change::Level { clique, level }) => self.level[clique as usize] = level,
                None => return,
            }
        }
    }

    /// Whether an item could as well come later: something it meets may begin below its end.
    pub fn has_alternative(&self, x: u32) -> bool {
        let item = &self.instance.items[x as usize];
        let end = self.low(x) + item.size;
        item.fixed.is_none() && self.open_neighbours(x).any(|y| self.low(y) < end && !self.instance.are_equal(x, y))
    }

    /// Places an item at its lowest offset. No item it meets may have a lower one. `goal` are the items left with it.
    pub fn place(&mut self, x: u32, goal: &[u32], order: &Order) -> Result<(), Conflict> {
        let instance = self.instance;
        let item = &instance.items[x as usize];
        let low = self.low(x);
        let end = low + item.size;
        self.set(x, low, PLACED);
        self.rest[item.first as usize..item.last as usize].iter_mut().for_each(|r| *r -= item.size);
        let (mut first, mut last) = (item.first, item.last);
        let mut gaps = false;
        for &y in instance.neighbours.of_buffer(x) {
            let (old, wait) = self.signature(y);
            if wait == PLACED {
                continue;
            }
            let other = &instance.items[y as usize];
            if let Some(fixed) = other.fixed {
                if end > fixed {
                    return Err(Conflict);
                }
                continue;
            }
            // What was postponed may be placed once something begins in the gap it left.
            let wait = if low < wait { 0 } else { wait };
            let new = old.max(other.align_up(end));
            if (new, wait) == self.signature(y) {
                continue;
            }
            self.set(y, new, wait);
            if new > old {
                gaps |= new > end;
                first = first.min(other.first);
                last = last.max(other.last);
            }
        }
        self.raise_within(item.first..item.last, end)?;
        self.refresh_raised(first..item.first, end)?;
        self.refresh_raised(item.last..last, end)?;
        if gaps {
            // Alignment left a gap above `end`.
            (first..last).try_for_each(|c| self.refresh(c))?;
        }
        if std::env::var("NOSTACK").is_err() {
            self.keep_stack_order(x, end, order)?;
        }
        if std::env::var("NOTIGHT").is_err() { self.tighten(goal, first..last, order) } else { Ok(()) }
    }

    /// Of two adjacent items with the same lifetime, the earlier in the stack order lies below: the other way round takes
    /// the same bytes.
    fn keep_stack_order(&mut self, x: u32, end: u64, order: &Order) -> Result<(), Conflict> {
        for &y in order.stack_before(x) {
            if self.waits[y as usize] == 0 && self.low(y) == end {
                self.postpone(y, order)?;
            }
        }
        Ok(())
    }

    /// Lets an item wait until something it meets begins below the end it would have now.
    pub fn postpone(&mut self, x: u32, order: &Order) -> Result<(), Conflict> {
        self.wait_for(x, self.low(x) + self.instance.items[x as usize].size, order)
    }

    /// Looks again at what a waiting item waits for: it lies above that.
    pub fn wait_on(&mut self, x: u32, order: &Order) -> Result<(), Conflict> {
        self.wait_for(x, self.waits[x as usize], order)
    }

    fn wait_for(&mut self, x: u32, wait: u64, order: &Order) -> Result<(), Conflict> {
        let instance = self.instance;
        let item = &instance.items[x as usize];
        let support = self
            .open_neighbours(x)
            .filter(|&y| self.low(y) < wait && !instance.are_equal(x, y))
            .map(|y| self.low(y) + instance.items[y as usize].size)
            .min();
        let Some(support) = support else { return Err(Conflict) };
        let low = item.align_up(support).max(self.low(x));
        if (low, wait) == self.signature(x) {
            return Ok(());
        }
        let raised = low > self.low(x);
        self.set(x, low, wait);
        let mut twin = order.twin_above(x);
        while let Some(t) = twin {
            if self.low(t) < low {
                self.set(t, low, self.waits[t as usize]);
            }
            twin = order.twin_above(t);
        }
        if raised { self.refresh_raised(item.first..item.last, low) } else { Ok(()) }
    }

    /// Looks again at what the waiting items of a goal wait for.
    fn tighten(&mut self, goal: &[u32], window: Range<u32>, order: &Order) -> Result<(), Conflict> {
        for &y in goal {
            let item = &self.instance.items[y as usize];
            if self.is_waiting(y) && item.first < window.end && window.start < item.last {
                self.wait_on(y, order)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn set(&mut self, item: u32, low: u64, wait: u64) {
        let i = item as usize;
        self.trail.push(Change::Item { item, low: self.low[i], wait: self.waits[i] });
        self.low[i] = low;
        self.waits[i] = wait;
    }

    /// Everything unplaced in these cliques lies at `floor` or above.
    fn raise_within(&mut self, cliques: Range<u32>, floor: u64) -> Result<(), Conflict> {
        for clique in cliques {
            let level = floor + self.rest[clique as usize];
            self.raise_level(clique, level)?;
        }
        Ok(())
    }

    /// Recomputes those levels that may have changed when items were raised to `low` at most.
    fn refresh_raised(&mut self, mut cliques: Range<u32>, low: u64) -> Result<(), Conflict> {
        cliques.try_for_each(|c| {
            let unchanged = low + self.rest[c as usize] <= self.level[c as usize];
            if unchanged { Ok(()) } else { self.refresh(c) }
        })
    }

    /// The one-machine bound: what starts at `low` or later ends up above it, one on another.
    fn refresh(&mut self, clique: u32) -> Result<(), Conflict> {
        let members = &mut self.members[self.instance.clique_range(clique)];
        sort_by_falling_low(members, &self.low);
        let (mut sum, mut level) = (0, 0);
        for &m in members.iter() {
            if self.waits[m as usize] != PLACED {
                sum += self.instance.items[m as usize].size;
                level = level.max(self.low[m as usize] + sum);
            }
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
        self.trail.push(Change::Level { clique, level: self.level[c] });
        self.level[c] = level;
        Ok(())
    }
}

/// Insertion sort: the order hardly changes between two looks.
fn sort_by_falling_low(members: &mut [u32], low: &[u64]) {
    for i in 1..members.len() {
        let member = members[i];
        let key = low[member as usize];
        let mut j = i;
        while j > 0 && low[members[j - 1] as usize] < key {
            members[j] = members[j - 1];
            j -= 1;
        }
        members[j] = member;
    }
}

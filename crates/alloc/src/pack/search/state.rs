//! What is placed and what that implies, with an undo log.

use super::cliques::Cliques;
use super::instance::Instance;
use super::orders::Order;
use std::ops::Range;

/// Marks a placed item in [`State::waits`].
const PLACED: u64 = u64::MAX;

/// An old value.
#[derive(Clone, Copy, Debug)]
struct Change {
    item: u32,
    low: u64,
    wait: u64,
}

/// A point to rewind to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    changes: usize,
    levels: usize,
}

/// Nothing can be completed from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conflict;

/// A partial packing below a capacity.
pub(super) struct State<'a> {
    instance: &'a Instance,
    /// Offset of a placed item; no completion has an unplaced one below this.
    low: Vec<u64>,
    /// [`PLACED`]; 0: may be placed at `low`; else it was postponed, and something it meets must begin below this.
    waits: Vec<u64>,
    pub cliques: Cliques<'a>,
    trail: Vec<Change>,
}

impl<'a> State<'a> {
    pub fn new(instance: &'a Instance) -> Self {
        let items = instance.items.len();
        let cliques = Cliques::new(instance);
        Self { instance, low: vec![0; items], waits: vec![0; items], cliques, trail: Vec::new() }
    }

    /// Nothing placed. Conflict: the bound rules the capacity out.
    pub fn reset(&mut self, capacity: u64) -> Result<(), Conflict> {
        self.trail.clear();
        self.waits.fill(0);
        for (low, item) in self.low.iter_mut().zip(&self.instance.items) {
            *low = item.fixed.unwrap_or(0);
        }
        self.cliques.reset(capacity, &self.low)
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
    pub fn offsets(&self) -> Vec<u64> {
        self.low.clone()
    }

    /// The unplaced items that meet `item`.
    #[inline]
    pub fn open_neighbours(&self, item: u32) -> impl Iterator<Item = u32> {
        self.instance.neighbours.of_buffer(item).iter().copied().filter(|&y| !self.is_placed(y))
    }

    pub fn mark(&self) -> Mark {
        Mark { changes: self.trail.len(), levels: self.cliques.mark() }
    }

    pub fn rewind(&mut self, mark: Mark) {
        for Change { item, low, wait } in self.trail.drain(mark.changes..).rev() {
            if self.waits[item as usize] == PLACED {
                self.cliques.give_back(item);
            }
            self.low[item as usize] = low;
            self.waits[item as usize] = wait;
        }
        self.cliques.rewind(mark.levels);
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
        self.cliques.take(x);
        let (mut first, mut last) = (item.first, item.last);
        let mut top = end;
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
                top = top.max(new);
                first = first.min(other.first);
                last = last.max(other.last);
            }
        }
        self.cliques.raise_within(item.first..item.last, end)?;
        self.cliques.raised(first..item.first, top, &self.low)?;
        self.cliques.raised(item.last..last, top, &self.low)?;
        if top > end {
            // Alignment left gaps above `end`.
            self.cliques.raised(item.first..item.last, top, &self.low)?;
        }
        self.keep_stack_order(x, end, order)?;
        self.tighten(goal, first..last, order)
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
        if raised { self.cliques.raised(item.first..item.last, low, &self.low) } else { Ok(()) }
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
        self.trail.push(Change { item, low: self.low[i], wait: self.waits[i] });
        self.low[i] = low;
        self.waits[i] = wait;
    }
}

//! The cells of one stream.

use super::{Pos, SequenceId, SequenceSet};
use loadmaster_graph::IdVec;
use std::collections::BTreeMap;
use std::ops::Range;

loadmaster_graph::define_id! {
    /// A cell of a stream: keys and values of one position.
    pub CellId, "cell";
}

#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Cell {
    pos: Pos,
    sequences: SequenceSet,
}

/// The cells of one stream. A cell without sequences is empty.
#[derive(Clone, PartialEq, Debug)]
pub struct Cells {
    cells: IdVec<CellId, Cell>,
    used: u32,
    /// One past the last cell in use.
    end: u32,
    /// Positions of each sequence, with the number of cells that hold each.
    positions: BTreeMap<SequenceId, BTreeMap<Pos, u32>>,
}

impl Cells {
    /// `count` empty cells.
    #[must_use]
    pub fn new(count: u32) -> Self {
        Self { cells: IdVec::filled(Cell::default(), count as usize), used: 0, end: 0, positions: BTreeMap::new() }
    }

    /// Number of cells.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.cells.len() as u32
    }

    /// Whether no cell is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Number of cells in use.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// One past the last cell in use.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.end
    }

    /// Whether a cell is empty.
    #[must_use]
    pub fn is_free(&self, id: CellId) -> bool {
        self.cells[id].sequences.is_empty()
    }

    /// The position in a cell; `None` if it is empty.
    #[must_use]
    pub fn position(&self, id: CellId) -> Option<Pos> {
        (!self.is_free(id)).then(|| self.cells[id].pos)
    }

    /// The sequences of a cell.
    #[must_use]
    pub fn sequences(&self, id: CellId) -> &SequenceSet {
        &self.cells[id].sequences
    }

    /// The position of `sequence` in each of the first `count` cells.
    pub fn positions_of(&self, sequence: SequenceId, count: u32) -> impl Iterator<Item = Option<Pos>> {
        self.cells.values().take(count as usize).map(move |c| c.sequences.contains(sequence).then_some(c.pos))
    }

    /// First and last position of a sequence.
    #[must_use]
    pub fn span(&self, sequence: SequenceId) -> Option<(Pos, Pos)> {
        let positions = self.positions.get(&sequence)?;
        Some((*positions.first_key_value()?.0, *positions.last_key_value()?.0))
    }

    /// Puts a position of some sequences into a cell; what it held is forgotten.
    pub(super) fn set(&mut self, id: CellId, pos: Pos, sequences: &SequenceSet) {
        self.clear(id);
        if sequences.is_empty() {
            return;
        }
        self.cells[id] = Cell { pos, sequences: *sequences };
        self.used += 1;
        self.end = self.end.max(id.index() as u32 + 1);
        for sequence in sequences.iter() {
            self.count(sequence, pos);
        }
    }

    /// Adds a sequence to a cell in use.
    pub(super) fn share(&mut self, id: CellId, sequence: SequenceId) {
        if self.is_free(id) || self.cells[id].sequences.contains(sequence) {
            return;
        }
        self.cells[id].sequences.insert(sequence);
        self.count(sequence, self.cells[id].pos);
    }

    /// Empties a cell.
    pub(super) fn clear(&mut self, id: CellId) {
        let Cell { pos, sequences } = self.cells[id];
        for sequence in sequences.iter() {
            self.uncount(sequence, pos);
        }
        if !sequences.is_empty() {
            self.cells[id] = Cell::default();
            self.free(id);
        }
    }

    /// Takes a sequence out of a cell. Returns whether that emptied it.
    pub(super) fn release(&mut self, id: CellId, sequence: SequenceId) -> bool {
        if !self.cells[id].sequences.contains(sequence) {
            return false;
        }
        self.uncount(sequence, self.cells[id].pos);
        self.cells[id].sequences.remove(sequence);
        if !self.is_free(id) {
            return false;
        }
        self.free(id);
        true
    }

    /// The cells in use whose positions are in `range`.
    pub(super) fn in_range(&self, range: &Range<Pos>) -> Vec<CellId> {
        let inside = |&id: &CellId| self.position(id).is_some_and(|pos| range.contains(&pos));
        (0..self.end as usize).map(CellId::new).filter(inside).collect()
    }

    fn free(&mut self, id: CellId) {
        self.used -= 1;
        if id.index() as u32 + 1 == self.end {
            let last = (0..id.index()).rev().find(|&i| !self.is_free(CellId::new(i)));
            self.end = last.map_or(0, |i| i as u32 + 1);
        }
    }

    fn count(&mut self, sequence: SequenceId, pos: Pos) {
        *self.positions.entry(sequence).or_default().entry(pos).or_default() += 1;
    }

    fn uncount(&mut self, sequence: SequenceId, pos: Pos) {
        let Some(positions) = self.positions.get_mut(&sequence) else { return };
        let Some(count) = positions.get_mut(&pos) else { return };
        *count -= 1;
        if *count == 0 {
            positions.remove(&pos);
        }
        if positions.is_empty() {
            self.positions.remove(&sequence);
        }
    }
}

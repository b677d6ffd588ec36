//! One in-place table for all arenas, or one for each.

use crate::in_place::InPlaceTable;
use crate::lowered::ArenaId;
use loadmaster_graph::IdVec;

/// In-place tables by arena: each device's kernels have their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InPlaceTables {
    /// The same everywhere.
    Same(Box<InPlaceTable>),
    /// One per buffer id; an id without one has nothing in place.
    Each(IdVec<ArenaId, InPlaceTable>),
}

static NOTHING: InPlaceTable = InPlaceTable::none();

impl InPlaceTables {
    /// What these tables and one other allow.
    #[must_use]
    pub fn common(&self, other: &InPlaceTable) -> Self {
        match self {
            Self::Same(table) => Self::Same(Box::new(table.common(other))),
            Self::Each(tables) => Self::Each(tables.values().map(|t| t.common(other)).collect()),
        }
    }

    /// The table of an arena.
    #[must_use]
    pub fn of(&self, arena: ArenaId) -> &InPlaceTable {
        match self {
            Self::Same(table) => table,
            Self::Each(tables) => tables.get(arena).unwrap_or(&NOTHING),
        }
    }
}

impl From<InPlaceTable> for InPlaceTables {
    fn from(table: InPlaceTable) -> Self {
        Self::Same(Box::new(table))
    }
}

impl Default for InPlaceTables {
    fn default() -> Self {
        InPlaceTable::default().into()
    }
}

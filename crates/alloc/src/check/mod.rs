//! An independent checker of plans.
//!
//! It knows nothing of how plans are made: from the graph alone it derives when every tensor's bytes must be intact, and
//! then looks for two tensors that share bytes at such a time. What it finds is a bug of a placer, never of the caller.
//!
//! The rules. Bytes belong to a tensor that is no view; what happens to a view happens to its root. They must be intact
//! from before the first node (leafs, tensors flagged `input`) or from the node that computes them, to the last node that
//! reads or writes them; to the end if the tensor or a view of it is flagged `output`, or if something listed is read by
//! no node, for then the caller may want it (but see [`UnusedInputs`](crate::UnusedInputs)). A node may write over a source only where the in-place table says so, the
//! layouts are one, and nothing needs the source afterwards.

mod error;
mod lifetimes;
mod order;
mod overlap;
#[cfg(test)]
mod tests;

pub use error::{CheckError, ReuseFault};

use crate::arenas::{Arenas, BufferIds};
use crate::lowered::{AllocGraph, ItemId};
use crate::place::InPlaceTables;
use crate::plan::{AllocPlan, Placement};
use lifetimes::{Lifetimes, takes_place};

/// What a plan is checked against.
#[derive(Clone, Copy, Debug)]
pub struct Checker<'a, 'g> {
    /// The graph.
    pub graph: &'a AllocGraph<'g>,
    /// The buffer types.
    pub arenas: &'a Arenas,
    /// The arena of each node and leaf.
    pub ids: BufferIds<'a>,
    /// Which operations may write over which operands.
    pub in_place: &'a InPlaceTables,
}

impl Checker<'_, '_> {
    /// Checks a plan. O(n log n) for n items.
    ///
    /// Errors: the first rule that is broken.
    pub fn check(&self, plan: &AllocPlan) -> Result<(), CheckError> {
        let order = order::positions(self.graph, plan)?;
        order::respects_dependencies(self.graph, &order)?;
        let lifetimes = Lifetimes::new(self.graph, self.ids, &order, plan.unused_inputs());
        for item in (0..self.graph.items().len()).map(ItemId::new) {
            self.check_item(item, plan, &lifetimes)?;
        }
        overlap::none_shares_bytes(self, plan, &lifetimes)
    }

    fn check_item(&self, item: ItemId, plan: &AllocPlan, lifetimes: &Lifetimes) -> Result<(), CheckError> {
        let expected = takes_place(self.graph, item) && lifetimes.of(item).is_some();
        match (plan.placement(item), expected) {
            (None, false) => Ok(()),
            (None, true) => Err(CheckError::Unplaced { item }),
            (Some(_), false) => Err(CheckError::NotToBePlaced { item }),
            (Some(place), true) => self.check_place(item, place, plan),
        }
    }

    fn check_place(&self, item: ItemId, place: Placement, plan: &AllocPlan) -> Result<(), CheckError> {
        if place.arena.index() >= self.arenas.len() {
            return Err(CheckError::NoSuchArena { item, arena: place.arena });
        }
        let buffer_type = self.arenas.buffer_type(place.arena);
        let chunks = plan.chunks(self.arenas.home(place.arena));
        let Some(&chunk) = chunks.get(place.chunk.index()) else {
            return Err(CheckError::NoSuchChunk { item, arena: place.arena, chunk: place.chunk });
        };
        if !place.offset.get().is_multiple_of(buffer_type.alignment().get()) {
            return Err(CheckError::Misaligned { item, offset: place.offset, align: buffer_type.alignment() });
        }
        let needed = buffer_type.alloc_size(self.graph.item(item).origin.tensor(), self.graph.tensor(item));
        if place.size < needed {
            return Err(CheckError::TooSmall { item, planned: place.size, needed });
        }
        match place.offset.checked_add(place.size) {
            Some(end) if end <= chunk => Ok(()),
            end => Err(CheckError::PastChunk { item, end, chunk }),
        }
    }
}

//! Placers: from a lowered graph to a plan.

mod best;
mod blocks;
mod dependencies;
mod facts;
mod ggml;
mod in_place_tables;
mod order;

pub use best::BestOptions;
pub(crate) use facts::Facts;
pub use facts::UnusedInputs;
pub use in_place_tables::InPlaceTables;
pub use order::Reorder;

use crate::arenas::{Arenas, BufferIds};
use crate::check::Checker;
use crate::error::AllocError;
use crate::in_place::InPlaceTable;
use crate::lowered::AllocGraph;
use crate::plan::AllocPlan;

/// How lifetimes become offsets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Placer {
    /// The reference's way, to the byte (rules 3 to 5).
    Ggml,
    /// As small as possible, and never larger than the reference's.
    Best(BestOptions),
}

impl Default for Placer {
    fn default() -> Self {
        Self::Best(BestOptions::default())
    }
}

/// Plans a graph. Pure: it takes no memory, and equal input gives an equal plan.
///
/// Errors: [`AllocError::IdCount`], [`AllocError::IdOutOfRange`], [`AllocError::Dynamic`], [`AllocError::Packing`].
pub fn plan(
    graph: &AllocGraph<'_>,
    arenas: &Arenas,
    ids: BufferIds<'_>,
    placer: &Placer,
) -> Result<AllocPlan, AllocError> {
    ids.check(graph, arenas)?;
    match placer {
        Placer::Ggml => ggml::place(graph, arenas, ids, &InPlaceTable::ggml().into()),
        Placer::Best(options) => {
            let plan = best::place(graph, arenas, ids, options)?;
            debug_assert_eq!(Checker { graph, arenas, ids, in_place: &options.in_place }.check(&plan), Ok(()));
            Ok(plan)
        }
    }
}

//! The list of buffer types of a graph allocator, and which of its places share an arena.

use crate::buffer_type::{BufferType, same_type};
use crate::error::{AllocError, IdList};
use crate::lowered::{AllocGraph, ArenaId};
use loadmaster_graph::IdVec;
use std::sync::Arc;

/// Buffer types by [`ArenaId`]. Ids with the same buffer type share one arena, whose *home* is the first of them.
#[derive(Clone, Debug)]
pub struct Arenas {
    types: IdVec<ArenaId, Arc<dyn BufferType>>,
    homes: IdVec<ArenaId, ArenaId>,
}

impl Arenas {
    /// The list as given. O(n²) comparisons of handles.
    #[must_use]
    pub fn new(types: Vec<Arc<dyn BufferType>>) -> Self {
        let homes = types
            .iter()
            .enumerate()
            .map(|(i, t)| ArenaId::new(types[..i].iter().position(|other| same_type(other, t)).unwrap_or(i)))
            .collect();
        Self { types: IdVec::from_vec(types), homes }
    }

    /// How many ids there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.types.len()
    }
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.types.is_empty()
    }
    /// All ids.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = ArenaId> + use<> {
        self.types.ids()
    }
    /// The buffer type of an id.
    #[inline]
    #[must_use]
    pub fn buffer_type(&self, arena: ArenaId) -> &Arc<dyn BufferType> {
        &self.types[arena]
    }
    /// The first id with the same buffer type.
    #[inline]
    #[must_use]
    pub fn home(&self, arena: ArenaId) -> ArenaId {
        self.homes[arena]
    }
    /// Ids that are the first with their buffer type.
    pub fn home_ids(&self) -> impl Iterator<Item = ArenaId> {
        self.homes.iter().filter(|(id, home)| id == *home).map(|(id, _)| id)
    }
}

/// Which arena each node and leaf goes to.
#[derive(Clone, Copy, Debug)]
pub enum BufferIds<'a> {
    /// All to the same.
    Same(ArenaId),
    /// One id per node and one per leaf.
    Each {
        /// By position in [`AllocGraph::nodes`].
        nodes: &'a [ArenaId],
        /// By position in [`AllocGraph::leafs`].
        leafs: &'a [ArenaId],
    },
}

impl BufferIds<'_> {
    /// The id of the node at a position. In range once [`BufferIds::check`] has passed.
    #[inline]
    pub(crate) fn node(self, position: usize) -> ArenaId {
        match self {
            Self::Same(arena) => arena,
            Self::Each { nodes, .. } => nodes[position],
        }
    }

    /// The id of the leaf at a position.
    #[inline]
    pub(crate) fn leaf(self, position: usize) -> ArenaId {
        match self {
            Self::Same(arena) => arena,
            Self::Each { leafs, .. } => leafs[position],
        }
    }

    /// Lengths and ranges. O(nodes + leafs).
    ///
    /// Errors: [`AllocError::IdCount`], [`AllocError::IdOutOfRange`].
    pub fn check(self, graph: &AllocGraph<'_>, arenas: &Arenas) -> Result<(), AllocError> {
        match self {
            Self::Same(arena) => check_list(IdList::Nodes, &[arena], 1, arenas),
            Self::Each { nodes, leafs } => {
                check_list(IdList::Nodes, nodes, graph.nodes().len(), arenas)?;
                check_list(IdList::Leafs, leafs, graph.leafs().len(), arenas)
            }
        }
    }
}

fn check_list(list: IdList, ids: &[ArenaId], expected: usize, arenas: &Arenas) -> Result<(), AllocError> {
    if ids.len() != expected {
        return Err(AllocError::IdCount { list, expected, found: ids.len() });
    }
    match ids.iter().position(|id| id.index() >= arenas.len()) {
        None => Ok(()),
        Some(position) => Err(AllocError::IdOutOfRange { list, position, id: ids[position], arenas: arenas.len() }),
    }
}

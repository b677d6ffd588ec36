//! Whether a graph fits a plan that was made for another one, and if not, why.
//!
//! It fits if it has the same structure (so that every lifetime is the same), no tensor needs more than was planned for
//! it, and every in-place pair of the plan still has one layout. This is stricter than the reference, which compares
//! counts and sizes by position (rule 7).

use crate::arenas::Arenas;
use crate::error::IdList;
use crate::lowered::{AllocGraph, ArenaId, ItemId, Structure};
use crate::plan::AllocPlan;
use loadmaster_graph::{Bytes, Op, TensorId};

/// The first difference between a graph and a reserved plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mismatch {
    /// Nothing was reserved.
    #[error("nothing is reserved")]
    NothingReserved,
    /// Another number of nodes or leafs.
    #[error("{found} {list}, {planned} when reserved")]
    Count {
        /// What was counted.
        list: IdList,
        /// How many the plan has.
        planned: usize,
        /// How many the graph has.
        found: usize,
    },
    /// Another number of tensors, copies and keep nodes.
    #[error("{found} tensors, copies and keep nodes, {planned} when reserved")]
    Items {
        /// How many the plan has.
        planned: usize,
        /// How many the graph has.
        found: usize,
    },
    /// Another operation.
    #[error("{tensor} `{name}` is computed by {found}, by {planned} when reserved")]
    Operation {
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
        /// The plan's operation.
        planned: Op,
        /// The graph's operation.
        found: Op,
    },
    /// A tensor differs in flags, root, copy, or in whether it has memory already.
    #[error("{tensor} `{name}` has {what} than when reserved")]
    Kind {
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
        /// What differs.
        what: &'static str,
    },
    /// A node reads other sources, so that their lifetimes are others.
    #[error("{tensor} `{name}` has other sources than when reserved: the lifetimes are others")]
    Lifetime {
        /// The tensor that the node computes.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
    },
    /// Nodes or leafs stand in another order, so that lifetimes are others.
    #[error("place {position} of the {list} is {found}, {planned} when reserved: the lifetimes are others")]
    Order {
        /// Which list.
        list: IdList,
        /// The first position that differs.
        position: usize,
        /// The plan's item there.
        planned: ItemId,
        /// The graph's item there.
        found: ItemId,
    },
    /// Other ranges of nodes may run in another order.
    #[error("other groups of nodes may be reordered than when reserved")]
    Groups,
    /// A tensor needs more than was planned for it.
    #[error("{tensor} `{name}` needs {needed} in {arena}, {planned} when reserved")]
    Size {
        /// The tensor.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
        /// The arena.
        arena: ArenaId,
        /// Bytes that were planned.
        planned: Bytes,
        /// Bytes that it needs.
        needed: Bytes,
    },
    /// A node was planned to write over a source whose layout is no longer the node's.
    #[error("{tensor} `{name}` was planned over {source_tensor}, whose layout is no longer its own")]
    InPlace {
        /// The tensor that the node computes.
        tensor: TensorId,
        /// Its name.
        name: Box<str>,
        /// The source.
        source_tensor: TensorId,
    },
}

/// The first reason why `graph` cannot use `plan`, which was made for a graph of this structure. O(items + sources).
pub(crate) fn mismatch(
    planned: &Structure,
    plan: &AllocPlan,
    graph: &AllocGraph<'_>,
    arenas: &Arenas,
) -> Option<Mismatch> {
    structure_mismatch(planned, graph)
        .or_else(|| size_mismatch(plan, graph, arenas))
        .or_else(|| in_place_mismatch(plan, graph))
}

pub(crate) fn structure_mismatch(planned: &Structure, graph: &AllocGraph<'_>) -> Option<Mismatch> {
    let found = graph.structure();
    if planned == found {
        return None;
    }
    let count = |list, planned: usize, found: usize| Mismatch::Count { list, planned, found };
    if planned.nodes.len() != found.nodes.len() {
        return Some(count(IdList::Nodes, planned.nodes.len(), found.nodes.len()));
    }
    if planned.leafs.len() != found.leafs.len() {
        return Some(count(IdList::Leafs, planned.leafs.len(), found.leafs.len()));
    }
    if planned.items.len() != found.items.len() {
        return Some(Mismatch::Items { planned: planned.items.len(), found: found.items.len() });
    }
    let ids = (0..found.items.len()).map(ItemId::new);
    ids.into_iter()
        .find_map(|id| item_mismatch(planned, graph, id))
        .or_else(|| order_mismatch(IdList::Nodes, &planned.nodes, &found.nodes))
        .or_else(|| order_mismatch(IdList::Leafs, &planned.leafs, &found.leafs))
        .or(Some(Mismatch::Groups))
}

fn item_mismatch(planned: &Structure, graph: &AllocGraph<'_>, id: ItemId) -> Option<Mismatch> {
    let (old, new) = (&planned.items[id.index()], graph.item(id));
    let tensor = new.origin.tensor();
    let name = || graph.tensor(id).name.clone();
    if old.op != new.op {
        return Some(Mismatch::Operation { tensor, name: name(), planned: old.op, found: new.op });
    }
    let different = [
        (old.origin != new.origin, "another origin"),
        (old.flags != new.flags, "other flags"),
        (old.has_memory != new.has_memory, "other memory of its own"),
        (old.root != new.root, "another root"),
    ];
    if let Some(&(_, what)) = different.iter().find(|(differs, _)| *differs) {
        return Some(Mismatch::Kind { tensor, name: name(), what });
    }
    (planned.sources(id) != graph.sources(id)).then(|| Mismatch::Lifetime { tensor, name: name() })
}

fn order_mismatch(list: IdList, planned: &[ItemId], found: &[ItemId]) -> Option<Mismatch> {
    let position = planned.iter().zip(found).position(|(a, b)| a != b)?;
    Some(Mismatch::Order { list, position, planned: planned[position], found: found[position] })
}

fn size_mismatch(plan: &AllocPlan, graph: &AllocGraph<'_>, arenas: &Arenas) -> Option<Mismatch> {
    plan.placed().find_map(|(id, place)| {
        let tensor = graph.item(id).origin.tensor();
        let buffer_type = arenas.buffer_type(place.arena);
        let needed = buffer_type.alloc_size(tensor, graph.tensor(id));
        let room = place.size.checked_align_up(buffer_type.alignment())?;
        (needed > room).then(|| Mismatch::Size {
            tensor,
            name: graph.tensor(id).name.clone(),
            arena: place.arena,
            planned: place.size,
            needed,
        })
    })
}

fn in_place_mismatch(plan: &AllocPlan, graph: &AllocGraph<'_>) -> Option<Mismatch> {
    let broken = plan.reuses().iter().find(|reuse| {
        let (node, source, owner) = (graph.tensor(reuse.node), graph.tensor(reuse.source), graph.tensor(reuse.owner));
        let whole = reuse.source == reuse.owner || covers(source, owner);
        !whole || !node.same_layout(source)
    })?;
    Some(Mismatch::InPlace {
        tensor: graph.item(broken.node).origin.tensor(),
        name: graph.tensor(broken.node).name.clone(),
        source_tensor: graph.item(broken.source).origin.tensor(),
    })
}

/// Whether a view has all the bytes of its root.
pub(crate) fn covers(view: &loadmaster_graph::Tensor, root: &loadmaster_graph::Tensor) -> bool {
    view.view.is_some_and(|v| v.offset == Bytes::ZERO) && view.nbytes() == root.nbytes()
}

//! When the bytes of every tensor must be intact.

use crate::arenas::BufferIds;
use crate::lowered::{AllocGraph, ArenaId, ItemId, Origin};
use crate::place::UnusedInputs;
use loadmaster_graph::Op;

/// Steps at which bytes must be intact, both ends included. Step 0 is the time before the first node; the node that runs
/// i-th (from 0) is step i + 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub first: usize,
    pub last: usize,
}

/// Never over.
const END: usize = usize::MAX;

pub(super) struct Lifetimes {
    spans: Vec<Option<Span>>,
    arenas: Vec<Option<ArenaId>>,
}

/// Whether an item has bytes of its own that a plan must provide.
pub(super) fn takes_place(graph: &AllocGraph<'_>, id: ItemId) -> bool {
    let item = graph.item(id);
    !(item.has_memory || item.root.is_some() || is_keep(graph, id))
}

fn is_keep(graph: &AllocGraph<'_>, id: ItemId) -> bool {
    matches!(graph.item(id).origin, Origin::Keep(_))
}

/// The item whose bytes an item has.
pub(super) fn owner(graph: &AllocGraph<'_>, id: ItemId) -> ItemId {
    graph.item(id).root.unwrap_or(id)
}

/// What a node reads: its sources, or the original of a copy.
pub(super) fn reads<'a>(graph: &'a AllocGraph<'_>, node: ItemId) -> impl Iterator<Item = ItemId> + 'a {
    let original = match graph.item(node).origin {
        Origin::Copy { of, .. } => Some(ItemId::of(of)),
        Origin::Tensor(_) | Origin::Keep(_) => None,
    };
    graph.sources(node).iter().flatten().copied().chain(original)
}

impl Lifetimes {
    /// `order`: the step of each node, by position in [`AllocGraph::nodes`].
    pub(super) fn new(graph: &AllocGraph<'_>, ids: BufferIds<'_>, order: &[usize], unused: UnusedInputs) -> Self {
        let count = graph.items().len();
        let mut this = Self { spans: vec![None; count], arenas: vec![None; count] };
        for (i, &leaf) in graph.leafs().iter().enumerate() {
            this.begin(leaf, 0, ids.leaf(i));
        }
        for (i, &node) in graph.nodes().iter().enumerate() {
            let step = if graph.item(node).flags.is_input() { 0 } else { order[i] };
            this.begin(node, step, ids.node(i));
        }
        this.see_unlisted_sources(graph, ids, order);
        this.see_reads_and_writes(graph, order);
        this.see_what_stays(graph, unused);
        this
    }

    pub(super) fn of(&self, id: ItemId) -> Option<Span> {
        self.spans[id.index()]
    }

    pub(super) fn arena(&self, id: ItemId) -> Option<ArenaId> {
        self.arenas[id.index()]
    }

    fn begin(&mut self, id: ItemId, step: usize, arena: ArenaId) {
        self.arenas[id.index()].get_or_insert(arena);
        let span = self.spans[id.index()].get_or_insert(Span { first: step, last: step });
        span.first = span.first.min(step);
    }

    fn extend(&mut self, id: ItemId, step: usize) {
        if let Some(span) = &mut self.spans[id.index()] {
            span.last = span.last.max(step);
        }
    }

    /// What is neither leaf nor node exists from its first use, or from the start if it is flagged `input`.
    fn see_unlisted_sources(&mut self, graph: &AllocGraph<'_>, ids: BufferIds<'_>, order: &[usize]) {
        let listed: Vec<bool> = self.spans.iter().map(Option::is_some).collect();
        for (i, &node) in graph.nodes().iter().enumerate() {
            for &source in graph.sources(node).iter().flatten() {
                let used = owner(graph, source);
                if !listed[used.index()] {
                    let step = if graph.item(used).flags.is_input() { 0 } else { order[i] };
                    self.begin(used, step, ids.node(i));
                }
            }
        }
    }

    fn see_reads_and_writes(&mut self, graph: &AllocGraph<'_>, order: &[usize]) {
        for (i, &node) in graph.nodes().iter().enumerate() {
            self.extend(owner(graph, node), order[i]);
            for source in reads(graph, node) {
                self.extend(owner(graph, source), order[i]);
            }
        }
    }

    fn see_what_stays(&mut self, graph: &AllocGraph<'_>, unused: UnusedInputs) {
        let mut read = vec![false; graph.items().len()];
        for &node in graph.nodes() {
            for source in reads(graph, node) {
                read[source.index()] = true;
                read[owner(graph, source).index()] = true;
            }
            if let Some(root) = graph.item(node).root {
                read[root.index()] = true;
            }
        }
        let is_dependency = |id| is_keep(graph, id) || graph.item(id).op == Op::None && graph.item(id).root.is_some();
        for &node in graph.nodes().iter().filter(|id| !read[id.index()] && !is_dependency(**id)) {
            self.extend(owner(graph, node), END);
        }
        for &leaf in graph.leafs().iter().filter(|id| !read[id.index()] && !is_dependency(**id)) {
            let is_dropped = unused == UnusedInputs::Drop && graph.item(leaf).flags.is_input();
            self.extend(leaf, if is_dropped { 1 } else { END });
        }
        for id in (0..graph.items().len()).map(ItemId::new).filter(|&id| graph.item(id).flags.is_output()) {
            self.extend(owner(graph, id), END);
        }
    }
}

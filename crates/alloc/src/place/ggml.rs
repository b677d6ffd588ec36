//! The reference's placer: best fit in execution order (rule 4). O(nodes + sources), times the free blocks.

use super::in_place_tables::InPlaceTables;
use crate::arenas::{Arenas, BufferIds};
use crate::dynamic::{Address, DynAllocator, DynError};
use crate::error::{AllocError, Holder};
use crate::lowered::{AllocGraph, ArenaId, ItemId, Origin};
use crate::plan::{AllocPlan, Placement, Reuse};
use loadmaster_graph::{Bytes, Flags, IdVec, Op};

/// Plans a graph by rules 3 to 5. `ids` have been checked.
pub(crate) fn place(
    graph: &AllocGraph<'_>,
    arenas: &Arenas,
    ids: BufferIds<'_>,
    tables: &InPlaceTables,
) -> Result<AllocPlan, AllocError> {
    let mut walk = Walk::new(graph, arenas, tables);
    walk.place_leafs(ids)?;
    walk.count_uses(ids)?;
    walk.place_nodes(ids)?;
    walk.finish()
}

/// What the walk knows of an item. Small, because every source of every node is looked up three times.
#[derive(Clone, Copy)]
struct Use {
    /// Occurrences as a source that are still to come.
    children: i32,
    /// Views that are still to be released.
    views: i32,
    root: Option<ItemId>,
    flags: Flags,
    state: State,
    /// Some view of it is no node, so that its end is not known: it is never released.
    kept: bool,
    /// It is a view that its root has counted.
    counted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Never placed (rule 4.1).
    Fixed,
    /// Not placed yet.
    Free,
    /// Placed, and its bytes are its own.
    Held,
    /// Its bytes were released or handed over.
    Gone,
}

struct Walk<'a, 'g> {
    graph: &'a AllocGraph<'g>,
    arenas: &'a Arenas,
    tables: &'a InPlaceTables,
    uses: Vec<Use>,
    dynamics: IdVec<ArenaId, DynAllocator>,
    plan: AllocPlan,
}

impl<'a, 'g> Walk<'a, 'g> {
    fn new(graph: &'a AllocGraph<'g>, arenas: &'a Arenas, tables: &'a InPlaceTables) -> Self {
        let uses = graph
            .items()
            .iter()
            .map(|item| {
                let fixed = item.has_memory || item.root.is_some() || matches!(item.origin, Origin::Keep(_));
                let state = if fixed { State::Fixed } else { State::Free };
                let (root, flags) = (item.root, item.flags);
                Use { children: 0, views: 0, root, flags, state, kept: false, counted: false }
            })
            .collect();
        let dynamics = arenas
            .ids()
            .map(|arena| arenas.buffer_type(arena))
            .map(|t| DynAllocator::new(t.alignment(), t.max_size()))
            .collect();
        Self { graph, arenas, tables, uses, dynamics, plan: AllocPlan::empty(graph, arenas) }
    }

    /// Rule 4.2 (i).
    fn place_leafs(&mut self, ids: BufferIds<'_>) -> Result<(), AllocError> {
        let leafs = self.graph.leafs().iter().enumerate();
        leafs.into_iter().try_for_each(|(i, &leaf)| self.allocate(leaf, ids.leaf(i)))
    }

    /// Rule 4.2 (ii).
    fn count_uses(&mut self, ids: BufferIds<'_>) -> Result<(), AllocError> {
        let graph = self.graph;
        for (i, &node) in graph.nodes().iter().enumerate() {
            let seen = self.uses[node.index()];
            // A view without operation is no use of its root that an end could be known of.
            if let Some(root) = seen.root
                && graph.item(node).op != Op::None
            {
                self.uses[root.index()].views += 1;
                self.uses[node.index()].counted = true;
            }
            if seen.flags.is_input() {
                self.allocate(node, ids.node(i))?;
            }
            for source in graph.sources(node).iter().flatten() {
                let used = &mut self.uses[source.index()];
                used.children += 1;
                if used.flags.is_input() {
                    self.allocate(*source, ids.node(i))?;
                }
            }
        }
        self.keep_roots_of_unlisted_views();
        Ok(())
    }

    /// A view that is no node is never counted, yet its release would count (the reference may then free a root that
    /// is still read through another view).
    fn keep_roots_of_unlisted_views(&mut self) {
        for i in 0..self.uses.len() {
            let Use { root: Some(root), counted: false, children: 1.., .. } = self.uses[i] else { continue };
            self.uses[root.index()].kept = true;
        }
    }

    /// Rule 4.2 (iii).
    fn place_nodes(&mut self, ids: BufferIds<'_>) -> Result<(), AllocError> {
        let graph = self.graph;
        for (i, &node) in graph.nodes().iter().enumerate() {
            let arena = ids.node(i);
            for &source in graph.sources(node).iter().flatten() {
                self.place(source, arena)?;
            }
            self.place(node, arena)?;
            for &source in graph.sources(node).iter().flatten() {
                self.release(source)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn place(&mut self, item: ItemId, arena: ArenaId) -> Result<(), AllocError> {
        if self.uses[item.index()].state == State::Free && !self.place_over_source(item, arena)? {
            self.allocate(item, arena)?;
        }
        Ok(())
    }

    fn allocate(&mut self, item: ItemId, arena: ArenaId) -> Result<(), AllocError> {
        let used = &mut self.uses[item.index()];
        if used.state != State::Free {
            return Ok(());
        }
        used.state = State::Held;
        let size = self.alloc_size(arena, item);
        let address = self.dynamics[self.arenas.home(arena)].alloc(size).map_err(|e| self.failed(item, arena, e))?;
        self.plan.placements[item.index()] =
            Some(Placement { offset: address.offset, size, arena, chunk: address.chunk });
        Ok(())
    }

    /// Rule 4.3. The first source that qualifies hands its memory over.
    fn place_over_source(&mut self, node: ItemId, arena: ArenaId) -> Result<bool, AllocError> {
        let graph = self.graph;
        let operands = self.tables.of(arena).operands(graph.item(node).op);
        if operands.is_none() {
            return Ok(false);
        }
        for (operand, source) in graph.sources(node).iter().enumerate() {
            let Some(source) = *source else { continue };
            if !operands.contains(operand) || !self.is_last_use(source) || !self.same_layout(node, source) {
                continue;
            }
            let Some(theirs) = self.plan.placements[source.index()] else { continue };
            let size = self.alloc_size(theirs.arena, node);
            if self.hand_over(node, theirs, size)? {
                self.uses[source.index()].state = State::Gone;
                self.uses[node.index()].state = State::Held;
                self.plan.placements[node.index()] = Some(Placement { size, ..theirs });
                self.plan.reuses.push(Reuse { node, source, owner: source });
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_last_use(&self, source: ItemId) -> bool {
        let u = &self.uses[source.index()];
        u.state == State::Held && u.children == 1 && u.views == 0 && !u.kept && !u.flags.is_output()
    }

    fn same_layout(&self, a: ItemId, b: ItemId) -> bool {
        self.graph.tensor(a).same_layout(self.graph.tensor(b))
    }

    /// Gives back what the source has beyond the node's size; false if it has less.
    fn hand_over(&mut self, node: ItemId, theirs: Placement, size: Bytes) -> Result<bool, AllocError> {
        let align = self.arenas.buffer_type(theirs.arena).alignment();
        // Both sizes were handed out or are at most as large as one that was.
        let (Some(have), Some(need)) = (theirs.size.checked_align_up(align), size.checked_align_up(align)) else {
            return Ok(false);
        };
        let Some(rest) = have.checked_sub(need) else { return Ok(false) };
        if rest > Bytes::ZERO {
            let offset = theirs.offset.saturating_add(need);
            self.free(node, theirs.arena, Address { chunk: theirs.chunk, offset }, rest)?;
        }
        Ok(true)
    }

    /// Rule 4.4, for one source of a node.
    #[inline]
    fn release(&mut self, source: ItemId) -> Result<(), AllocError> {
        let used = &mut self.uses[source.index()];
        used.children -= 1;
        if used.children != 0 || used.views != 0 {
            return Ok(());
        }
        let Some(root) = used.root else { return self.free_item(source) };
        let owner = &mut self.uses[root.index()];
        owner.views -= 1;
        if owner.children != 0 || owner.views != 0 {
            return Ok(());
        }
        self.free_item(root)
    }

    fn free_item(&mut self, item: ItemId) -> Result<(), AllocError> {
        let used = &mut self.uses[item.index()];
        if used.state != State::Held || used.kept || used.flags.is_output() {
            return Ok(());
        }
        used.state = State::Gone;
        let Some(p) = self.plan.placements[item.index()] else { return Ok(()) };
        self.free(item, p.arena, Address { chunk: p.chunk, offset: p.offset }, p.size)
    }

    fn free(&mut self, item: ItemId, arena: ArenaId, at: Address, size: Bytes) -> Result<(), AllocError> {
        self.dynamics[self.arenas.home(arena)].free(at, size).map_err(|e| self.failed(item, arena, e))
    }

    fn alloc_size(&self, arena: ArenaId, item: ItemId) -> Bytes {
        let tensor = self.graph.item(item).origin.tensor();
        self.arenas.buffer_type(arena).alloc_size(tensor, self.graph.graph().tensor(tensor))
    }

    #[cold]
    fn failed(&self, item: ItemId, arena: ArenaId, why: DynError) -> AllocError {
        let tensor = Holder::of(self.graph, item, self.alloc_size(arena, item));
        AllocError::Dynamic { tensor, arena, why }
    }

    fn finish(mut self) -> Result<AllocPlan, AllocError> {
        for arena in self.arenas.home_ids() {
            let sizes: Vec<Bytes> = self.dynamics[arena].chunk_sizes().collect();
            let sum = sizes.iter().try_fold(Bytes::ZERO, |sum, &size| sum.checked_add(size));
            sum.ok_or(AllocError::ArenaOverflow { arena })?;
            self.plan.chunks[arena] = sizes;
        }
        Ok(self.plan)
    }
}

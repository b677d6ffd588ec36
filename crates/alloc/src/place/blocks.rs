//! In-place chains merged into blocks: from first birth to last death, as large as the largest member.

use super::facts::Facts;
use super::in_place_tables::InPlaceTables;
use crate::arenas::Arenas;
use crate::in_place::ViewReuse;
use crate::lowered::{AllocGraph, ArenaId, ItemId};
use crate::mismatch::covers;
use crate::plan::Reuse;
use loadmaster_graph::{Bytes, IdVec, Step, define_id};

define_id! {
    /// A stretch of bytes that one item after the other takes.
    pub BlockId, "block";
}

/// Bytes with a lifetime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Block {
    /// Home of its arena.
    pub(crate) home: ArenaId,
    pub(crate) birth: u32,
    /// Past the last step.
    pub(crate) death: u32,
    pub(crate) size: Bytes,
    /// The item that has the bytes now.
    holder: ItemId,
}

/// Blocks of a graph in one order of its nodes.
#[derive(Clone)]
pub(crate) struct Blocks {
    pub(crate) blocks: Vec<Block>,
    pub(crate) block_of: Vec<Option<BlockId>>,
    pub(crate) reuses: Vec<Reuse>,
}

/// What merging reads.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a, 'g> {
    pub(crate) graph: &'a AllocGraph<'g>,
    pub(crate) arenas: &'a Arenas,
    pub(crate) facts: &'a Facts,
    pub(crate) tables: &'a InPlaceTables,
}

/// Merges in the given order of node positions. O(items + sources).
pub(crate) fn merge(input: Input<'_, '_>, order: impl Iterator<Item = Step>) -> Blocks {
    let mut merging = Merging::new(input);
    for (at, step) in order.enumerate() {
        merging.run_node(input.graph.nodes()[step.get() as usize], at as u32);
    }
    merging.finish()
}

/// Runs nodes one after the other and keeps who has which bytes.
#[derive(Clone)]
pub(crate) struct Merging<'a, 'g> {
    input: Input<'a, 'g>,
    /// Uses that are still to come, by owner.
    left: Vec<u32>,
    /// Bytes alive in each arena, by home.
    alive: IdVec<ArenaId, u64>,
    result: Blocks,
}

/// What running a node does to the bytes alive in its own arena.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effect {
    /// Bytes more while it runs.
    pub(crate) during: u64,
    /// Bytes less afterwards than while it runs.
    pub(crate) freed: u64,
}

impl<'a, 'g> Merging<'a, 'g> {
    pub(crate) fn new(input: Input<'a, 'g>) -> Self {
        let count = input.graph.items().len();
        let ids = (0..count).map(ItemId::new);
        let left = ids.clone().map(|id| input.facts.of(id).uses).collect();
        let result = Blocks { blocks: Vec::with_capacity(count), block_of: vec![None; count], reuses: Vec::new() };
        let alive = IdVec::filled(0, input.arenas.len());
        let mut merging = Self { input, left, alive, result };
        for id in ids.filter(|&id| input.facts.of(id).from_start) {
            merging.open(id, 0);
        }
        merging
    }

    /// The blocks so far.
    pub(crate) fn finish(self) -> Blocks {
        self.result
    }

    /// Bytes alive in the arena of this home.
    pub(crate) fn alive(&self, home: ArenaId) -> u64 {
        self.alive[home]
    }

    /// What [`Self::run_node`] would do to the arena of this home.
    pub(crate) fn effect(&self, node: ItemId, home: ArenaId) -> Effect {
        let Input { graph, facts, .. } = self.input;
        let is_new = |item: ItemId| self.result.block_of[item.index()].is_none();
        let size = |item: ItemId| self.size_in(item, home);
        let mut effect = Effect { during: 0, freed: 0 };
        for source in facts.placed_sources(graph, node).filter(|&s| s != node && is_new(s)) {
            effect.during = effect.during.saturating_add(size(source));
        }
        let reuse = if facts.of(node).arena.is_some() && is_new(node) { self.source_to_write_over(node) } else { None };
        if is_new(node) && reuse.is_none() {
            effect.during = effect.during.saturating_add(size(node));
        }
        for owner in facts.touched(graph, node).filter(|&o| reuse.is_none_or(|r| r.owner != o)) {
            let occurrences = facts.touched(graph, node).filter(|&o| o == owner).count() as u32;
            if self.left[owner.index()] == occurrences && !facts.of(owner).forever && self.has_bytes(owner) {
                effect.freed = effect.freed.saturating_add(size(owner) / u64::from(occurrences));
            }
        }
        effect
    }

    fn size_in(&self, item: ItemId, home: ArenaId) -> u64 {
        let facts = self.input.facts.of(item);
        let here = facts.arena.is_some_and(|a| self.input.arenas.home(a) == home);
        if here { facts.padded.get() } else { 0 }
    }

    fn has_bytes(&self, item: ItemId) -> bool {
        self.result.block_of[item.index()].is_none_or(|b| self.result.blocks[b.index()].holder == item)
    }

    pub(crate) fn run_node(&mut self, node: ItemId, at: u32) {
        let Input { graph, facts, .. } = self.input;
        for source in facts.placed_sources(graph, node) {
            if self.result.block_of[source.index()].is_none() {
                self.open(source, at);
            }
        }
        if facts.of(node).arena.is_some() && self.result.block_of[node.index()].is_none() {
            match self.source_to_write_over(node) {
                Some(reuse) => self.join(reuse),
                None => self.open(node, at),
            }
        }
        for owner in facts.touched(graph, node) {
            self.left[owner.index()] -= 1;
            if self.left[owner.index()] == 0 {
                self.close(owner, at + 1);
            }
        }
    }

    fn open(&mut self, item: ItemId, birth: u32) {
        let facts = self.input.facts.of(item);
        let Some(arena) = facts.arena else { return };
        // Later uses move the end; an input without any is the caller's until the first node has run.
        let death = if facts.forever { self.input.facts.horizon } else { birth + u32::from(facts.uses == 0) };
        let home = self.input.arenas.home(arena);
        self.result.block_of[item.index()] = Some(BlockId::new(self.result.blocks.len()));
        self.result.blocks.push(Block { home, birth, death, size: facts.padded, holder: item });
        self.alive[home] = self.alive[home].saturating_add(facts.padded.get());
    }

    fn join(&mut self, reuse: Reuse) {
        let Some(block) = self.result.block_of[reuse.owner.index()] else { return };
        self.result.block_of[reuse.node.index()] = Some(block);
        self.result.reuses.push(reuse);
        self.result.blocks[block.index()].holder = reuse.node;
        if self.input.facts.of(reuse.node).forever {
            self.result.blocks[block.index()].death = self.input.facts.horizon;
        }
    }

    fn close(&mut self, owner: ItemId, death: u32) {
        let Some(block) = self.result.block_of[owner.index()] else { return };
        let block = &mut self.result.blocks[block.index()];
        block.death = block.death.max(death);
        if block.holder == owner && !self.input.facts.of(owner).forever {
            self.alive[block.home] = self.alive[block.home].saturating_sub(block.size.get());
        }
    }

    /// The first operand that the table allows, whose bytes nothing else needs from here on.
    fn source_to_write_over(&self, node: ItemId) -> Option<Reuse> {
        let Input { graph, tables, .. } = self.input;
        let table = tables.of(self.input.facts.of(node).arena?);
        let operands = table.operands(graph.item(node).op);
        if operands.is_none() {
            return None;
        }
        graph.sources(node).iter().enumerate().find_map(|(operand, source)| {
            let source = (*source)?;
            let owner = self.input.facts.of(source).owner;
            let reuse = Reuse { node, source, owner };
            (operands.contains(operand) && self.is_legal(reuse, table.views())).then_some(reuse)
        })
    }

    fn is_legal(&self, reuse: Reuse, views: ViewReuse) -> bool {
        let Input { graph, arenas, facts, .. } = self.input;
        let (ours, theirs) = (facts.of(reuse.node), facts.of(reuse.owner));
        let (Some(our_arena), Some(their_arena)) = (ours.arena, theirs.arena) else { return false };
        let whole = reuse.source == reuse.owner
            || views == ViewReuse::WholeRoot && covers(graph.tensor(reuse.source), graph.tensor(reuse.owner));
        self.left[reuse.owner.index()] == 1
            && !theirs.forever
            && whole
            && arenas.home(our_arena) == arenas.home(their_arena)
            && ours.padded <= theirs.padded
            && graph.tensor(reuse.node).same_layout(graph.tensor(reuse.source))
    }
}

//! In-place chains merged into blocks: from first birth to last death, as large as the largest member.

use super::facts::Facts;
use super::in_place_tables::InPlaceTables;
use crate::arenas::Arenas;
use crate::in_place::ViewReuse;
use crate::lowered::{AllocGraph, ArenaId, ItemId};
use crate::mismatch::covers;
use crate::plan::Reuse;
use loadmaster_graph::{Bytes, Step, define_id};

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
}

/// Blocks of a graph in one order of its nodes.
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
    merging.result
}

struct Merging<'a, 'g> {
    input: Input<'a, 'g>,
    /// Uses that are still to come, by owner.
    left: Vec<u32>,
    result: Blocks,
}

impl<'a, 'g> Merging<'a, 'g> {
    fn new(input: Input<'a, 'g>) -> Self {
        let count = input.graph.items().len();
        let ids = (0..count).map(ItemId::new);
        let left = ids.clone().map(|id| input.facts.of(id).uses).collect();
        let result = Blocks { blocks: Vec::with_capacity(count), block_of: vec![None; count], reuses: Vec::new() };
        let mut merging = Self { input, left, result };
        for id in ids.filter(|&id| input.facts.of(id).from_start) {
            merging.open(id, 0);
        }
        merging
    }

    fn run_node(&mut self, node: ItemId, at: u32) {
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
        let death = if facts.forever { self.input.facts.horizon } else { birth };
        let home = self.input.arenas.home(arena);
        self.result.block_of[item.index()] = Some(BlockId::new(self.result.blocks.len()));
        self.result.blocks.push(Block { home, birth, death, size: facts.padded });
    }

    fn join(&mut self, reuse: Reuse) {
        let Some(block) = self.result.block_of[reuse.owner.index()] else { return };
        self.result.block_of[reuse.node.index()] = Some(block);
        self.result.reuses.push(reuse);
        if self.input.facts.of(reuse.node).forever {
            self.result.blocks[block.index()].death = self.input.facts.horizon;
        }
    }

    fn close(&mut self, owner: ItemId, death: u32) {
        if let Some(block) = self.result.block_of[owner.index()] {
            let block = &mut self.result.blocks[block.index()];
            block.death = block.death.max(death);
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

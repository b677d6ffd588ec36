//! Which nodes of a group must stay behind which others.

use crate::lowered::{AllocGraph, ItemId, Origin};
use loadmaster_graph::{Op, Step};
use std::collections::BTreeMap;
use std::ops::Range;

/// Dependencies inside a range of positions, by offset from its start.
pub(crate) struct Dependencies {
    /// How many others a node waits for; an edge may count twice, here and in `followers` alike.
    pub(crate) waits_for: Vec<u32>,
    followers: Vec<Vec<u32>>,
}

/// Who touched some bytes last.
#[derive(Default)]
struct Touched {
    writer: Option<u32>,
    readers: Vec<u32>,
}

impl Dependencies {
    /// Sources come first. Of two nodes that touch the same bytes, one of them writing (its result is a view and it is
    /// no view operation), the first stays first. A node of unknown effect stays behind all before it, and all after it
    /// stay behind it. O(sources log nodes).
    pub(crate) fn of(graph: &AllocGraph<'_>, group: &Range<Step>) -> Self {
        let nodes = &graph.nodes()[group.start.get() as usize..group.end.get() as usize];
        let mut this = Self { waits_for: vec![0; nodes.len()], followers: vec![Vec::new(); nodes.len()] };
        let mut position_of = BTreeMap::new();
        let mut touched: BTreeMap<ItemId, Touched> = BTreeMap::new();
        let mut barrier = 0;
        for (i, &node) in nodes.iter().enumerate() {
            let i = i as u32;
            if is_barrier(graph, node) {
                (barrier..i).for_each(|j| this.wait(i, j));
                barrier = i;
            } else if i > barrier {
                // What stands before the barrier is behind it too.
                this.wait(i, barrier);
            }
            for source in graph.sources(node).iter().flatten() {
                position_of.get(source).into_iter().for_each(|&j| this.wait(i, j));
            }
            this.touch(graph, node, i, &mut touched);
            position_of.insert(node, i);
        }
        this
    }

    /// Nodes that wait for this one.
    pub(crate) fn followers(&self, node: u32) -> &[u32] {
        &self.followers[node as usize]
    }

    fn wait(&mut self, later: u32, earlier: u32) {
        if later != earlier {
            self.waits_for[later as usize] += 1;
            self.followers[earlier as usize].push(later);
        }
    }

    fn touch(&mut self, graph: &AllocGraph<'_>, node: ItemId, i: u32, touched: &mut BTreeMap<ItemId, Touched>) {
        let written = graph.item(node).root.filter(|_| !graph.item(node).op.is_view());
        let owner = |id: ItemId| graph.item(id).root.unwrap_or(id);
        for bytes in graph.sources(node).iter().flatten().map(|&s| owner(s)).filter(|&b| Some(b) != written) {
            let touched = touched.entry(bytes).or_default();
            touched.readers.push(i);
            let writer = touched.writer;
            writer.into_iter().for_each(|j| self.wait(i, j));
        }
        if let Some(bytes) = written {
            let touched = touched.entry(bytes).or_default();
            let others = std::mem::take(&mut touched.readers).into_iter().chain(touched.writer.replace(i));
            others.for_each(|j| self.wait(i, j));
        }
    }
}

/// Nodes without operation order copies and lifetimes; custom operations may do anything.
fn is_barrier(graph: &AllocGraph<'_>, node: ItemId) -> bool {
    let item = graph.item(node);
    let custom = matches!(item.op, Op::Custom | Op::MapCustom1 | Op::MapCustom2 | Op::MapCustom3 | Op::None);
    custom || !matches!(item.origin, Origin::Tensor(_))
}

//! Whether the order that a plan holds in is an order that the graph allows.

use super::error::CheckError;
use super::lifetimes::{owner, reads};
use crate::lowered::{AllocGraph, ItemId};
use crate::plan::AllocPlan;
use std::collections::BTreeMap;

/// The step (from 1) of each node, by position in the graph.
pub(super) fn positions(graph: &AllocGraph<'_>, plan: &AllocPlan) -> Result<Vec<usize>, CheckError> {
    let nodes = graph.nodes().len();
    let Some(order) = plan.order() else { return Ok((1..=nodes).collect()) };
    let broken = |what| Err(CheckError::NoPermutation { nodes, what });
    if order.len() != nodes {
        return broken("its length");
    }
    let mut steps = vec![0; nodes];
    for (i, position) in order.iter().enumerate() {
        match steps.get_mut(position.get() as usize) {
            None => return broken("a node that does not exist"),
            Some(step) if *step != 0 => return broken("a node that runs twice"),
            Some(step) => *step = i + 1,
        }
    }
    Ok(steps)
}

/// Sources come first, and of two nodes that touch the same bytes, one of them writing, the first stays first.
pub(super) fn respects_dependencies(graph: &AllocGraph<'_>, steps: &[usize]) -> Result<(), CheckError> {
    let mut position_of = BTreeMap::new();
    for (i, &node) in graph.nodes().iter().enumerate() {
        position_of.entry(node).or_insert(i);
    }
    let mut touched: BTreeMap<ItemId, Touches> = BTreeMap::new();
    for (i, &node) in graph.nodes().iter().enumerate() {
        for source in reads(graph, node) {
            if let Some(&j) = position_of.get(&source).filter(|&&j| j < i) {
                in_order(graph, steps, j, i)?;
            }
        }
        let written = graph.item(node).root.filter(|_| !graph.item(node).op.is_view());
        let read = reads(graph, node).map(|s| owner(graph, s));
        for bytes in read.chain(written) {
            let touches = touched.entry(bytes).or_default();
            let earlier = if written == Some(bytes) { touches.latest } else { touches.latest_write };
            if let Some(j) = earlier {
                in_order(graph, steps, j, i)?;
            }
            touches.note(steps, i, written == Some(bytes));
        }
    }
    Ok(())
}

/// Of the nodes so far that touch some bytes: the one that runs last, and the one that runs last and writes.
#[derive(Default)]
struct Touches {
    latest: Option<usize>,
    latest_write: Option<usize>,
}

impl Touches {
    fn note(&mut self, steps: &[usize], i: usize, writes: bool) {
        let later = |known: Option<usize>| known.filter(|&j| steps[j] > steps[i]).or(Some(i));
        self.latest = later(self.latest);
        if writes {
            self.latest_write = later(self.latest_write);
        }
    }
}

fn in_order(graph: &AllocGraph<'_>, steps: &[usize], earlier: usize, later: usize) -> Result<(), CheckError> {
    if earlier == later || steps[earlier] < steps[later] {
        return Ok(());
    }
    Err(CheckError::Dependency { earlier: graph.nodes()[earlier], later: graph.nodes()[later] })
}

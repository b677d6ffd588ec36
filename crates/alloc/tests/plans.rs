//! What plans say about themselves: reports, orders, in-place pairs, keys.

#![allow(clippy::unwrap_used, clippy::panic)] // A test fails by a panic, helpers included.

#[path = "support/chain.rs"]
#[allow(dead_code)]
mod chain;
#[path = "support/device.rs"]
#[allow(dead_code)]
mod device;

use chain::{Maker, layers, lowered, round_robin};
use device::TestType;
use loadmaster_alloc::mismatch::Mismatch;
use loadmaster_alloc::pack::Effort;
use loadmaster_alloc::{
    AllocError, AllocGraph, AllocPlan, ArenaId, Arenas, BestOptions, BufferIds, BufferType, GraphAllocator,
    InPlaceTable, ItemId, Placer, Reorder, plan, report,
};
use loadmaster_graph::{Bytes, Graph, Op, Step};
use std::ops::Range;
use std::sync::Arc;

fn one() -> Arenas {
    Arenas::new(vec![Arc::new(TestType::new("mem", 32))])
}

fn first() -> ArenaId {
    ArenaId::new(0)
}

fn all() -> BufferIds<'static> {
    BufferIds::Same(first())
}

fn planned(graph: &AllocGraph<'_>, options: BestOptions) -> AllocPlan {
    let options = BestOptions { effort: Effort::Optimal { node_budget: 100_000 }, ..options };
    plan(graph, &one(), all(), &Placer::Best(options)).unwrap()
}

#[test]
fn a_report_names_the_step_of_the_peak_and_who_is_alive_there() {
    let graph = layers(3, 100);
    let graph = lowered(&graph);
    let plan = planned(&graph, BestOptions::default());
    let report = report(&graph, &one(), all(), &plan).unwrap();
    let arena = &report.arenas[0];
    // Gate, up and their product of 1,200 bytes (1,216 aligned) each, and the residual of 400 (416).
    assert_eq!(arena.lower_bound, Bytes(3 * 1216 + 416));
    assert!(arena.is_proved() && arena.gap() == Bytes::ZERO);
    assert_eq!((arena.peak_step, arena.peak_node), (Step(2), Some(graph.nodes()[2])));
    let names: Vec<&str> = arena.alive_at_peak.iter().map(|h| &*h.name).collect();
    assert_eq!(names, ["node1", "node2", "node3", "leaf0"]);
    assert_eq!(arena.profile.len(), graph.nodes().len());
    assert_eq!(report.size(), plan.total_size());
}

#[test]
fn glu_in_place_takes_a_third_off_the_peak_of_a_feed_forward_layer() {
    let graph = layers(3, 100);
    let graph = lowered(&graph);
    let own = planned(&graph, BestOptions { in_place: InPlaceTable::loadmaster().into(), ..BestOptions::default() });
    assert_eq!(own.total_size(), Bytes(2 * 1216 + 416));
    let products = own.reuses().iter().filter(|r| graph.item(r.node).op == Op::Swiglu);
    assert_eq!(products.count(), 3);
}

/// Two branches from one input, breadth first: both wide results are alive at once. One after the other needs one.
fn branches() -> Graph {
    let mut maker = Maker::default();
    let x = maker.leaf(8);
    let wide = [0, 1].map(|_| maker.node(Op::MulMat, 1000, &[x]));
    let narrow = wide.map(|w| maker.node(Op::MulMat, 8, &[w]));
    maker.output(Op::MulMat, 8, &narrow);
    maker.done()
}

fn grouped(graph: &Graph, groups: &[Range<u32>]) -> Result<AllocPlan, AllocError> {
    let mut graph = lowered(graph);
    groups.iter().for_each(|g| graph.add_group(Step(g.start)..Step(g.end)));
    let options = BestOptions { order: Reorder::WithinGroups, ..BestOptions::default() };
    plan(&graph, &one(), all(), &Placer::Best(options))
}

#[test]
fn branches_are_run_one_after_the_other_where_a_group_allows_it() {
    let graph = branches();
    let kept = grouped(&graph, &[]).unwrap();
    assert_eq!(kept.order(), None);
    assert!(kept.total_size() > Bytes(8000));
    let moved = grouped(&graph, std::slice::from_ref(&(0..5))).unwrap();
    assert_eq!(moved.order().unwrap(), [0, 2, 1, 3, 4].map(Step));
    assert!(moved.total_size() < Bytes(4200));
    let split = grouped(&graph, &[0..2, 2..5]).unwrap();
    assert_eq!(split.order(), None);
}

#[test]
fn groups_that_are_none_are_refused() {
    let graph = branches();
    #[allow(clippy::single_range_in_vec_init, clippy::reversed_empty_ranges)]
    let refused: [&[Range<u32>]; 4] = [&[0..6], &[3..1], &[0..3, 2..5], &[2..5, 0..2]];
    for groups in refused {
        assert!(matches!(grouped(&graph, groups), Err(AllocError::BadGroup { .. })), "{groups:?}");
    }
    let arenas = Arenas::new((0..2).map(|i| Arc::new(TestType::new(&format!("mem{i}"), 32)) as _).collect());
    let mut graph = lowered(&graph);
    graph.add_group(Step(0)..Step(5));
    let (nodes, leafs) = (round_robin(5, 2), round_robin(1, 2));
    let ids = BufferIds::Each { nodes: &nodes, leafs: &leafs };
    let options = BestOptions { order: Reorder::WithinGroups, ..BestOptions::default() };
    let refused = plan(&graph, &arenas, ids, &Placer::Best(options));
    assert!(matches!(refused, Err(AllocError::BadGroup { .. })));
}

#[test]
fn a_smaller_graph_does_not_fit_where_a_result_can_no_longer_lie_over_its_source() {
    let make = |source: u64| {
        let mut maker = Maker::default();
        let x = maker.leaf(64);
        let a = maker.node(Op::MulMat, source, &[x]);
        let sum = maker.node(Op::Add, 64, &[a, x]);
        maker.output(Op::MulMat, 64, &[sum]);
        maker.done()
    };
    let types = || (0..2).map(|i| Arc::new(TestType::new(&format!("mem{i}"), 32)) as Arc<dyn BufferType>).collect();
    let (whole, broadcast) = (make(64), make(1));
    let mut allocator = GraphAllocator::new_n(types()).with_placer(Placer::Ggml);
    let reserve = |allocator: &mut GraphAllocator, graph: &Graph| {
        let graph = lowered(graph);
        allocator.reserve_n(&graph, &[first(); 3], &[first()]).unwrap()
    };
    let plan = reserve(&mut allocator, &whole);
    assert_eq!(plan.reuses().len(), 1);
    let Err(AllocError::NeedsReserve { why }) = allocator.alloc_graph(&lowered(&broadcast)) else { panic!("it fits") };
    assert!(matches!(why, Mismatch::InPlace { .. }), "{why}");
    reserve(&mut allocator, &broadcast);
    allocator.alloc_graph(&lowered(&broadcast)).unwrap();
    allocator.alloc_graph(&lowered(&whole)).unwrap();
}

#[test]
fn a_graph_is_known_by_its_structure_and_not_by_its_names() {
    let (a, b, c) = (layers(3, 50), layers(3, 50), layers(3, 51));
    let (a, b, c) = (lowered(&a), lowered(&b), lowered(&c));
    assert_eq!(a.key(), b.key());
    assert_ne!(a.key(), c.key());
    assert!(a.key().same_overlay(c.key()));
    let mut changed = a.clone();
    changed.push_leaf(ItemId::new(1));
    assert_ne!(a.key(), changed.key());
    assert_ne!(a, changed);
    let memory = AllocGraph::of(a.graph(), |t| t.index() == 0);
    assert_ne!(a.key(), memory.key());
}

#[test]
fn of_many_plans_the_one_that_was_not_used_for_longest_is_forgotten() {
    let types = (0..2).map(|i| Arc::new(TestType::new(&format!("mem{i}"), 32)) as Arc<dyn BufferType>).collect();
    let mut allocator = GraphAllocator::new_n(types);
    let graphs: Vec<Graph> = (1..=65).map(|depth| layers(depth, 8)).collect();
    for graph in &graphs {
        let graph = lowered(graph);
        let (nodes, leafs) = (round_robin(graph.nodes().len(), 2), round_robin(1, 2));
        allocator.reserve_n(&graph, &nodes, &leafs).unwrap();
    }
    assert!(matches!(allocator.alloc_graph(&lowered(&graphs[0])), Err(AllocError::NeedsReserve { .. })));
    for graph in &graphs[1..] {
        allocator.alloc_graph(&lowered(graph)).unwrap();
    }
}

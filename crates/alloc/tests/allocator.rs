//! The graph allocator over memory that counts and refuses.
#![allow(clippy::unwrap_used, clippy::panic)] // A test fails by a panic, helpers included.

#[path = "support/chain.rs"]
#[allow(dead_code)]
mod chain;
#[path = "support/device.rs"]
#[allow(dead_code)]
mod device;

use chain::{Maker, layers, lowered, round_robin};
use device::{Counters, TestType};
use loadmaster_alloc::error::IdList;
use loadmaster_alloc::mismatch::Mismatch;
use loadmaster_alloc::pack::ChunkId;
use loadmaster_alloc::{
    AllocError, AllocGraph, ArenaId, Arenas, BestOptions, BufferIds, BufferType, Checker, GraphAllocator, InPlaceTable,
    ItemId, Placer, plan,
};
use loadmaster_graph::{Bytes, Graph, Op};
use std::sync::Arc;

fn arena(i: usize) -> ArenaId {
    ArenaId::new(i)
}

fn types(count: usize) -> (Vec<Arc<dyn BufferType>>, Arc<Counters>) {
    let counters = Arc::new(Counters::default());
    let make = |i| {
        let counters = Arc::clone(&counters);
        Arc::new(TestType { counters, ..TestType::new(&format!("mem{i}"), 32) }) as Arc<dyn BufferType>
    };
    ((0..count).map(make).collect(), counters)
}

fn reserve_n(allocator: &mut GraphAllocator, graph: &AllocGraph<'_>, arenas: usize) -> Result<(), AllocError> {
    let nodes = round_robin(graph.nodes().len(), arenas);
    let leafs = round_robin(graph.leafs().len(), arenas);
    allocator.reserve_n(graph, &nodes, &leafs).map(|_| ())
}

/// Every chunk of the graph's plan has a buffer that is large enough.
fn assert_usable(allocator: &mut GraphAllocator, graph: &AllocGraph<'_>) {
    let allocation = allocator.alloc_graph(graph).unwrap();
    let plan = Arc::clone(allocation.plan());
    for (_, place) in plan.placed().filter(|(_, p)| p.size > Bytes::ZERO) {
        let buffer = allocation.buffer(place.arena, place.chunk).unwrap();
        assert!(place.offset.checked_add(place.size).unwrap() <= buffer.size());
    }
}

#[test]
fn whichever_allocation_is_refused_the_previous_plan_stays_usable_and_nothing_leaks() {
    for placer in [Placer::Ggml, Placer::default()] {
        for k in 1.. {
            let (types, counters) = types(3);
            let mut allocator = GraphAllocator::new_n(types).with_placer(placer.clone());
            let (small, large) = (layers(4, 64), layers(4, 640));
            let (small, large) = (lowered(&small), lowered(&large));
            reserve_n(&mut allocator, &small, 3).unwrap();
            let before = (counters.alive(), (0..3).map(|i| allocator.buffer_size(arena(i))).collect::<Vec<_>>());
            counters.refuse_in(k);
            let refused = reserve_n(&mut allocator, &large, 3);
            counters.refuse_none();
            let Err(error) = refused else {
                assert!(k > 3, "three arenas grow");
                break;
            };
            assert!(matches!(error, AllocError::DriverOutOfMemory { .. }), "{error}");
            assert_eq!(before, (counters.alive(), (0..3).map(|i| allocator.buffer_size(arena(i))).collect()));
            assert_usable(&mut allocator, &small);
            assert!(matches!(allocator.alloc_graph(&large), Err(AllocError::NeedsReserve { .. })));
            reserve_n(&mut allocator, &large, 3).unwrap();
            assert_usable(&mut allocator, &large);
            assert_usable(&mut allocator, &small);
            drop(allocator);
            assert_eq!(counters.alive(), (0, 0));
        }
    }
}

#[test]
fn growing_keeps_the_largest_need_of_every_chunk_and_gives_the_old_buffer_back() {
    let (types, counters) = types(1);
    let mut allocator = GraphAllocator::new(Arc::clone(&types[0]));
    let (small, large) = (layers(2, 64), layers(2, 1000));
    allocator.reserve(&lowered(&large)).unwrap();
    let held = allocator.buffer_size(arena(0));
    allocator.reserve(&lowered(&small)).unwrap();
    assert_eq!(allocator.buffer_size(arena(0)), held);
    assert_eq!(counters.alive(), (1, held.get()));
    assert_usable(&mut allocator, &lowered(&large));
}

#[test]
fn one_buffer_is_planned_again_when_a_graph_fits_no_plan() {
    let (types, _) = types(1);
    let mut allocator = GraphAllocator::new(Arc::clone(&types[0]));
    for graph in [layers(2, 64), layers(3, 64), layers(2, 900), layers(1, 8)] {
        assert_usable(&mut allocator, &lowered(&graph));
    }
}

/// Counts and sizes agree, but in the first graph the early tensors live long, in the second the late ones.
fn same_counts_other_lifetimes() -> [Graph; 2] {
    [false, true].map(|late| {
        let mut maker = Maker::default();
        let x = maker.leaf(64);
        let a = maker.node(Op::MulMat, 64, &[x]);
        let b = maker.node(Op::MulMat, 64, &[a]);
        let c = maker.node(Op::MulMat, 64, &[b]);
        let d = maker.node(Op::MulMat, 64, &[c]);
        maker.output(Op::MulMat, 64, &[d, if late { c } else { a }]);
        maker.done()
    })
}

#[test]
fn graphs_with_equal_counts_and_sizes_but_other_lifetimes_are_never_confused() {
    let graphs = same_counts_other_lifetimes();
    for placer in [Placer::Ggml, Placer::default()] {
        let (types, _) = types(1);
        let mut allocator = GraphAllocator::new(Arc::clone(&types[0])).with_placer(placer.clone());
        for turn in 0..8 {
            let graph = lowered(&graphs[turn % 2]);
            let allocation = allocator.alloc_graph(&graph).unwrap();
            let checker = Checker {
                graph: &graph,
                arenas: allocator.arenas(),
                ids: BufferIds::Same(arena(0)),
                in_place: &InPlaceTable::ggml().into(),
            };
            checker.check(allocation.plan()).unwrap();
        }
    }
    let (types, _) = types(2);
    let mut allocator = GraphAllocator::new_n(types);
    let [a, b] = &graphs;
    reserve_n(&mut allocator, &lowered(a), 2).unwrap();
    let Err(AllocError::NeedsReserve { why }) = allocator.alloc_graph(&lowered(b)) else { panic!("confused") };
    assert!(matches!(why, Mismatch::Lifetime { .. }), "{why}");
    reserve_n(&mut allocator, &lowered(b), 2).unwrap();
    for turn in 0..8 {
        assert_usable(&mut allocator, &lowered(&graphs[turn % 2]));
    }
}

#[test]
fn the_31st_graph_of_an_allocator_gets_the_plan_of_a_fresh_one() {
    for placer in [Placer::Ggml, Placer::default()] {
        let (types, _) = types(3);
        let mut used = GraphAllocator::new_n(types.clone()).with_placer(placer.clone());
        for i in 0..31 {
            let graph = layers(1 + i % 5, 50 + 13 * i as u64);
            let graph = lowered(&graph);
            let (nodes, leafs) = (round_robin(graph.nodes().len(), 3), round_robin(graph.leafs().len(), 3));
            let plan = used.reserve_n(&graph, &nodes, &leafs).unwrap();
            let fresh =
                GraphAllocator::new_n(types.clone()).with_placer(placer.clone()).reserve_n(&graph, &nodes, &leafs);
            assert_eq!(plan, fresh.unwrap());
        }
    }
}

#[test]
fn a_graph_of_smaller_sizes_fits_a_plan_of_its_structure_and_is_known_from_then_on() {
    let (types, counters) = types(2);
    let mut allocator = GraphAllocator::new_n(types);
    let (large, small) = (layers(3, 640), layers(3, 100));
    reserve_n(&mut allocator, &lowered(&large), 2).unwrap();
    let calls = counters.calls.load(std::sync::atomic::Ordering::Relaxed);
    let plan = Arc::clone(allocator.alloc_graph(&lowered(&large)).unwrap().plan());
    for _ in 0..2 {
        assert!(Arc::ptr_eq(&plan, allocator.alloc_graph(&lowered(&small)).unwrap().plan()));
    }
    assert_eq!(calls, counters.calls.load(std::sync::atomic::Ordering::Relaxed));
}

#[test]
fn a_refusal_names_the_count_the_size_or_the_lifetime() {
    let (types, _) = types(2);
    let mut allocator = GraphAllocator::new_n(types);
    let why = |allocator: &mut GraphAllocator, graph: &Graph| match allocator.alloc_graph(&lowered(graph)) {
        Err(AllocError::NeedsReserve { why }) => why,
        other => panic!("{other:?}"),
    };
    let small = layers(2, 64);
    assert_eq!(why(&mut allocator, &small), Mismatch::NothingReserved);
    reserve_n(&mut allocator, &lowered(&small), 2).unwrap();
    let count = why(&mut allocator, &layers(3, 64));
    assert_eq!(count, Mismatch::Count { list: IdList::Nodes, planned: 11, found: 16 });
    let size = why(&mut allocator, &layers(2, 65));
    assert!(
        matches!(&size, Mismatch::Size { name, planned: Bytes(256), needed: Bytes(260), .. } if &**name == "leaf0"),
        "{size}"
    );
    let with = |op, second_source_is_first: bool| {
        let mut maker = Maker::default();
        let x = maker.leaf(64);
        let a = maker.node(Op::MulMat, 64, &[x]);
        maker.output(op, 64, &[a, if second_source_is_first { a } else { x }]);
        maker.done()
    };
    reserve_n(&mut allocator, &lowered(&with(Op::MulMat, false)), 2).unwrap();
    let operation = why(&mut allocator, &with(Op::Concat, false));
    assert!(matches!(operation, Mismatch::Operation { planned: Op::MulMat, found: Op::Concat, .. }), "{operation}");
    let lifetime = why(&mut allocator, &with(Op::MulMat, true));
    assert!(matches!(&lifetime, Mismatch::Lifetime { name, .. } if &**name == "node2"), "{lifetime}");
}

#[test]
fn wrong_ids_are_refused_and_change_nothing() {
    let (types, counters) = types(2);
    let mut allocator = GraphAllocator::new_n(types);
    let graph = layers(1, 8);
    let graph = lowered(&graph);
    let (nodes, leafs) = (round_robin(6, 2), round_robin(1, 2));
    let short = allocator.reserve_n(&graph, &nodes[..5], &leafs).unwrap_err();
    assert_eq!(short, AllocError::IdCount { list: IdList::Nodes, expected: 6, found: 5 });
    let none = allocator.reserve_n(&graph, &nodes, &[]).unwrap_err();
    assert_eq!(none, AllocError::IdCount { list: IdList::Leafs, expected: 1, found: 0 });
    let mut wrong = nodes.clone();
    wrong[3] = arena(2);
    let range = allocator.reserve_n(&graph, &wrong, &leafs).unwrap_err();
    assert_eq!(range, AllocError::IdOutOfRange { list: IdList::Nodes, position: 3, id: arena(2), arenas: 2 });
    assert_eq!(allocator.reserve_n_size(&graph, &wrong, &leafs).unwrap_err(), range);
    assert_eq!(counters.alive(), (0, 0));
    assert!(GraphAllocator::new_n(Vec::new()).reserve(&graph).is_err());
}

#[test]
fn a_size_is_told_without_taking_memory() {
    let (types, counters) = types(2);
    let mut allocator = GraphAllocator::new_n(types);
    let graph = layers(3, 100);
    let graph = lowered(&graph);
    let (nodes, leafs) = (round_robin(graph.nodes().len(), 2), round_robin(1, 2));
    let sizes = allocator.reserve_n_size(&graph, &nodes, &leafs).unwrap();
    assert_eq!(counters.alive(), (0, 0));
    allocator.reserve_n(&graph, &nodes, &leafs).unwrap();
    for (id, &size) in sizes.iter() {
        assert_eq!(allocator.buffer_size(id), size);
    }
}

#[test]
fn ids_with_one_buffer_type_share_an_arena_that_is_counted_once() {
    let (types, counters) = types(1);
    let mut allocator = GraphAllocator::new_n(vec![Arc::clone(&types[0]), Arc::clone(&types[0])]);
    let graph = layers(2, 100);
    reserve_n(&mut allocator, &lowered(&graph), 2).unwrap();
    assert_eq!(allocator.buffer_size(arena(1)), Bytes::ZERO);
    assert_eq!(counters.alive(), (1, allocator.buffer_size(arena(0)).get()));
    let allocation = allocator.alloc_graph(&lowered(&graph)).unwrap();
    let buffer = |i| allocation.buffer(arena(i), ChunkId::new(0)).unwrap();
    assert!(Arc::ptr_eq(buffer(0), buffer(1)));
}

#[test]
fn a_tensor_above_the_largest_buffer_never_fits_and_a_full_pool_is_over_capacity() {
    let graph = layers(1, 1000);
    let limited = TestType { max_size: Some(Bytes(4096)), ..TestType::new("small", 32) };
    limited.counters.refuse_in(1);
    let error = GraphAllocator::new(Arc::new(limited)).reserve(&lowered(&graph)).unwrap_err();
    assert!(matches!(&error, AllocError::NeverFits { needed: Bytes(12000), largest: Bytes(4096), .. }), "{error}");
    let full = TestType { available: Some(Bytes(10_000)), ..TestType::new("full", 32) };
    let error = GraphAllocator::new(Arc::new(full)).reserve(&lowered(&graph)).unwrap_err();
    let AllocError::OverCapacity { needed, available, holders, .. } = error else { panic!("{error}") };
    assert!(needed > available);
    assert_eq!(holders[0].size, Bytes(12_000));
}

#[test]
fn sizes_that_overflow_are_errors_and_no_panics() {
    #[derive(Debug)]
    struct Huge(TestType);
    impl BufferType for Huge {
        fn name(&self) -> &str {
            self.0.name()
        }
        fn alignment(&self) -> loadmaster_graph::Align {
            self.0.alignment()
        }
        fn max_size(&self) -> Option<Bytes> {
            None
        }
        fn is_host(&self) -> bool {
            true
        }
        fn alloc_size(&self, _: loadmaster_graph::TensorId, t: &loadmaster_graph::Tensor) -> Bytes {
            Bytes((u64::MAX / 8).saturating_mul(t.ne[0]))
        }
        fn alloc_buffer(&self, size: Bytes) -> Result<Arc<dyn loadmaster_alloc::Buffer>, loadmaster_alloc::Refused> {
            self.0.alloc_buffer(size)
        }
    }
    for elements in 2..8 {
        let graph = layers(6, elements);
        let graph = lowered(&graph);
        for placer in [Placer::Ggml, Placer::default()] {
            let arenas = Arenas::new(vec![Arc::new(Huge(TestType::new("huge", 4096)))]);
            let result = plan(&graph, &arenas, BufferIds::Same(arena(0)), &placer);
            assert!(result.is_err(), "{elements} {placer:?}");
        }
    }
}

#[test]
fn two_thousand_inputs_ten_thousand_nodes_and_forty_arenas_are_planned() {
    let mut maker = Maker::default();
    let inputs: Vec<_> = (0..2000).map(|i| maker.leaf(8 + i % 7)).collect();
    let mut last = maker.node(Op::MulMat, 16, &inputs[..60]);
    for i in 0..10_000 {
        last = maker.node(Op::MulMat, 16 + i % 9, &[last, inputs[(i as usize * 7) % inputs.len()]]);
    }
    maker.output(Op::MulMat, 16, &[last]);
    let graph = maker.done();
    let mut graph = lowered(&graph);
    for i in 0..graph.nodes().len() as u32 {
        graph.add_group(loadmaster_graph::Step(i)..loadmaster_graph::Step(i + 1));
    }
    let (types, _) = types(40);
    let arenas = Arenas::new(types);
    let (nodes, leafs) = (round_robin(graph.nodes().len(), 40), round_robin(2000, 40));
    let ids = BufferIds::Each { nodes: &nodes, leafs: &leafs };
    let best = Placer::Best(BestOptions::default());
    for placer in [Placer::Ggml, best] {
        let made = plan(&graph, &arenas, ids, &placer).unwrap();
        let in_place = InPlaceTable::ggml().into();
        Checker { graph: &graph, arenas: &arenas, ids, in_place: &in_place }.check(&made).unwrap();
        assert!(arenas.ids().all(|a| made.buffer_size(a) > Bytes::ZERO));
    }
}

#[test]
fn views_are_located_in_their_roots() {
    let mut maker = Maker::default();
    let x = maker.leaf(64);
    maker.output(Op::MulMat, 64, &[x]);
    let graph = maker.done();
    let graph = lowered(&graph);
    let (types, _) = types(1);
    let plan = GraphAllocator::new(Arc::clone(&types[0])).reserve(&graph).unwrap();
    assert_eq!(plan.locate(&graph, ItemId::of(x)), plan.placement(ItemId::of(x)));
}

//! Random graphs through both placers and the checker.
#![allow(clippy::unwrap_used, clippy::panic)] // A test fails by a panic, helpers included.

#[path = "support/device.rs"]
#[allow(dead_code)]
mod device;
#[path = "support/random.rs"]
mod random;

use loadmaster_alloc::{
    AllocPlan, BestOptions, Checker, InPlaceTable, InPlaceTables, Placer, Reorder, UnusedInputs, plan, report,
};
use random::{LoweredWorld, World};

fn planned(
    world: &World,
    lowered: &LoweredWorld<'_>,
    placer: &Placer,
    in_place: &InPlaceTables,
    seed: u64,
) -> AllocPlan {
    let ids = lowered.ids();
    let made = plan(&lowered.graph, &world.arenas, ids, placer).unwrap();
    let checker = Checker { graph: &lowered.graph, arenas: &world.arenas, ids, in_place };
    if let Err(fault) = checker.check(&made) {
        panic!("seed {seed}, {placer:?}: {fault}");
    }
    let again = plan(&lowered.graph, &world.arenas, ids, placer).unwrap();
    assert_eq!(made, again, "seed {seed}: equal input, another plan");
    let report = report(&lowered.graph, &world.arenas, ids, &made).unwrap();
    for arena in &report.arenas {
        assert!(arena.lower_bound <= arena.size, "seed {seed}, {placer:?}: bound above size in {}", arena.arena);
    }
    made
}

fn best(table: InPlaceTable, order: Reorder) -> (Placer, InPlaceTables) {
    let in_place = InPlaceTables::from(table);
    (Placer::Best(BestOptions { in_place: in_place.clone(), order, ..BestOptions::default() }), in_place)
}

#[test]
fn random_graphs_pass_the_checker_and_best_never_needs_more() {
    for seed in seeds(1500) {
        let world = World::new(seed, 4 + (seed as usize * 7) % 90);
        let lowered = world.lowered();
        let reference = planned(&world, &lowered, &Placer::Ggml, &InPlaceTable::ggml().into(), seed);
        for (i, table) in
            [InPlaceTable::ggml(), InPlaceTable::loadmaster(), InPlaceTable::none()].into_iter().enumerate()
        {
            let (placer, in_place) = best(table, Reorder::Never);
            let plan = planned(&world, &lowered, &placer, &in_place, seed);
            for arena in world.arenas.ids().filter(|_| i == 0) {
                let (ours, theirs) = (plan.buffer_size(arena), reference.buffer_size(arena));
                assert!(ours <= theirs, "seed {seed}: {arena} {ours} > {theirs}");
            }
        }
    }
}

#[test]
fn dropped_inputs_pass_the_checker_and_never_need_more() {
    let mut lower = 0;
    for seed in seeds(400) {
        let world = World::new(seed, 3 + (seed as usize * 5) % 40);
        let lowered = world.lowered();
        let (kept, in_place) = best(InPlaceTable::loadmaster(), Reorder::Never);
        let options =
            BestOptions { in_place: in_place.clone(), unused_inputs: UnusedInputs::Drop, ..BestOptions::default() };
        let kept = planned(&world, &lowered, &kept, &in_place, seed);
        let dropped = planned(&world, &lowered, &Placer::Best(options), &in_place, seed);
        lower += u64::from(dropped.total_size() < kept.total_size());
    }
    assert!(lower > 20, "only {lower} plans were lower");
}

#[test]
fn another_order_passes_the_checker_and_never_needs_more() {
    let mut lower = 0;
    for seed in seeds(600) {
        let world = World::new(seed, 10 + (seed as usize * 11) % 120);
        let lowered = world.lowered();
        let (placer, in_place) = best(InPlaceTable::loadmaster(), Reorder::Never);
        let kept = planned(&world, &lowered, &placer, &in_place, seed);
        let (placer, in_place) = best(InPlaceTable::loadmaster(), Reorder::WithinGroups);
        let moved = planned(&world, &lowered, &placer, &in_place, seed);
        assert!(world.arenas.ids().all(|a| moved.buffer_size(a) <= kept.buffer_size(a)), "seed {seed}");
        assert_eq!(moved.order().is_some(), moved.total_size() < kept.total_size(), "seed {seed}");
        lower += u64::from(moved.order().is_some());
        for (step, i) in moved.order().into_iter().flatten().zip(0..) {
            let group = lowered.graph.groups().iter().find(|g| g.contains(step));
            assert!(
                group.map_or(step.get() == i, |g| g.contains(&loadmaster_graph::Step(i))),
                "seed {seed}: {step} left its group"
            );
        }
    }
    assert!(lower > 20, "only {lower} orders were lower");
}

/// The first seeds, or as many as `LOADMASTER_SEEDS` says: the same test soaks.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    0..std::env::var("LOADMASTER_SEEDS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

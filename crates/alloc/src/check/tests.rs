//! The checker against broken plans, and its sweep against a comparison of all pairs.

#[path = "../../tests/support/device.rs"]
#[allow(dead_code)]
mod device;
#[path = "../../tests/support/random.rs"]
#[allow(dead_code)]
mod random;

use super::lifetimes::Lifetimes;
use super::{CheckError, Checker, order};
use crate::in_place::InPlaceTable;
use crate::lowered::{ArenaId, ItemId};
use crate::pack::ChunkId;
use crate::place::{BestOptions, InPlaceTables, Placer, plan};
use crate::plan::{AllocPlan, Placement};
use loadmaster_graph::{Bytes, Step};
use random::{LoweredWorld, Rng, World};

struct Case<'w> {
    world: &'w World,
    lowered: &'w LoweredWorld<'w>,
    in_place: InPlaceTables,
}

impl Case<'_> {
    fn check(&self, plan: &AllocPlan) -> Result<(), CheckError> {
        let Self { world, lowered, in_place } = self;
        Checker { graph: &lowered.graph, arenas: &world.arenas, ids: lowered.ids(), in_place }.check(plan)
    }

    fn plan(&self) -> AllocPlan {
        let placer = Placer::Best(BestOptions { in_place: self.in_place.clone(), ..BestOptions::default() });
        plan(&self.lowered.graph, &self.world.arenas, self.lowered.ids(), &placer).unwrap()
    }

    /// Pairs that share bytes at a step at which both are needed, but for nodes that read the other then.
    fn shares_bytes(&self, plan: &AllocPlan) -> bool {
        let graph = &self.lowered.graph;
        let steps = order::positions(graph, plan).unwrap();
        let lifetimes = Lifetimes::new(graph, self.lowered.ids(), &steps, plan.unused_inputs());
        let home = |p: &Placement| (self.world.arenas.home(p.arena), p.chunk);
        let placed: Vec<(ItemId, Placement)> = plan.placed().filter(|(_, p)| p.size > Bytes::ZERO).collect();
        let meet = |(a, p): &(ItemId, Placement), (b, q): &(ItemId, Placement)| {
            let (Some(s), Some(t)) = (lifetimes.of(*a), lifetimes.of(*b)) else { return false };
            let bytes = p.offset < q.offset.saturating_add(q.size) && q.offset < p.offset.saturating_add(p.size);
            let reads = |node: &ItemId, other: &ItemId| {
                graph.sources(*node).iter().flatten().any(|&x| graph.item(x).root.unwrap_or(x) == *other)
            };
            let in_place = s.last == t.first && reads(b, a) || t.last == s.first && reads(a, b);
            a != b && home(p) == home(q) && bytes && s.first <= t.last && t.first <= s.last && !in_place
        };
        placed.iter().any(|a| placed.iter().any(|b| meet(a, b)))
    }
}

fn for_each_case(seeds: std::ops::Range<u64>, mut see: impl FnMut(&Case<'_>, &mut Rng)) {
    for seed in seeds {
        let world = World::new(seed, 6 + (seed as usize * 5) % 60);
        let lowered = world.lowered();
        let in_place = InPlaceTable::loadmaster().into();
        see(&Case { world: &world, lowered: &lowered, in_place }, &mut Rng::new(seed));
    }
}

#[test]
fn moving_a_tensor_is_found_exactly_when_all_pairs_show_an_overlap() {
    let (mut found, mut fine) = (0, 0);
    for_each_case(0..200, |case, rng| {
        let sound = case.plan();
        assert!(!case.shares_bytes(&sound));
        let placed: Vec<(ItemId, Placement)> = sound.placed().filter(|(_, p)| p.size > Bytes::ZERO).collect();
        for _ in 0..if placed.is_empty() { 0 } else { 20 } {
            let (moved, place) = placed[rng.below(placed.len())];
            let (_, target) = placed[rng.below(placed.len())];
            if case.world.arenas.home(place.arena) != case.world.arenas.home(target.arena) {
                continue;
            }
            let mut broken = sound.clone();
            broken.placements[moved.index()] = Some(Placement { offset: target.offset, chunk: target.chunk, ..place });
            match (case.check(&broken), case.shares_bytes(&broken)) {
                (Ok(()), shares) => {
                    assert!(!shares, "an overlap that the checker did not see");
                    fine += 1;
                }
                (Err(CheckError::Overlap { .. }), shares) => {
                    assert!(shares, "an overlap that is none");
                    found += 1;
                }
                (Err(_), _) => {}
            }
        }
    });
    assert!(found > 300 && fine > 100, "{found} overlaps found, {fine} moves without one");
}

#[test]
fn every_kind_of_broken_place_has_its_own_error() {
    let mut seen = [0; 8];
    for_each_case(0..60, |case, rng| {
        let sound = case.plan();
        let placed: Vec<(ItemId, Placement)> = sound.placed().filter(|(_, p)| p.size > Bytes::ZERO).collect();
        if placed.is_empty() {
            return;
        }
        let (item, place) = placed[rng.below(placed.len())];
        let with = |new: Option<Placement>| {
            let mut broken = sound.clone();
            broken.placements[item.index()] = new;
            case.check(&broken)
        };
        let mut expect = |i: usize, result: Result<(), CheckError>, right: fn(&CheckError) -> bool| {
            let fault = result.unwrap_err();
            assert!(right(&fault), "{fault}");
            seen[i] += 1;
        };
        expect(0, with(None), |e| matches!(e, CheckError::Unplaced { .. }));
        let far = Placement { offset: Bytes(1 << 40), ..place };
        expect(1, with(Some(far)), |e| matches!(e, CheckError::PastChunk { .. }));
        let end = Placement { offset: Bytes(u64::MAX - 127), ..place };
        expect(1, with(Some(end)), |e| matches!(e, CheckError::PastChunk { .. }));
        let chunk = Placement { chunk: ChunkId::new(99), ..place };
        expect(2, with(Some(chunk)), |e| matches!(e, CheckError::NoSuchChunk { .. }));
        let arena = Placement { arena: ArenaId::new(99), ..place };
        expect(3, with(Some(arena)), |e| matches!(e, CheckError::NoSuchArena { .. }));
        let small = Placement { size: Bytes(place.size.get() - 1), ..place };
        expect(4, with(Some(small)), |e| matches!(e, CheckError::TooSmall { .. }));
        if case.world.arenas.buffer_type(place.arena).alignment().get() > 1 {
            let odd = Placement { offset: Bytes(place.offset.get() + 1), ..place };
            expect(5, with(Some(odd)), |e| matches!(e, CheckError::Misaligned { .. }));
        }
        let view = (0..case.lowered.graph.items().len()).map(ItemId::new).find(|&i| sound.placement(i).is_none());
        if let Some(view) = view {
            let mut broken = sound.clone();
            broken.placements[view.index()] = Some(place);
            expect(6, case.check(&broken), |e| matches!(e, CheckError::NotToBePlaced { .. }));
        }
        let mut short = sound.clone();
        let home = case.world.arenas.home(place.arena);
        short.chunks[home].clear();
        expect(7, case.check(&short), |e| matches!(e, CheckError::NoSuchChunk { .. }));
    });
    assert!(seen.iter().all(|&n| n > 5), "{seen:?}");
}

#[test]
fn a_result_over_a_source_is_found_where_the_table_does_not_allow_it() {
    let mut found = 0;
    for_each_case(0..200, |case, _| {
        let plan = case.plan();
        let strict = Case { in_place: InPlaceTable::none().into(), ..*case };
        match strict.check(&plan) {
            Ok(()) => assert!(plan.reuses().iter().all(|r| plan.placement(r.node).unwrap().size == Bytes::ZERO)),
            Err(CheckError::Reuse { .. }) => found += 1,
            Err(other) => panic!("{other}"),
        }
    });
    assert!(found > 50, "{found}");
}

#[test]
fn an_order_that_breaks_a_dependency_or_is_no_permutation_is_found() {
    let (mut dependencies, mut fine) = (0, 0);
    for_each_case(0..200, |case, rng| {
        let graph = &case.lowered.graph;
        let count = graph.nodes().len();
        if count < 2 {
            return;
        }
        let mut plan = case.plan();
        plan.order = Some(vec![Step(0); count]);
        assert!(matches!(case.check(&plan), Err(CheckError::NoPermutation { .. })));
        plan.order = Some((1..=count as u32).map(Step).collect());
        assert!(matches!(case.check(&plan), Err(CheckError::NoPermutation { .. })));
        plan.order = Some(Vec::new());
        assert!(matches!(case.check(&plan), Err(CheckError::NoPermutation { .. })));
        let mut swapped: Vec<Step> = (0..count as u32).map(Step).collect();
        let at = rng.below(count - 1);
        swapped.swap(at, at + 1);
        let (first, second) = (graph.nodes()[at], graph.nodes()[at + 1]);
        plan.order = Some(swapped);
        let depends = graph.sources(second).contains(&Some(first));
        match case.check(&plan) {
            Err(CheckError::Dependency { .. }) => dependencies += 1,
            _ => {
                assert!(!depends, "{second} runs before its source {first}");
                fine += 1;
            }
        }
    });
    assert!(dependencies > 20 && fine > 20, "{dependencies} {fine}");
}

//! Plans of the golden graphs: the reference's to the byte, the best ones against the bound, all through the checker.

#[path = "support/golden.rs"]
mod golden;

use golden::Golden;
use loadmaster_alloc::{AllocPlan, BestOptions, BufferIds, Checker, InPlaceTable, InPlaceTables, Placer, plan};
use loadmaster_graph::{Bytes, GraphFile};

fn ids<'a>(golden: &'a Golden<'_>) -> BufferIds<'a> {
    BufferIds::Each { nodes: &golden.node_ids, leafs: &golden.leaf_ids }
}

fn planned(golden: &Golden<'_>, placer: &Placer, in_place: &InPlaceTables) -> AllocPlan {
    let plan = plan(&golden.graph, &golden.arenas, ids(golden), placer).unwrap();
    let checker = Checker { graph: &golden.graph, arenas: &golden.arenas, ids: ids(golden), in_place };
    checker.check(&plan).unwrap();
    plan
}

fn best(table: InPlaceTable) -> (Placer, InPlaceTables) {
    let in_place = InPlaceTables::from(table);
    (Placer::Best(BestOptions { in_place: in_place.clone(), ..BestOptions::default() }), in_place)
}

fn for_each_file(mut see: impl FnMut(&str, &Golden<'_>)) {
    let paths = golden::paths();
    assert_eq!(paths.len(), 154);
    for path in paths {
        let file = GraphFile::read_path(&path).unwrap();
        see(path.file_name().unwrap().to_str().unwrap(), &golden::lowered(&file));
    }
}

#[test]
fn every_offset_and_size_of_every_golden_graph_is_the_references() {
    let mut checked = 0;
    for_each_file(|name, golden| {
        let plan = planned(golden, &Placer::Ggml, &InPlaceTable::ggml().into());
        let (Some(sizes), Some(places)) = (&golden.sizes, &golden.places) else { return };
        let found: Vec<Bytes> = plan.buffer_sizes().values().copied().collect();
        assert_eq!(&found, sizes, "{name}");
        for &(item, expected) in places {
            let found = plan.placement(item).map(|p| (p.arena.index(), p.chunk.index(), p.offset, p.size));
            let expected = expected.map(|p| (p.buffer.index(), p.chunk as usize, p.offset, p.size));
            assert_eq!(found, expected, "{name}: {item}");
        }
        checked += 1;
    });
    assert_eq!(checked, 106);
}

#[test]
fn best_never_needs_more_than_the_reference_in_any_arena() {
    for_each_file(|name, golden| {
        let reference = planned(golden, &Placer::Ggml, &InPlaceTable::ggml().into());
        for table in [InPlaceTable::ggml(), InPlaceTable::loadmaster()] {
            let (placer, in_place) = best(table);
            let plan = planned(golden, &placer, &in_place);
            for arena in golden.arenas.ids() {
                assert!(plan.buffer_size(arena) <= reference.buffer_size(arena), "{name}: {arena}");
            }
        }
    });
}

#[test]
fn best_writes_nothing_over_its_sources_where_the_table_forbids_it() {
    for_each_file(|name, golden| {
        let (placer, in_place) = best(InPlaceTable::none());
        assert!(planned(golden, &placer, &in_place).reuses().is_empty(), "{name}");
    });
}

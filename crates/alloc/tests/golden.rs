//! Plans of the golden graphs: the reference's to the byte, the best ones against the bound, all through the checker.
#![allow(clippy::unwrap_used, clippy::panic)] // A test fails by a panic, helpers included.

#[path = "support/golden.rs"]
mod golden;

use golden::Golden;
use loadmaster_alloc::{
    AllocPlan, BestOptions, BufferIds, Checker, InPlaceTable, InPlaceTables, Placer, Reorder, UnusedInputs, plan,
    report,
};
use loadmaster_graph::{Bytes, GraphFile, Step};

/// Graphs of real models with real shapes.
const FULL_SIZE: [&str; 6] = ["llama3-8b", "llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b", "qwen3-235b", "smollm2"];

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

/// Everything that lowers a peak without another schedule of splits: the project's own in-place table, another order
/// inside splits, inputs that nobody reads dropped.
fn smallest() -> BestOptions {
    BestOptions {
        in_place: InPlaceTable::loadmaster().into(),
        order: Reorder::WithinGroups,
        unused_inputs: UnusedInputs::Drop,
        ..BestOptions::default()
    }
}

fn for_each_file(mut see: impl FnMut(&str, &Golden<'_>)) {
    let paths = golden::paths();
    assert_eq!(paths.len(), 154);
    for path in paths {
        let file = GraphFile::read_path(&path).unwrap();
        let mut golden = golden::lowered(&file);
        for run in golden::runs(&file) {
            golden.graph.add_group(Step(run.start as u32)..Step(run.end as u32));
        }
        see(path.file_name().unwrap().to_str().unwrap(), &golden);
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

#[test]
fn best_reaches_the_lower_bound_wherever_no_chunk_limit_stands_in_the_way() {
    let (mut size, mut bound) = (0u64, 0u64);
    for_each_file(|name, golden| {
        for table in [InPlaceTable::ggml(), InPlaceTable::loadmaster()] {
            let (placer, in_place) = best(table);
            let plan = planned(golden, &placer, &in_place);
            let report = report(&golden.graph, &golden.arenas, ids(golden), &plan).unwrap();
            for arena in &report.arenas {
                assert!(arena.lower_bound <= arena.size, "{name}: {}", arena.arena);
                assert_eq!(arena.profile.iter().max(), Some(&arena.alive_at_peak.iter().map(|h| h.size).sum()));
                let limited = golden.arenas.buffer_type(arena.arena).max_size().is_some();
                assert!(
                    limited || !FULL_SIZE.iter().any(|f| name.starts_with(f)) || arena.is_proved(),
                    "{name}: {arena:?}"
                );
            }
            size += report.size().get();
            bound += report.lower_bound().get();
        }
    });
    assert!(size as f64 <= 1.001 * bound as f64, "{size} bytes, bound {bound}");
}

#[test]
fn the_own_table_order_and_dropped_inputs_save_an_eighth_of_the_references_bytes() {
    let (mut logs, mut table_logs) = (Vec::new(), Vec::new());
    let mut reordered = 0;
    for_each_file(|name, golden| {
        let reference = planned(golden, &Placer::Ggml, &InPlaceTable::ggml().into());
        let (placer, in_place) = best(InPlaceTable::loadmaster());
        let table = planned(golden, &placer, &in_place);
        let all = planned(golden, &Placer::Best(smallest()), &in_place);
        for arena in golden.arenas.ids() {
            assert!(all.buffer_size(arena) <= table.buffer_size(arena), "{name}: {arena}");
        }
        reordered += usize::from(all.order().is_some());
        // One graph of each full-size configuration: the batch that llama.cpp reserves for.
        if FULL_SIZE.iter().any(|f| name.starts_with(f)) && name.ends_with(".003.json.gz") {
            let ratio = |plan: &AllocPlan| (plan.total_size().get() as f64 / reference.total_size().get() as f64).ln();
            logs.push(ratio(&all));
            table_logs.push(ratio(&table));
        }
    });
    let mean = |logs: &[f64]| (logs.iter().sum::<f64>() / logs.len() as f64).exp();
    assert_eq!(logs.len(), 16);
    assert!(mean(&table_logs) < 0.881, "{}", mean(&table_logs));
    assert!(mean(&logs) < 0.874, "{}", mean(&logs));
    assert!(reordered >= 5, "only {reordered} graphs have a lower order");
}

//! The table of kernels: what is launched exists, what exists is launched.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::launches;
use super::library_tests::with_view;
use super::sources::{HEADERS, SOURCES};
use super::types::{Base, Launch, LmTensor, Place, Target, Work};
use crate::cpu::supports;
use loadmaster_graph::DType;
use loadmaster_graph::file::GraphFile;
use std::collections::BTreeSet;

/// Kernels by source, as kernels.def lists them.
fn defined() -> Vec<(&'static str, &'static str)> {
    let table = include_str!("../kernels/kernels.def").lines().filter_map(|l| l.strip_prefix("LM_KERNEL(\""));
    table
        .map(|line| {
            let (source, rest) = line.split_once("\", ").unwrap();
            (source, rest.split_once(',').unwrap().0)
        })
        .collect()
}

#[test]
fn every_header_that_a_source_includes_is_carried_along() {
    for (name, text) in SOURCES.iter().chain(HEADERS) {
        for line in text.lines().filter_map(|l| l.strip_prefix("#include \"")) {
            let header = line.trim_end_matches('"');
            assert!(HEADERS.iter().any(|(h, _)| *h == header), "{name} includes {header}");
        }
    }
    for (source, kernel) in defined() {
        assert!(SOURCES.iter().any(|(s, _)| *s == source), "{kernel} stands in {source}.cu, which is not carried");
    }
}

#[test]
fn every_product_that_a_weight_type_can_be_given_exists_and_no_other_does() {
    let named: BTreeSet<_> = DType::ALL.iter().flat_map(|&dtype| super::products::named(dtype)).collect();
    let products = defined().into_iter().filter(|(source, _)| source.starts_with("mul_mat"));
    assert_eq!(named, products.collect());
}

fn check_work(work: &Work, scratch: u64, place: &str) {
    match work {
        Work::Kernel(launch) => check_launch(launch, scratch, place),
        Work::Product(product) => panic!("{place}: {product:?} without a library"),
    }
}

fn check_launch(launch: &Launch, scratch: u64, place: &str) {
    assert!(defined().contains(&(launch.source, launch.kernel)), "{place}: {} in {}", launch.kernel, launch.source);
    let [x, y, z] = launch.grid;
    assert!((1..=i32::MAX as u32).contains(&x) && (1..=65_535).contains(&y) && (1..=65_535).contains(&z), "{place}");
    let threads = launch.block.iter().product::<u32>();
    assert!(threads.is_multiple_of(32) && (32..=1024).contains(&threads), "{place}: {threads} threads");
    let used = |(place, tensor): (&Place, &LmTensor)| {
        let last = tensor.ne.iter().zip(tensor.nb).skip(1).map(|(n, nb)| (n - 1) * nb).sum::<i64>();
        (place.base == Base::Scratch).then(|| place.offset + (last + tensor.ne[0] * tensor.nb[0]) as u64)
    };
    let places = std::iter::once(&launch.dst).chain(&launch.src);
    let ends = places.zip(std::iter::once(&launch.args.dst).chain(&launch.args.src)).filter_map(used);
    ends.for_each(|end| assert!(end <= scratch, "{place}: {end} bytes of {scratch} of scratch memory"));
}

#[test]
fn every_node_of_the_golden_graphs_that_the_cpu_computes_has_launches_and_others_are_refused_by_name() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/graphs");
    let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    paths.sort();
    let target = Target { arch: 80, multiprocessors: 108, library: None };
    let mut launched = 0;
    for path in paths {
        let graph = GraphFile::read_path(&path).unwrap().graph;
        for &id in graph.nodes().values() {
            let types: Vec<_> = graph.tensor(id).src.iter().map(|s| s.map(|s| graph.tensor(s).dtype)).collect();
            let tensor = graph.tensor(id);
            let place = format!("{} {id} {}", path.display(), tensor.op);
            match with_view(&graph, id, |view| launches(view, &target)) {
                Ok(launches) => {
                    launches.list.iter().for_each(|w| check_work(w, launches.scratch_bytes, &place));
                    launched += launches.list.len();
                }
                Err(error) => {
                    assert!(!supports(tensor.op, &types, tensor.dtype), "{place}: {error}");
                    assert!(error.why.contains(tensor.op.name()), "{place}: {error}");
                }
            }
        }
    }
    assert!(launched > 10_000, "{launched} launches");
}

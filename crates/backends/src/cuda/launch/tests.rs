//! The table of kernels: what is launched exists, what exists is launched.

#![allow(clippy::unwrap_used, clippy::panic)]

use super::sources::{HEADERS, SOURCES};

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

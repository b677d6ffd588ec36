//! Any bytes as a graph file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    loadmaster_graph::fuzz::fuzz_graph_file(bytes);
});

//! Any bytes as the text form of a graph.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    loadmaster_graph::fuzz::fuzz_text(bytes);
});

//! Any bytes as instructions to the builder.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = loadmaster_graph::fuzz::fuzz_builder(bytes);
});

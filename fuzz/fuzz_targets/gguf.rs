//! Any bytes as a model file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = loadmaster_models::fuzz::load_everything(bytes);
});

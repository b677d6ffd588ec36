//! Mutated model files through the whole chain: an error or a result, never a panic.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use loadmaster_models::fuzz::{self, Reached};
use loadmaster_models::gguf::{MetaValue, Writer};
use support::golden_path;

fn golden(path: &str) -> Vec<u8> {
    std::fs::read(golden_path(path)).expect("golden")
}

/// How many of `seeds` mutations of `source` get how far.
fn swarm(source: &[u8], seeds: std::ops::Range<u64>, mutate: fn(&[u8], u64) -> Vec<u8>) -> [usize; 4] {
    let mut counts = [0; 4];
    for seed in seeds {
        counts[fuzz::load_everything(&mutate(source, seed)) as usize] += 1;
    }
    counts
}

#[test]
fn mutated_headers_never_panic() {
    let source = golden("headers/llama3-8b.gguf");
    assert_eq!(fuzz::load_everything(&source), Reached::Graph);
    let counts = swarm(&source, 0..1500, fuzz::mutate_in_place);
    assert!(counts.iter().all(|&c| c > 0), "mutations fail at every stage: {counts:?}");
    swarm(&source, 0..500, fuzz::mutate);
}

#[test]
fn mutated_metadata_never_panics() {
    // Metadata alone: every mutation hits a key, a length or a value.
    let source = golden("tiny-gemma3-Q8_0.gguf");
    let end = source.windows(10).position(|w| w == b"\x0d\0\0\0\0\0\0\0ou").expect("the first tensor's name");
    let mut head = source[..end].to_vec();
    head[8..16].copy_from_slice(&0u64.to_le_bytes());
    assert_eq!(fuzz::load_everything(&head), Reached::File, "no tensors, so no hyper-parameters");
    let counts = swarm(&head, 0..10_000, fuzz::mutate);
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
}

#[test]
fn mutated_vocabularies_never_panic() {
    let alice = golden("alice-Q8_0.gguf");
    // The vocabulary and the tensor table, without the data.
    let header = &alice[..16 << 10];
    swarm(header, 0..3000, fuzz::mutate);
    let whole = Writer::new()
        .with("tokenizer.ggml.model", MetaValue::String("llama".into()))
        .with("tokenizer.ggml.tokens", MetaValue::Strings((0..40).map(|i| format!("<0x{i:02X}>")).collect()))
        .with("tokenizer.ggml.scores", MetaValue::F32s(vec![0.0; 40]))
        .with("tokenizer.ggml.token_type", MetaValue::I32s(vec![6; 40]))
        .with(
            "tokenizer.chat_template",
            MetaValue::String("{{ messages | length }}{% if bos_token %}x{% endif %}".into()),
        )
        .bytes();
    let counts = swarm(&whole, 0..3000, fuzz::mutate_in_place);
    assert!(counts[0] > 0 && counts[1] > 0, "{counts:?}");
}

#[test]
fn arbitrary_bytes_after_the_magic_never_panic() {
    swarm(&[b"GGUF\x03\0\0\0".as_slice(), &[0; 120]].concat(), 0..5000, fuzz::mutate);
}

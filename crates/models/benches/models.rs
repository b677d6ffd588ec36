//! Opening model files, building tokenizers and graphs, filling inputs.

#![allow(clippy::unwrap_used, clippy::panic)]

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use loadmaster_graph::DType;
use loadmaster_models::SharedBytes;
use loadmaster_models::families::{
    self, Attention, BatchShape, CacheRequest, GraphSpec, Homes, KvLayout, SlidingCells,
};
use loadmaster_models::gguf::Gguf;
use loadmaster_models::hparams::HParams;
use loadmaster_models::inputs::InputFiller;
use loadmaster_models::kv::{Batch, KvState, Pos, SequenceId, Sharing};
use loadmaster_models::tokenizer::{Ends, Specials, TokenId, Tokenizer};
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;

/// The bytes of a file of the repository; `None` if it is not there.
fn bytes(path: &str) -> Option<SharedBytes> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read(path).ok().map(|b| Arc::new(b) as SharedBytes)
}

const FILES: [(&str, &str); 3] = [
    ("llama3-70b header, 44 KB", "tests/goldens/models/headers/llama3-70b.gguf"),
    ("SmolLM2, 98 MB", "models/SmolLM2-135M-Instruct.Q4_1.gguf"),
    ("Gemma 3, 253 MB", "models/gemma-3-270m-q4_k_m.gguf"),
];

fn opening(c: &mut Criterion) {
    for (name, path) in FILES {
        let Some(bytes) = bytes(path) else { continue };
        c.bench_function(&format!("open {name}"), |b| b.iter(|| Gguf::from_bytes(black_box(bytes.clone()))));
    }
}

fn tokenizing(c: &mut Criterion) {
    let prose = "It was the best of times, it was the worst of times; naïve café 1234, isn't it?\n".repeat(100);
    for (name, path) in &FILES[1..] {
        let Some(model) = bytes(path).and_then(|b| Gguf::from_bytes(b).ok()) else { continue };
        c.bench_function(&format!("tokenizer of {name}"), |b| b.iter(|| Tokenizer::from_gguf(black_box(&model))));
        let Ok(tokenizer) = Tokenizer::from_gguf(&model) else { continue };
        let mut group = c.benchmark_group("encode");
        group.throughput(Throughput::Bytes(prose.len() as u64));
        group.bench_function(*name, |b| b.iter(|| tokenizer.encode(&prose, Specials::AsText, Ends::Bare)));
        group.finish();
    }
}

fn graphs(c: &mut Criterion) {
    let Some(model) = bytes(FILES[0].1).and_then(|b| Gguf::from_bytes(b).ok()) else { return };
    let Ok(params) = HParams::from_gguf(&model) else { return };
    let request = CacheRequest {
        context: 8192,
        sequences: 1,
        sharing: Sharing::Unified,
        micro_batch: 512,
        sliding: SlidingCells::Full,
        key_type: DType::F16,
        value_type: DType::F16,
    };
    let Ok(layout) = KvLayout::new(&params, &request) else { return };
    let shape = BatchShape::largest(&layout, 512);
    let spec = GraphSpec { shape, layout, attention: Attention::Flash, homes: Homes::single(&params) };
    c.bench_function("graph of llama3-70b, 2,486 nodes", |b| b.iter(|| families::build(&model, &params, &spec)));

    for (name, first, count) in [("1 token at 4,000", 4000, 1), ("512 tokens at 7,000", 7000, 512)] {
        let mut state = KvState::new(&layout, 1, None);
        let before = vec![TokenId::new(1); first];
        let sequence = SequenceId::new(0);
        for (batch, tokens) in [(Pos(0), &before[..]), (Pos(first as u32), &before[..count])] {
            let batch = Batch::of_sequence(sequence, batch, tokens);
            let Ok(parts) = state.prepare(&batch, 8192) else { return };
            for (part, slots) in &parts {
                state.apply(part, slots);
            }
            if tokens.len() != count {
                continue;
            }
            let (part, slots) = &parts[0];
            let spec = GraphSpec { shape: BatchShape::of(part, slots, &state), ..spec.clone() };
            let Ok(built) = families::build(&model, &params, &spec) else { return };
            let mut out = Vec::new();
            c.bench_function(&format!("inputs of {name}"), |b| {
                b.iter(|| {
                    let mut filler = InputFiller::new(&params, Attention::Flash, &state, part, slots);
                    for input in &built.inputs {
                        let _ = black_box(filler.fill(input.kind, built.graph.tensor(input.tensor), &mut out));
                    }
                });
            });
        }
    }
}

criterion_group!(benches, opening, tokenizing, graphs);
criterion_main!(benches);

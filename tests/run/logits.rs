//! Logits of the tiny models: near the golden ones, and the same bits wherever the layers are.

use super::support::{forced_tokens, goldens, open, prompt_tokens, steps, tiny};
use loadmaster::engine::{Engine, Model, Settings};
use loadmaster::placement::{CacheHome, GpuLayers, Override};
use loadmaster_graph::DType;
use loadmaster_models::families::Attention;
use std::num::NonZeroU32;
use std::sync::Arc;

pub const MODELS: [&str; 20] = [
    "tiny-gemma3-Q8_0",
    "tiny-llama-BF16",
    "tiny-llama-F16",
    "tiny-llama-IQ4_NL",
    "tiny-llama-IQ4_XS",
    "tiny-llama-Q2_K",
    "tiny-llama-Q3_K_M",
    "tiny-llama-Q4_0",
    "tiny-llama-Q4_1",
    "tiny-llama-Q4_K_M",
    "tiny-llama-Q5_0",
    "tiny-llama-Q5_1",
    "tiny-llama-Q5_K_M",
    "tiny-llama-Q6_K",
    "tiny-llama-Q8_0",
    "tiny-mixtral-Q8_0",
    "tiny-phi3-Q4_1",
    "tiny-qwen2-Q4_0",
    "tiny-qwen3-Q5_K_M",
    "tiny-qwen3moe-Q4_K_M",
];

/// Devices, and how many layers go to GPUs.
const PLACEMENTS: [(&[&str], Option<u32>); 5] = [
    (&["cpu"], None),
    (&["sim:64MiB", "sim:64MiB"], None),
    (&["sim:64MiB"], Some(2)),
    (&["sim:64MiB,chunk=1MiB", "sim:32MiB", "cpu"], Some(2)),
    (&["sim:64MiB"], None),
];

pub fn golden(model: &str) -> Vec<Vec<f32>> {
    let text = std::fs::read_to_string(goldens().join(format!("logits/{model}.jsonl"))).expect("golden data is there");
    let line = |line: &str| {
        let value: serde_json::Value = serde_json::from_str(line).expect("golden data is JSON");
        let logits = value["logits"].as_array().expect("logits");
        logits.iter().map(|v| v.as_f64().expect("a number") as f32).collect()
    };
    text.lines().map(line).collect()
}

/// Σ(a−b)² / Σb².
pub fn error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let square = |x: f32| f64::from(x) * f64::from(x);
    let difference: f64 = found.iter().zip(expected).map(|(a, b)| square(a - b)).sum();
    difference / expected.iter().map(|&b| square(b)).sum::<f64>()
}

pub fn run(model: &Arc<Model>, specs: &[&str], change: impl FnOnce(&mut Settings)) -> Vec<Vec<f32>> {
    let mut engine: Engine = open(model, specs, |s| {
        s.context = 256;
        change(s);
    })
    .expect("it loads");
    steps(&mut engine, &prompt_tokens(), &forced_tokens()).expect("it runs")
}

fn layers(count: Option<u32>) -> GpuLayers {
    count.map_or(GpuLayers::All, GpuLayers::Count)
}

#[test]
fn tiny_models_give_the_golden_logits_bit_for_bit_the_same_on_every_placement() {
    for name in MODELS {
        let model = tiny(&format!("{name}.gguf"));
        let plain = ["F32", "F16", "BF16"].iter().any(|t| name.ends_with(t));
        let bound = if plain { 1e-5 } else { 1e-3 };
        let expected = golden(name);
        let mut first: Option<Vec<Vec<f32>>> = None;
        for (specs, count) in PLACEMENTS {
            let found = run(&model, specs, |s| s.gpu_layers = layers(count));
            assert_eq!(found.len(), expected.len());
            for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let error = error(found, expected);
                assert!(error <= bound, "{name} on {specs:?}, step {step}: {error:e}");
            }
            match &first {
                None => first = Some(found),
                Some(first) => assert!(same_bits(first, &found), "{name} on {specs:?} differs from the CPU alone"),
            }
        }
    }
}

pub fn same_bits(a: &[Vec<f32>], b: &[Vec<f32>]) -> bool {
    let bits = |all: &[Vec<f32>]| all.iter().flatten().map(|f| f.to_bits()).collect::<Vec<_>>();
    bits(a) == bits(b)
}

/// What a variant of a run changes.
type Change = fn(&mut Settings);

#[test]
fn other_attention_caches_policies_and_batches_stay_near_the_golden_logits() {
    let ggml: Change = |s| s.placer = loadmaster_alloc::Placer::Ggml;
    let flash: Change = |s| s.attention = Attention::Flash;
    let host_cache: Change = |s| s.cache = CacheHome::Host;
    let small_batches: Change = |s| s.micro_batch = 7;
    let pipelined: Change = |s| {
        s.micro_batch = 6;
        s.copies = NonZeroU32::new(4).expect("four");
    };
    let wide_cache: Change = |s| (s.key_type, s.value_type) = (DType::F32, DType::F32);
    let variants = [
        ("ggml", ggml),
        ("flash", flash),
        ("host cache", host_cache),
        ("small batches", small_batches),
        ("pipelined", pipelined),
        ("f32 cache", wide_cache),
    ];
    for name in ["tiny-llama-F16", "tiny-gemma3-Q8_0", "tiny-mixtral-Q8_0", "tiny-phi3-Q4_1", "tiny-qwen3moe-Q4_K_M"] {
        let model = tiny(&format!("{name}.gguf"));
        let expected = golden(name);
        for (variant, change) in variants {
            let mut first: Option<Vec<Vec<f32>>> = None;
            for (specs, count) in PLACEMENTS {
                let found = run(&model, specs, |s| {
                    s.gpu_layers = layers(count);
                    change(s);
                });
                let worst = found.iter().zip(&expected).map(|(a, b)| error(a, b)).fold(0.0, f64::max);
                assert!(worst <= 1e-3, "{name}, {variant}, on {specs:?}: {worst:e}");
                match &first {
                    None => first = Some(found),
                    Some(first) => {
                        assert!(same_bits(first, &found), "{name}, {variant}: {specs:?} differs from the CPU")
                    }
                }
            }
        }
    }
}

#[test]
fn a_policy_moves_bytes_and_never_a_bit_of_the_logits() {
    for name in ["tiny-llama-Q4_K_M", "tiny-qwen3-Q5_K_M"] {
        let model = tiny(&format!("{name}.gguf"));
        let best = run(&model, &["sim:64MiB", "sim:64MiB"], |_| {});
        let ggml = run(&model, &["sim:64MiB", "sim:64MiB"], |s| s.placer = loadmaster_alloc::Placer::Ggml);
        assert!(same_bits(&best, &ggml), "{name}");
    }
}

#[test]
fn weights_of_experts_on_the_host_give_the_same_bits() {
    for name in ["tiny-mixtral-Q8_0", "tiny-qwen3moe-Q4_K_M"] {
        let model = tiny(&format!("{name}.gguf"));
        let specs = ["sim:64MiB"];
        let machine = super::support::machine(&specs);
        let whole = run(&model, &specs, |_| {});
        let split = run(&model, &specs, |s| {
            s.overrides = vec![Override::parse("exps=CPU", &machine).expect("an override")];
        });
        assert!(same_bits(&whole, &split), "{name}");
    }
}

#[test]
fn quantized_caches_stay_close() {
    let model = tiny("tiny-llama-Q8_0.gguf");
    let expected = golden("tiny-llama-Q8_0");
    let mut first: Option<Vec<Vec<f32>>> = None;
    for (specs, count) in PLACEMENTS {
        let found = run(&model, specs, |s| {
            s.gpu_layers = layers(count);
            s.attention = Attention::Flash;
            (s.key_type, s.value_type) = (DType::Q8_0, DType::Q8_0);
        });
        let worst = found.iter().zip(&expected).map(|(a, b)| error(a, b)).fold(0.0, f64::max);
        assert!(worst <= 1e-2, "{specs:?}: {worst:e}");
        match &first {
            None => first = Some(found),
            Some(first) => assert!(same_bits(first, &found), "{specs:?} differs from the CPU"),
        }
    }
}

#[test]
fn steady_decoding_plans_nothing_and_takes_no_memory() {
    let model = tiny("tiny-llama-Q4_0.gguf");
    let mut engine = open(&model, &["sim:64MiB", "sim:64MiB"], |s| s.context = 256).expect("it loads");
    steps(&mut engine, &prompt_tokens(), &forced_tokens()).expect("it runs");
    let (planned, stats) = (engine.session_stats(), engine.device_stats());
    steps(&mut engine, &forced_tokens()[..1], &prompt_tokens()).expect("it runs");
    assert_eq!(engine.session_stats().planned, planned.planned);
    assert_eq!(engine.session_stats().bound, planned.bound);
    for (before, after) in stats.values().zip(engine.device_stats().values()) {
        assert_eq!(before.allocations, after.allocations);
        assert_eq!(before.compiled, after.compiled);
    }
}

//! Hyper-parameters of golden models, and files that contradict themselves.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use loadmaster_graph::DType;
use loadmaster_models::gguf::{Gguf, GgufFault, MetaValue, Subject, Writer};
use loadmaster_models::hparams::{Architecture, Experts, HParams, Layer, LayerId, RopeKind, RopeScaling};
use std::sync::Arc;
use support::{fetched_model, golden_model};

fn golden(name: &str) -> HParams {
    HParams::from_gguf(&golden_model(name)).expect("a golden model's metadata is fine")
}

#[test]
fn full_size_llama_and_mixtral_are_read() {
    let params = golden("headers/llama3-70b.gguf");
    assert_eq!((params.arch, params.embedding, params.layers.len()), (Architecture::Llama, 8192, 80));
    assert_eq!(params.layers[7], Layer { heads: 64, kv_heads: 8, feed_forward: 28672, sliding: false });
    assert_eq!((params.key_length, params.vocab, params.trained_context), (128, 128_256, 8192));
    assert_eq!((params.rope.kind, params.rope.dims, params.rope.freq_base), (RopeKind::Norm, 128, 500_000.0));
    assert_eq!(params.rope.original_context, 8192, "the trained context stands in for a missing original one");
    assert_eq!(params.experts, None);

    let params = golden("headers/mixtral-8x7b.gguf");
    assert_eq!(params.experts, Some(Experts { count: 8, used: 2, feed_forward: 14336 }));
}

#[test]
fn experts_of_qwen_have_a_width_of_their_own() {
    let params = golden("headers/qwen3-30b-a3b.gguf");
    assert_eq!(params.arch, Architecture::Qwen3Moe);
    assert_eq!(params.experts, Some(Experts { count: 128, used: 8, feed_forward: 768 }));
    assert_eq!(params.rope.kind, RopeKind::Neox);
}

#[test]
fn gemma_alternates_windows() {
    let params = golden("tiny-gemma3-Q8_0.gguf");
    assert_eq!(params.window, Some(32));
    assert!(params.is_sliding(LayerId::new(0)) && !params.is_sliding(LayerId::new(1)));
    assert_eq!(params.logit_softcap, None, "a cap of 0 is none");

    let Some(model) = fetched_model("gemma3", "gemma-3-270m-q4_k_m.gguf") else { return };
    let params = HParams::from_gguf(&model).expect("fine");
    assert_eq!(params.window, Some(512));
    let full: Vec<usize> = (0..18).filter(|&i| !params.layers[i].sliding).collect();
    assert_eq!(full, [5, 11, 17], "every sixth layer is full");
    assert_eq!((params.rope.base(false), params.rope.base(true)), (1e6, 1e4));
}

#[test]
fn every_tiny_model_is_read() {
    for name in ["llama-F16", "mixtral-Q8_0", "qwen2-Q4_0", "qwen3-Q5_K_M", "qwen3moe-Q4_K_M", "phi3-Q4_1"] {
        let params = golden(&format!("tiny-{name}.gguf"));
        assert_eq!(params.layers.len(), 2, "{name}");
        assert_eq!(params.rope.scaling, RopeScaling::Linear, "{name}");
    }
}

/// The least that a llama needs.
fn minimal() -> Vec<(&'static str, MetaValue)> {
    vec![
        ("general.architecture", MetaValue::String("llama".into())),
        ("llama.block_count", MetaValue::U32(2)),
        ("llama.context_length", MetaValue::U32(128)),
        ("llama.embedding_length", MetaValue::U32(64)),
        ("llama.feed_forward_length", MetaValue::U32(96)),
        ("llama.attention.head_count", MetaValue::U32(4)),
        ("llama.attention.layer_norm_rms_epsilon", MetaValue::F32(1e-5)),
    ]
}

fn file(pairs: &[(&str, MetaValue)]) -> Gguf {
    let writer = pairs.iter().fold(Writer::new(), |w, (key, value)| w.with(key, value.clone()));
    let writer = writer.with_tensor("token_embd.weight", DType::F32, &[64, 10], vec![0; 64 * 10 * 4]);
    Gguf::from_bytes(Arc::new(writer.bytes())).expect("opens")
}

/// The minimal file with `key` set to `value`.
fn with(key: &'static str, value: MetaValue) -> Gguf {
    let mut pairs = minimal();
    pairs.retain(|(k, _)| *k != key);
    pairs.push((key, value));
    file(&pairs)
}

#[test]
fn what_the_file_leaves_out_has_llama_cpps_defaults() {
    let params = HParams::from_gguf(&file(&minimal())).expect("fine");
    assert_eq!(params.layers, [Layer { heads: 4, kv_heads: 4, feed_forward: 96, sliding: false }; 2]);
    assert_eq!((params.key_length, params.value_length, params.rope.dims), (16, 16, 16));
    assert_eq!((params.rope.freq_base, params.rope.freq_scale, params.rope.ext_factor), (10_000.0, 1.0, 0.0));
    assert_eq!(params.attention_scale, 0.25);
}

#[test]
fn a_missing_key_is_named() {
    for (key, _) in minimal().iter().filter(|(key, _)| *key != "llama.feed_forward_length") {
        let mut pairs = minimal();
        pairs.retain(|(k, _)| k != key);
        let error = HParams::from_gguf(&file(&pairs)).expect_err("a key is missing");
        assert_eq!(error.place.subject, Subject::Key((*key).into()));
        assert_eq!(error.fault, GgufFault::Missing);
    }
}

#[test]
fn numbers_may_be_given_per_layer() {
    let model = with("llama.attention.head_count_kv", MetaValue::U32s(vec![2, 1]));
    let params = HParams::from_gguf(&model).expect("fine");
    assert_eq!([params.layers[0].kv_heads, params.layers[1].kv_heads], [2, 1]);
    assert_eq!(params.max_values_width(), 32);
    let error =
        HParams::from_gguf(&with("llama.attention.head_count_kv", MetaValue::U32s(vec![2]))).expect_err("short");
    assert!(error.to_string().contains("llama.attention.head_count_kv"), "{error}");
}

#[test]
fn linear_and_yarn_scaling_give_the_operations_parameters() {
    let linear = with("llama.rope.scaling.factor", MetaValue::F32(4.0));
    let rope = HParams::from_gguf(&linear).expect("fine").rope;
    assert_eq!((rope.freq_scale, rope.ext_factor, rope.attn_factor), (0.25, 0.0, 1.0));

    let mut pairs = minimal();
    pairs.push(("llama.rope.scaling.type", MetaValue::String("yarn".into())));
    pairs.push(("llama.rope.scaling.factor", MetaValue::F32(4.0)));
    pairs.push(("llama.rope.scaling.original_context_length", MetaValue::U32(32)));
    let rope = HParams::from_gguf(&file(&pairs)).expect("fine").rope;
    assert_eq!((rope.scaling, rope.ext_factor, rope.original_context), (RopeScaling::Yarn, 1.0, 32));
    assert!((rope.attn_factor - 1.0).abs() < 1e-6, "the kernel applies YaRN's magnitude itself");
}

#[test]
fn contradictions_are_refused_with_the_key() {
    let cases = [
        ("general.architecture", MetaValue::String("mamba".into())),
        ("llama.block_count", MetaValue::U32(0)),
        ("llama.block_count", MetaValue::U32(100_000)),
        ("llama.block_count", MetaValue::String("two".into())),
        ("llama.attention.head_count", MetaValue::U32(0)),
        ("llama.attention.layer_norm_rms_epsilon", MetaValue::F32(f32::NAN)),
        ("llama.attention.value_length", MetaValue::U32(8)),
        ("llama.rope.dimension_count", MetaValue::U32(7)),
        ("llama.rope.dimension_count", MetaValue::U32(8)),
        ("llama.rope.scaling.type", MetaValue::String("odd".into())),
        ("llama.expert_used_count", MetaValue::U32(2)),
    ];
    for (key, value) in cases {
        let error = HParams::from_gguf(&with(key, value.clone())).expect_err("refused");
        assert_eq!(error.place.subject, Subject::Key(key.into()), "{value:?}: {error}");
    }
}

//! Graphs of all families, rebuilt from parameters and compared with llama.cpp's, tensor by tensor.

#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use loadmaster_graph::file::GraphFile;
use loadmaster_graph::{Bytes, ColumnOrder, DType, Graph, Op, Tensor, TensorId};
use loadmaster_models::families::{
    self, Attention, BatchShape, CachePart, CacheRequest, FamilyError, GraphSpec, HomeId, Homes, InputKind, KvLayout,
    ModelGraph, Part, SlidingCells,
};
use loadmaster_models::gguf::{Gguf, GgufError, GgufFault, MetaValue, Subject, Value, Writer};
use loadmaster_models::hparams::{HParams, LayerId};
use loadmaster_models::kv::{CacheKind, Sharing};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use support::{golden_model, goldens};

/// Golden graphs whose names begin with one of these belong to the families.
const NAMES: [&str; 13] = [
    "smollm2.",
    "llama3-8b.",
    "llama3-70b.",
    "mixtral-8x7b.",
    "qwen3-30b-a3b.",
    "qwen3-235b-a22b.",
    "llama-dense.",
    "llama-moe.",
    "qwen2-dense.",
    "qwen3-dense.",
    "qwen3moe-moe.",
    "gemma3-dense.",
    "phi3-dense.",
];

fn golden_graphs(name: &str) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = std::fs::read_dir(goldens().join("graphs"))
        .expect("goldens are there")
        .map(|e| e.expect("readable").path())
        .filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with(name)))
        .collect();
    out.sort();
    assert!(!out.is_empty(), "{name}");
    out
}

/// Metadata of a model whose file is not at hand.
fn metadata(arch: &str, numbers: &[(&str, u32)], floats: &[(&str, f32)]) -> Writer {
    let mut writer = Writer::new().with("general.architecture", MetaValue::String(arch.into()));
    for (key, value) in numbers {
        writer = writer.with(&format!("{arch}.{key}"), MetaValue::U32(*value));
    }
    for (key, value) in floats {
        writer = writer.with(&format!("{arch}.{key}"), MetaValue::F32(*value));
    }
    writer
}

fn smollm2() -> Writer {
    let numbers = [
        ("block_count", 30),
        ("context_length", 8192),
        ("embedding_length", 576),
        ("feed_forward_length", 1536),
        ("attention.head_count", 9),
        ("attention.head_count_kv", 3),
    ];
    metadata("llama", &numbers, &[("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 1e5)])
}

fn qwen3_235b() -> Writer {
    let numbers = [
        ("block_count", 94),
        ("context_length", 40960),
        ("embedding_length", 4096),
        ("feed_forward_length", 12288),
        ("expert_feed_forward_length", 1536),
        ("expert_count", 128),
        ("expert_used_count", 8),
        ("attention.head_count", 64),
        ("attention.head_count_kv", 4),
        ("attention.key_length", 128),
        ("attention.value_length", 128),
    ];
    metadata("qwen3moe", &numbers, &[("attention.layer_norm_rms_epsilon", 1e-5), ("rope.freq_base", 1e6)])
}

/// The metadata of a tiny model, whose random weights differ from the graph's in type only.
fn tiny(name: &str) -> Writer {
    let model = golden_model(&format!("tiny-{name}.gguf"));
    model.metadata().fold(Writer::new(), |writer, (key, value)| match value {
        Value::U32(v) => writer.with(key, MetaValue::U32(v)),
        Value::I32(v) => writer.with(key, MetaValue::I32(v)),
        Value::F32(v) => writer.with(key, MetaValue::F32(v)),
        Value::Bool(v) => writer.with(key, MetaValue::Bool(v)),
        Value::String(v) => writer.with(key, MetaValue::String(v.into())),
        Value::Array(a) if key.ends_with("sliding_window_pattern") => {
            let flags = a.iter().map(|v| v.ok().and_then(|v| v.as_u64()).expect("a flag") as u32);
            writer.with(key, MetaValue::U32s(flags.collect()))
        }
        _ => writer,
    })
}

/// The model that a golden graph was made from: a header, or metadata with the tensor table of the graph itself.
fn model_of(name: &str, graph: &Graph) -> Gguf {
    let writer = match name {
        "llama3-8b." | "llama3-70b." | "mixtral-8x7b." | "qwen3-30b-a3b." => {
            return golden_model(&format!("headers/{name}gguf"));
        }
        "smollm2." => smollm2(),
        "qwen3-235b-a22b." => qwen3_235b(),
        "llama-dense." => tiny("llama-F16"),
        "llama-moe." => tiny("mixtral-Q8_0"),
        "qwen2-dense." => tiny("qwen2-Q4_0"),
        "qwen3-dense." => tiny("qwen3-Q5_K_M"),
        "qwen3moe-moe." => tiny("qwen3moe-Q4_K_M"),
        "gemma3-dense." => tiny("gemma3-Q8_0"),
        "phi3-dense." => tiny("phi3-Q4_1"),
        other => unreachable!("{other} is not among the names"),
    };
    let mut seen: BTreeMap<&str, &Tensor> = BTreeMap::new();
    for &id in graph.leafs().values() {
        let tensor = graph.tensor(id);
        if !tensor.flags.is_input() && !tensor.name.starts_with("cache_") {
            seen.insert(&tensor.name, tensor);
        }
    }
    // A header needs no data, but offsets that do not overlap: the sizes are too large to write out.
    let with_tensors = seen.values().fold(writer, |w, t| w.with_tensor_entry(&t.name, t.dtype, &t.ne));
    Gguf::from_bytes(Arc::new(with_tensors.header())).expect("a header")
}

fn leaf<'a>(graph: &'a Graph, name: &str) -> Option<&'a Tensor> {
    graph.leafs().values().map(|&id| graph.tensor(id)).find(|t| *t.name == *name)
}

/// Reads the parameters off a golden graph.
fn spec_of(file: &GraphFile, params: &HParams) -> GraphSpec {
    let graph = &file.graph;
    let flash = graph.tensors().values().any(|t| t.op == Op::FlashAttnExt);
    let ne = |name: &str| leaf(graph, name).expect("a leaf of that name").ne;
    let cells_of = |sliding: bool| {
        let layer = params.layers.iter().position(|l| l.sliding == sliding);
        layer.map(|i| ne(&format!("cache_k_l{i}")))
    };
    let full = cells_of(false).or(cells_of(true)).expect("some layer");
    let keys = leaf(graph, "cache_k_l0").expect("keys");
    let values = leaf(graph, "cache_v_l0").expect("values");
    let masks: Vec<&Tensor> =
        graph.leafs().values().map(|&id| graph.tensor(id)).filter(|t| &*t.name == "attn_inp_kq_mask").collect();
    // Where there are two masks, the first layer's comes first; layer 0 of the golden Gemma has a window.
    let (sliding_mask, full_mask) = (masks[0].ne, masks[masks.len() - 1].ne);
    GraphSpec {
        shape: BatchShape {
            tokens: ne("inp_tokens")[0] as u32,
            outputs: ne("out_ids")[0] as u32,
            first_stream: 0,
            streams: full_mask[3] as u32,
            cells: full_mask[0] as u32,
            sliding_cells: sliding_mask[0] as u32,
            columns: ColumnOrder::default(),
        },
        layout: KvLayout {
            cells: full[1] as u32,
            sliding_cells: cells_of(true).unwrap_or(full)[1] as u32,
            streams: full[2] as u32,
            key_type: keys.dtype,
            value_type: values.dtype,
        },
        attention: if flash { Attention::Flash } else { Attention::Plain },
        homes: homes_of(file, params),
    }
}

/// Weights in different kinds of memory have different homes.
fn homes_of(file: &GraphFile, params: &HParams) -> Homes {
    let mut known: Vec<String> = Vec::new();
    let mut home = |name: &str, last: bool| {
        let mut found = file.graph.tensors().iter().filter(|(_, t)| &*t.name == name).map(|(id, _)| id);
        let id = if last { found.last() } else { found.next() }.expect("a weight of that name");
        let buffer = file.buffer_of[id].expect("weights are in buffers");
        let kind = &file.buffers[buffer].buffer_type;
        let index = known.iter().position(|k| k == kind).unwrap_or_else(|| {
            known.push(kind.clone());
            known.len() - 1
        });
        HomeId::new(index)
    };
    let has_output = leaf(&file.graph, "output.weight").is_some();
    Homes {
        input: home("token_embd.weight", false),
        layers: (0..params.layers.len()).map(|i| home(&format!("blk.{i}.attn_norm.weight"), false)).collect(),
        output: if has_output { home("output.weight", false) } else { home("token_embd.weight", true) },
        factors: BTreeMap::new(),
    }
}

/// Panics with the first tensor that differs.
fn assert_same(ours: &Graph, golden: &Graph, what: &str) {
    let show = |graph: &Graph, id: TensorId| format!("{id} {:?}", graph.tensor(id));
    for (kind, ours_list, golden_list) in [
        ("leaf", ours.leafs().as_slice(), golden.leafs().as_slice()),
        ("node", ours.nodes().as_slice(), golden.nodes().as_slice()),
    ] {
        for (i, (&a, &b)) in ours_list.iter().zip(golden_list).enumerate() {
            let same = a == b && ours.tensor(a) == golden.tensor(b);
            assert!(same, "{what}: {kind} {i} differs\n  ours   {}\n  golden {}", show(ours, a), show(golden, b));
        }
        assert_eq!(ours_list.len(), golden_list.len(), "{what}: number of {kind}s");
    }
    assert_eq!(ours.structural_hash(), golden.structural_hash(), "{what}");
}

#[test]
fn every_golden_graph_of_the_families_is_rebuilt_exactly() {
    let mut count = 0;
    for name in NAMES {
        for path in golden_graphs(name) {
            let file = GraphFile::read_path(&path).expect("a golden graph");
            let model = model_of(name, &file.graph);
            let params = HParams::from_gguf(&model).expect("metadata is fine");
            let spec = spec_of(&file, &params);
            let built = families::build(&model, &params, &spec).unwrap_or_else(|e| unreachable!("{path:?}: {e}"));
            assert_same(&built.graph, &file.graph, &path.display().to_string());
            count += 1;
        }
    }
    assert_eq!(count, 88, "golden graphs of the families");
}

fn tiny_spec(params: &HParams, attention: Attention) -> GraphSpec {
    let layout = KvLayout { cells: 256, sliding_cells: 256, streams: 1, key_type: DType::F16, value_type: DType::F16 };
    let columns = ColumnOrder::default();
    let shape =
        BatchShape { tokens: 4, outputs: 1, first_stream: 0, streams: 1, cells: 256, sliding_cells: 256, columns };
    GraphSpec { shape, layout, attention, homes: Homes::single(params) }
}

fn build_tiny(writer: &Writer, change: impl FnOnce(&mut GraphSpec)) -> Result<ModelGraph, FamilyError> {
    let model = Gguf::from_bytes(Arc::new(writer.header())).expect("a header");
    let params = HParams::from_gguf(&model).expect("fine");
    let mut spec = tiny_spec(&params, Attention::Flash);
    change(&mut spec);
    families::build(&model, &params, &spec)
}

/// A llama of one layer whose weights are `weights` beside the common ones.
fn one_layer(arch: &str, weights: &[(&str, &[u64])]) -> Writer {
    let numbers = [
        ("block_count", 1),
        ("context_length", 512),
        ("embedding_length", 64),
        ("feed_forward_length", 96),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ];
    let common: [(&str, &[u64]); 5] = [
        ("token_embd.weight", &[64, 10]),
        ("output_norm.weight", &[64]),
        ("blk.0.attn_norm.weight", &[64]),
        ("blk.0.attn_output.weight", &[64, 64]),
        ("blk.0.ffn_norm.weight", &[64]),
    ];
    let writer = metadata(arch, &numbers, &[("attention.layer_norm_rms_epsilon", 1e-5)]);
    common.iter().chain(weights).fold(writer, |w, (name, ne)| w.with_tensor_entry(name, DType::F32, ne))
}

const SEPARATE: [(&str, &[u64]); 6] = [
    ("blk.0.attn_q.weight", &[64, 64]),
    ("blk.0.attn_k.weight", &[64, 32]),
    ("blk.0.attn_v.weight", &[64, 32]),
    ("blk.0.ffn_gate.weight", &[64, 96]),
    ("blk.0.ffn_up.weight", &[64, 96]),
    ("blk.0.ffn_down.weight", &[96, 64]),
];

#[test]
fn a_missing_weight_is_named() {
    for (missing, _) in SEPARATE {
        let rest: Vec<_> = SEPARATE.iter().copied().filter(|(name, _)| *name != missing).collect();
        let error = build_tiny(&one_layer("llama", &rest), |_| ()).expect_err("a weight is missing");
        let FamilyError::Weight(GgufError { place, fault: GgufFault::Missing }) = &error else {
            unreachable!("{error}");
        };
        assert_eq!(place.subject, Subject::Tensor(missing.into()));
    }
}

#[test]
fn a_weight_of_other_extents_or_of_an_unknown_type_is_refused() {
    let mut wrong = SEPARATE;
    wrong[5] = ("blk.0.ffn_down.weight", &[64, 96]);
    let error = build_tiny(&one_layer("llama", &wrong), |_| ()).expect_err("transposed").to_string();
    assert!(error.contains("blk.0.ffn_down.weight") && error.contains("[96, 64, 1, 1]"), "{error}");

    let odd = one_layer("llama", &SEPARATE[1..]).with_raw_tensor("blk.0.attn_q.weight", 99, &[64, 64], vec![]);
    let error = build_tiny(&odd, |_| ()).expect_err("type 99").to_string();
    assert!(error.contains("blk.0.attn_q.weight") && error.contains("99"), "{error}");
}

#[test]
fn shapes_that_do_not_fit_the_cache_are_refused() {
    let changes: [fn(&mut GraphSpec); 7] = [
        |s| s.shape.tokens = 0,
        |s| s.shape.outputs = 5,
        |s| s.shape.cells = 257,
        |s| s.shape.streams = 2,
        |s| s.shape.first_stream = 1,
        |s| (s.layout.streams, s.shape.streams) = (3, 3),
        |s| s.homes.layers.clear(),
    ];
    assert!(build_tiny(&one_layer("llama", &SEPARATE), |_| ()).is_ok());
    for (i, change) in changes.into_iter().enumerate() {
        let error = build_tiny(&one_layer("llama", &SEPARATE), change).expect_err("refused");
        assert!(matches!(error, FamilyError::Shape { .. } | FamilyError::Homes { .. }), "{i}: {error}");
    }
}

#[test]
fn weights_that_layers_share_exist_once_per_home() {
    let model = golden_model("tiny-llama-F16.gguf");
    let params = HParams::from_gguf(&model).expect("fine");
    let factors = |homes: [usize; 2], elsewhere: Option<(&str, usize)>| {
        let mut spec = tiny_spec(&params, Attention::Plain);
        spec.homes.layers = homes.map(HomeId::new).to_vec();
        let named = |(name, home)| (model.find(name).expect("is there"), HomeId::new(home));
        spec.homes.factors = elsewhere.map(named).into_iter().collect();
        let built = families::build(&model, &params, &spec).expect("builds");
        let parts = built.weights.iter().filter(|w| &*model.tensor(w.weight).name == "rope_freqs.weight");
        parts.map(|w| w.part).collect::<Vec<_>>()
    };
    let layer = |i| Part::Layer(LayerId::new(i));
    assert_eq!(factors([1, 1], None), [layer(0)]);
    assert_eq!(factors([1, 2], None), [layer(0), layer(1)]);
    assert_eq!(factors([1, 2], Some(("rope_freqs.weight", 0))), [layer(0)]);
    assert_eq!(factors([1, 2], Some(("token_embd.weight", 0))), [layer(0), layer(1)]);

    let alice = golden_model("alice-Q8_0.gguf");
    let params = HParams::from_gguf(&alice).expect("fine");
    let embeddings = |output: usize| {
        let mut spec = tiny_spec(&params, Attention::Plain);
        spec.homes.output = HomeId::new(output);
        let built = families::build(&alice, &params, &spec).expect("builds");
        built.weights.iter().filter(|w| &*alice.tensor(w.weight).name == "token_embd.weight").count()
    };
    assert_eq!((embeddings(0), embeddings(1)), (1, 2), "a second copy where the output lives elsewhere");
}

#[test]
fn a_fused_projection_gives_views_and_an_unfused_one_products() {
    let fused = [
        ("blk.0.attn_qkv.weight", &[64, 128][..]),
        ("blk.0.ffn_up.weight", &[64, 192]),
        ("blk.0.ffn_down.weight", &[96, 64]),
    ];
    for attention in [Attention::Flash, Attention::Plain] {
        let built = build_tiny(&one_layer("phi3", &fused), |s| s.attention = attention).expect("builds");
        let products = built.graph.tensors().values().filter(|t| t.op == Op::MulMat).count();
        let inside = if attention == Attention::Plain { 2 } else { 0 };
        assert_eq!(
            products,
            1 + 1 + 2 + 1 + inside,
            "one for all three, one back, two of the feed-forward layer, logits"
        );
        let view = built.graph.tensors().values().find(|t| &*t.name == "Vcur-0").expect("values");
        assert_eq!((view.op, view.view.map(|v| v.offset)), (Op::View, Some(Bytes(96 * 4))));
    }
}

#[test]
fn every_tensor_of_a_graph_is_accounted_for() {
    for name in ["llama-F16", "mixtral-Q8_0", "gemma3-Q8_0", "phi3-Q4_1", "qwen2-Q4_0", "qwen3moe-Q4_K_M"] {
        let model = golden_model(&format!("tiny-{name}.gguf"));
        let params = HParams::from_gguf(&model).expect("fine");
        let built = families::build(&model, &params, &tiny_spec(&params, Attention::Plain)).expect("builds");
        let graph = &built.graph;
        let mut known: Vec<TensorId> = built.inputs.iter().map(|i| i.tensor).collect();
        known.extend(built.weights.iter().map(|w| w.tensor));
        known.extend(built.caches.iter().map(|c| c.tensor));
        known.sort_unstable();
        let mut leafs: Vec<TensorId> = graph.leafs().values().copied().collect();
        leafs.sort_unstable();
        assert_eq!(known, leafs, "{name}: a leaf is an input, a weight or a cache");
        for weight in &built.weights {
            assert_eq!(graph.tensor(weight.tensor).name, model.tensor(weight.weight).name);
        }
        for (norm, layer) in &built.norms {
            assert_eq!(graph.tensor(*norm).name, format!("norm-{}", layer.index()).into());
        }
        for (out, layer) in &built.attention_outputs {
            assert_eq!(graph.tensor(*out).name, format!("kqv_out-{}", layer.index()).into());
        }
        assert_eq!(built.attention_outputs.len(), params.layers.len());
        assert_eq!(graph.tensor(built.logits).ne, [u64::from(params.vocab), 1, 1, 1]);
        assert_eq!(graph.nodes().values().last(), Some(&built.logits));
    }
}

#[test]
fn a_quantized_cache_is_rotated_into_and_out_of() {
    let model = golden_model("tiny-llama-F16.gguf");
    let params = HParams::from_gguf(&model).expect("fine");
    let mut spec = tiny_spec(&params, Attention::Flash);
    (spec.layout.key_type, spec.layout.value_type) = (DType::Q8_0, DType::Q8_0);
    let built = families::build(&model, &params, &spec).expect("builds");
    let size = |kind| {
        let input = built.inputs.iter().find(|i| i.kind == kind).expect("an input of that kind");
        built.graph.tensor(input.tensor).ne
    };
    assert_eq!(size(InputKind::KeyRotation(CacheKind::Full)), [128, 128, 1, 1], "the whole head");
    assert_eq!(size(InputKind::ValueRotation(CacheKind::Full)), [64, 64, 1, 1]);
    let hinted = built.graph.tensors().values().filter(|t| t.op == Op::MulMat && t.params[..] == [0, 1]).count();
    assert_eq!(hinted, 2 * 4, "queries, keys, values and the way back, in both layers");

    spec.attention = Attention::Plain;
    let error = families::build(&model, &params, &spec).expect_err("transposed values cannot be quantized");
    assert!(matches!(error, FamilyError::CacheType { part: CachePart::Values, .. }), "{error}");
}

#[test]
fn streams_are_read_from_the_first_one_on() {
    let model = golden_model("tiny-llama-F16.gguf");
    let params = HParams::from_gguf(&model).expect("fine");
    let mut spec = tiny_spec(&params, Attention::Flash);
    spec.layout.streams = 4;
    (spec.shape.first_stream, spec.shape.streams) = (1, 2);
    let built = families::build(&model, &params, &spec).expect("builds");
    let view = built.graph.tensors().values().find(|t| &*t.name == "cache_k_l0 (view)" && t.op == Op::View);
    let view = view.expect("a view of the keys");
    assert_eq!(view.ne, [128, 2, 256, 2]);
    assert_eq!(view.view.map(|v| v.offset), Some(Bytes(256 * 256 * 2)), "one stream of 256 cells further");
    let mask = built.inputs.iter().find(|i| i.kind == InputKind::Mask(CacheKind::Full)).expect("a mask");
    assert_eq!(built.graph.tensor(mask.tensor).ne, [256, 2, 1, 2]);
}

/// Number of nodes in a line such as `graph: nodes = 1158, splits = …`.
fn logged_nodes(line: &str) -> usize {
    let after = line.split("nodes = ").nth(1).expect("a number of nodes");
    after.split([',', ' ']).next().and_then(|n| n.parse().ok()).expect("a number")
}

/// For every configuration of the golden plans: as many nodes as llama.cpp counted, and as many bytes of cache and of
/// weights (which are padded a little there, where devices want it).
#[test]
fn graphs_and_caches_are_as_large_as_llama_cpp_logged() {
    let plans = support::golden_json("plans/plans.json");
    let mut checked = 0;
    for plan in plans.as_array().expect("plans") {
        let model = match plan["model"].as_str().expect("a name") {
            "smollm2-135m" => support::fetched_model("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
            "gemma3-270m" => support::fetched_model("gemma3", "gemma-3-270m-q4_k_m.gguf"),
            name => Some(golden_model(&format!("headers/{name}.gguf"))),
        };
        let Some(model) = model else { continue };
        let (config, expected) = (&plan["config"], &plan["expected"]);
        let number = |key: &str| config[key].as_u64().expect("a number") as u32;
        let params = HParams::from_gguf(&model).expect("fine");
        let request = CacheRequest {
            context: number("n_ctx"),
            sequences: 1,
            sharing: Sharing::Unified,
            micro_batch: number("n_ubatch"),
            sliding: SlidingCells::Full,
            key_type: DType::F16,
            value_type: DType::F16,
        };
        let layout = KvLayout::new(&params, &request).expect("a layout");
        let flash = config["flash_attn"].as_bool().expect("a flag");
        let gpus = config["devices"].as_array().expect("devices").len();
        let mut homes = Homes::single(&params);
        if gpus > 0 {
            homes.output = HomeId::new(1);
        }
        let spec = GraphSpec {
            shape: BatchShape::largest(&layout, number("n_ubatch")),
            layout,
            attention: if flash { Attention::Flash } else { Attention::Plain },
            homes,
        };
        let built = families::build(&model, &params, &spec).expect("builds");
        let what = format!("{} {config}", plan["model"]);
        let logged = expected["log"][0].as_str().expect("a line");
        assert_eq!(built.graph.nodes().len(), logged_nodes(logged), "{what}");
        let bytes = expected["bytes"].as_object().expect("bytes per buffer type");
        let total = |key: &str| bytes.values().map(|b| b[key].as_u64().expect("bytes")).sum::<u64>();
        let sum =
            |ids: &mut dyn Iterator<Item = TensorId>| ids.map(|id| built.graph.tensor(id).nbytes()).sum::<Bytes>();
        assert_eq!(sum(&mut built.caches.iter().map(|c| c.tensor)), Bytes(total("kv")), "{what}");
        let (ours, theirs) = (sum(&mut built.weights.iter().map(|w| w.tensor)).get(), total("weights"));
        assert!(ours <= theirs && theirs - ours <= theirs / 1000, "{what}: {ours} {theirs}");
        checked += 1;
    }
    assert!(checked >= 28, "{checked}");
}

//! Graphs of all families, rebuilt from parameters and compared with llama.cpp's, tensor by tensor.

mod support;

use loadmaster_graph::file::GraphFile;
use loadmaster_graph::{Graph, Op, Tensor, TensorId};
use loadmaster_models::families::{self, Attention, BatchShape, GraphSpec, HomeId, Homes, KvLayout};
use loadmaster_models::gguf::{Gguf, MetaValue, Value, Writer};
use loadmaster_models::hparams::HParams;
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

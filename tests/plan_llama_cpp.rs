//! What llama.cpp takes, predicted from headers to the byte.

#![allow(clippy::unwrap_used, clippy::panic)]

use loadmaster::placement::{CacheHome, GpuLayers, Override};
use loadmaster::plan::llama_cpp::{LlamaCppOptions, MemoryUse, Prediction, predict};
use loadmaster_backends::mmap;
use loadmaster_graph::DType;
use loadmaster_models::families::Attention;
use loadmaster_models::gguf::Gguf;
use loadmaster_sched::{DeviceSpec, Machine};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn model_path(model: &str) -> PathBuf {
    match model {
        "smollm2-135m" => root().join("models/SmolLM2-135M-Instruct.Q4_1.gguf"),
        "gemma3-270m" => root().join("models/gemma-3-270m-q4_k_m.gguf"),
        _ if model.starts_with("tiny-") => root().join(format!("tests/goldens/models/{model}.gguf")),
        _ => root().join(format!("tests/goldens/models/headers/{model}.gguf")),
    }
}

fn machine(devices: &Value) -> Machine {
    let spec = |d: &Value| format!("sim:{}iB", d.as_str().unwrap()).parse::<DeviceSpec>().unwrap();
    let specs: Vec<DeviceSpec> = devices.as_array().unwrap().iter().map(spec).collect();
    Machine::from_specs(&specs).unwrap()
}

fn options(config: &Value, machine: &Machine) -> LlamaCppOptions {
    let number = |key: &str| config[key].as_u64().unwrap() as u32;
    let split = config["tensor_split"].as_array().into_iter().flatten();
    let overrides = match &config["override_tensor"] {
        Value::Array(list) => list.clone(),
        one => vec![one.clone()],
    };
    let overrides = overrides.iter().filter_map(Value::as_str).map(|o| Override::parse(o, machine).unwrap());
    let dtype = |key: &str| config[key].as_str().map_or(DType::F16, |name| DType::from_name(name).unwrap());
    LlamaCppOptions {
        gpu_layers: config["n_gpu_layers"].as_u64().map_or(GpuLayers::All, |n| GpuLayers::Count(n as u32)),
        tensor_split: split.map(|s| s.as_f64().unwrap() as f32).collect(),
        overrides: overrides.collect(),
        context: number("n_ctx"),
        batch: number("n_batch"),
        micro_batch: number("n_ubatch"),
        sequences: config["n_seq_max"].as_u64().unwrap_or(1) as u32,
        attention: if config["flash_attn"].as_bool().unwrap() { Attention::Flash } else { Attention::Plain },
        cache: if config["kv_offload"].as_bool().unwrap() { CacheHome::WithLayer } else { CacheHome::Host },
        key_type: dtype("type_k"),
        value_type: dtype("type_v"),
    }
}

/// How our prediction differs from what is expected, if it does.
fn difference(plan: &Value, path: &Path) -> Option<String> {
    let (config, expected) = (&plan["config"], &plan["expected"]);
    let gguf = Gguf::from_bytes(mmap(path).unwrap()).unwrap();
    let machine = machine(&config["devices"]);
    let prediction = predict(&gguf, &machine, &options(config, &machine));
    let Ok(prediction) = prediction else {
        return expected["error"].is_null().then(|| format!("refused: {}", prediction.unwrap_err()));
    };
    let bytes = |m: &MemoryUse| {
        (m.name.clone(), json!({"weights": m.weights.get(), "kv": m.kv.get(), "compute": m.compute.get()}))
    };
    let found = Value::Object(prediction.memory.iter().map(bytes).collect());
    let is_same = found == expected["bytes"]
        && u64::from(prediction.copies) == expected["n_copies"]
        && has_splits(expected, &prediction);
    let Prediction { copies, splits_prefill, splits_decode, .. } = prediction;
    let counts = format!("{copies} copies, {splits_prefill} / {splits_decode} splits");
    (!is_same).then(|| format!("{found} {counts}\n  expected {expected}"))
}

/// Whether llama.cpp's log says the same splits: once where both graphs agree in all that it tells of them.
fn has_splits(expected: &Value, prediction: &Prediction) -> bool {
    let (full, one) = (prediction.splits_prefill, prediction.splits_decode);
    let log = expected["log"][0].as_str().unwrap_or_default();
    let said = |splits: String| log.contains(&format!("splits = {splits},"));
    said(format!("{full} / {one}")) || full == one && said(full.to_string())
}

/// Checks the configurations of a file; how many those are whose models are here.
fn check(file: &str) -> usize {
    let text = std::fs::read_to_string(root().join("tests/goldens/plans").join(file)).unwrap();
    let plans: Vec<Value> = serde_json::from_str(&text).unwrap();
    let (mut checked, mut wrong) = (0, Vec::new());
    for plan in &plans {
        let model = plan["model"].as_str().unwrap();
        let path = model_path(model);
        if !path.exists() {
            println!("skipped: {model} is not here (scripts/fetch-model brings it)");
            continue;
        }
        checked += 1;
        wrong.extend(difference(plan, &path).map(|d| format!("{model} {}\n  found    {d}", plan["config"])));
    }
    assert!(wrong.is_empty(), "{} of {checked} differ:\n{}", wrong.len(), wrong.join("\n"));
    checked
}

#[test]
fn every_configuration_is_predicted_to_the_byte() {
    let checked = check("plans.json");
    assert!(checked >= 28, "only {checked} configurations checked");
}

#[test]
fn every_recorded_configuration_is_predicted_to_the_byte_and_what_is_refused_is_an_error() {
    let checked = check("recorded.json");
    assert!(checked >= 60, "only {checked} configurations checked");
}

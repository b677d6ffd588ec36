//! What llama.cpp takes, predicted from headers to the byte.

#![allow(clippy::unwrap_used, clippy::panic)]

use loadmaster::placement::{CacheHome, GpuLayers, Override};
use loadmaster::plan::llama_cpp::{LlamaCppOptions, predict};
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
    LlamaCppOptions {
        gpu_layers: config["n_gpu_layers"].as_u64().map_or(GpuLayers::All, |n| GpuLayers::Count(n as u32)),
        tensor_split: split.map(|s| s.as_f64().unwrap() as f32).collect(),
        overrides: config["override_tensor"].as_str().iter().map(|o| Override::parse(o, machine).unwrap()).collect(),
        context: number("n_ctx"),
        batch: number("n_batch"),
        micro_batch: number("n_ubatch"),
        sequences: 1,
        attention: if config["flash_attn"].as_bool().unwrap() { Attention::Flash } else { Attention::Plain },
        cache: if config["kv_offload"].as_bool().unwrap() { CacheHome::WithLayer } else { CacheHome::Host },
        key_type: DType::F16,
        value_type: DType::F16,
    }
}

#[test]
fn every_configuration_is_predicted_to_the_byte() {
    let text = std::fs::read_to_string(root().join("tests/goldens/plans/plans.json")).unwrap();
    let plans: Value = serde_json::from_str(&text).unwrap();
    let (mut checked, mut wrong) = (0, Vec::new());
    for plan in plans.as_array().unwrap() {
        let (model, config, expected) = (plan["model"].as_str().unwrap(), &plan["config"], &plan["expected"]);
        let path = model_path(model);
        if !path.exists() {
            println!("skipped: {model} is not here (scripts/fetch-model brings it)");
            continue;
        }
        let gguf = Gguf::from_bytes(mmap(&path).unwrap()).unwrap();
        let machine = machine(&config["devices"]);
        let prediction = predict(&gguf, &machine, &options(config, &machine)).unwrap();
        let found: serde_json::Map<String, Value> = prediction
            .memory
            .iter()
            .map(|m| {
                (m.name.clone(), json!({"weights": m.weights.get(), "kv": m.kv.get(), "compute": m.compute.get()}))
            })
            .collect();
        if Value::Object(found.clone()) != expected["bytes"] || prediction.copies as u64 != expected["n_copies"] {
            wrong.push(format!(
                "{model} {config}\n  found    {} copies {} splits {}/{}\n  expected {} copies {} {}",
                Value::Object(found),
                prediction.copies,
                prediction.splits_prefill,
                prediction.splits_decode,
                expected["bytes"],
                expected["n_copies"],
                expected["log"]
            ));
        }
        checked += 1;
    }
    assert!(wrong.is_empty(), "{} of {checked} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(checked >= 28, "only {checked} configurations checked");
}

//! Weights land where llama.cpp puts them, to the byte.

#![allow(clippy::unwrap_used, clippy::panic)]

use loadmaster::placement::{GpuLayers, LayerDevices, Override, Repack, WeightHome, weight_home};
use loadmaster_backends::mmap;
use loadmaster_graph::{Bytes, DType, Dims};
use loadmaster_models::gguf::Gguf;
use loadmaster_sched::{DeviceSpec, Machine};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

fn goldens() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

fn model_path(model: &str) -> PathBuf {
    match model {
        "smollm2-135m" => goldens().join("../../models/SmolLM2-135M-Instruct.Q4_1.gguf"),
        "gemma3-270m" => goldens().join("../../models/gemma-3-270m-q4_k_m.gguf"),
        _ => goldens().join(format!("models/headers/{model}.gguf")),
    }
}

fn machine(devices: &Value) -> Machine {
    let spec = |d: &Value| format!("sim:{}iB", d.as_str().unwrap()).parse::<DeviceSpec>().unwrap();
    let specs: Vec<DeviceSpec> = devices.as_array().unwrap().iter().map(spec).collect();
    Machine::from_specs(&specs).unwrap()
}

fn layer_devices(machine: &Machine, layers: u32, config: &Value) -> LayerDevices {
    let host = machine.fallback();
    let gpus: Vec<_> = machine.devices().ids().filter(|&d| d != host).collect();
    let shares: Vec<f32> = match config["tensor_split"].as_array() {
        Some(split) => split.iter().map(|s| s.as_f64().unwrap() as f32).collect(),
        None => {
            let free: Vec<Bytes> =
                gpus.iter().map(|&g| machine.pools()[machine.compute_type(g).pool].capacity.unwrap()).collect();
            LayerDevices::shares_of_memory(&free)
        }
    };
    let pairs: Vec<_> = gpus.into_iter().zip(shares).collect();
    let count = match config["n_gpu_layers"].as_u64() {
        Some(n) => GpuLayers::Count(n as u32),
        None => GpuLayers::All,
    };
    LayerDevices::by_share(layers, count, &pairs, host)
}

/// Bytes of weights by name of the kind of memory.
fn weight_bytes(
    gguf: &Gguf,
    machine: &Machine,
    layers: &LayerDevices,
    overrides: &[Override],
) -> BTreeMap<String, u64> {
    let mut bytes = BTreeMap::new();
    let mut homes = BTreeSet::new();
    let mut add = |storage: &str, name: &str, dtype: DType, ne: &Dims| {
        let home = weight_home(name, dtype, ne, layers, overrides, Repack::Avx512);
        if !homes.insert((storage.to_owned(), home)) {
            return;
        }
        let tensor = loadmaster_graph::Tensor::leaf(name, dtype, *ne).unwrap();
        let (memory, device) = match home {
            WeightHome::Device(d) => (machine.device(d).name.to_string(), d),
            WeightHome::Repacked => ("CPU_REPACK".to_owned(), machine.fallback()),
        };
        let kind = machine.compute_type(device);
        let size = kind.alloc_size(&tensor).checked_align_up(kind.alignment).unwrap();
        *bytes.entry(memory).or_insert(0) += size.get();
    };
    for tensor in gguf.tensors() {
        add(&tensor.name, &tensor.name, tensor.dtype.unwrap(), &tensor.ne);
    }
    if gguf.find("output.weight").is_none() {
        let embedding = gguf.tensor(gguf.find("token_embd.weight").unwrap());
        add("token_embd.weight", "output.weight", embedding.dtype.unwrap(), &embedding.ne);
    }
    bytes
}

#[test]
fn weights_take_the_bytes_that_llama_cpp_gives_them() {
    let text = std::fs::read_to_string(goldens().join("plans/plans.json")).unwrap();
    let plans: Value = serde_json::from_str(&text).unwrap();
    let mut checked = 0;
    for plan in plans.as_array().unwrap() {
        let (model, config) = (plan["model"].as_str().unwrap(), &plan["config"]);
        let path = model_path(model);
        if !path.exists() {
            println!("skipped: {model} is not here (scripts/fetch-model brings it)");
            continue;
        }
        let gguf = Gguf::from_bytes(mmap(&path).unwrap()).unwrap();
        let arch = gguf.value("general.architecture").and_then(|v| v.as_str()).unwrap();
        let layers = gguf.value(&format!("{arch}.block_count")).and_then(|v| v.as_u64()).unwrap() as u32;
        let machine = machine(&config["devices"]);
        let overrides: Vec<Override> =
            config["override_tensor"].as_str().iter().map(|o| Override::parse(o, &machine).unwrap()).collect();
        let mut found = weight_bytes(&gguf, &machine, &layer_devices(&machine, layers, config), &overrides);
        let expected = plan["expected"]["bytes"].as_object().unwrap();
        for (memory, bytes) in expected {
            let weights = found.remove(memory).unwrap_or(0);
            assert_eq!(weights, bytes["weights"].as_u64().unwrap(), "{model} {config}: {memory}");
        }
        assert!(found.is_empty(), "{model} {config}: unexpected {found:?}");
        checked += 1;
    }
    assert!(checked >= 28, "only {checked} configurations checked");
}

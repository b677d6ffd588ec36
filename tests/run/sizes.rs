//! What is prepared under the reference's policy is what llama.cpp measures.

use super::support::{fetched, golden_json, machine};
use loadmaster::engine::{Model, ReserveFor, Settings, placed::REPACKED_MEMORY, prepare};
use loadmaster::placement::{CacheHome, GpuLayers, Override, Repack};
use loadmaster_alloc::Placer;
use loadmaster_models::families::Attention;
use loadmaster_sched::{DeviceSet, Machine};
use serde_json::Value;
use std::num::NonZeroU32;
use std::sync::Arc;

fn model(name: &str) -> Option<Arc<Model>> {
    match name {
        "smollm2-135m" => fetched("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
        "gemma3-270m" => fetched("gemma3", "gemma-3-270m-q4_k_m.gguf"),
        header => Some(super::support::tiny(&format!("headers/{header}.gguf"))),
    }
}

/// The machine of a plan, with memory for weights that the CPU re-lays out.
fn machine_of(config: &Value) -> Machine {
    let sims = config["devices"].as_array().expect("devices").iter();
    let specs: Vec<String> = sims.map(|d| format!("sim:{}", d.as_str().expect("a size").replace('G', "GiB"))).collect();
    let plain = machine(&specs.iter().map(String::as_str).chain(["cpu"]).collect::<Vec<_>>());
    let mut parts = plain.parts().clone();
    let mut repacked = plain.compute_type(plain.fallback()).clone();
    repacked.name = REPACKED_MEMORY.into();
    repacked.host = false;
    repacked.usable_by = DeviceSet::from_iter([plain.fallback()]);
    parts.buffer_types.push(repacked);
    Machine::new(parts).expect("a machine")
}

fn settings(model: &Model, machine: &Machine, plan: &Value) -> Settings {
    let config = &plan["config"];
    let number = |key: &str| config[key].as_u64().expect("a number") as u32;
    let split = config["tensor_split"].as_array();
    let copies = plan["expected"]["n_copies"].as_u64().expect("a number") as u32;
    let overrides = config["override_tensor"].as_str().map(|o| Override::parse(o, machine).expect("an override"));
    Settings {
        context: number("n_ctx"),
        batch: number("n_batch"),
        micro_batch: number("n_ubatch"),
        attention: if config["flash_attn"] == true { Attention::Flash } else { Attention::Plain },
        cache: if config["kv_offload"] == true { CacheHome::WithLayer } else { CacheHome::Host },
        gpu_layers: config["n_gpu_layers"].as_u64().map_or(GpuLayers::All, |n| GpuLayers::Count(n as u32)),
        tensor_split: split.map(|s| s.iter().map(|v| v.as_f64().expect("a share") as f32).collect()),
        overrides: overrides.into_iter().collect(),
        repack: Repack::Avx512,
        copies: NonZeroU32::new(copies).expect("at least one"),
        placer: Placer::Ggml,
        reserve: ReserveFor::Measured,
        ..Settings::new(&model.params)
    }
}

#[test]
fn under_policy_ggml_every_device_needs_what_llama_cpp_measures() {
    let plans = golden_json("plans/plans.json");
    let mut compared = 0;
    for plan in plans.as_array().expect("a list") {
        let Some(model) = model(plan["model"].as_str().expect("a name")) else { continue };
        let machine = machine_of(&plan["config"]);
        let prepared = prepare(&model, &machine, &settings(&model, &machine, plan)).expect("it can be planned");
        for (id, need) in prepared.devices.iter() {
            let expected = &plan["expected"]["bytes"][&*machine.device(id).name];
            let found = [need.weights, need.cache, need.compute].map(|b| b.get());
            let expected = ["weights", "kv", "compute"].map(|k| expected[k].as_u64().unwrap_or(0));
            assert_eq!(found, expected, "{} of {} with {}", machine.device(id).name, plan["model"], plan["config"]);
            compared += 1;
        }
    }
    assert!(compared >= 28, "{compared}");
}

#[test]
fn our_own_policy_never_needs_more() {
    for name in ["llama3-8b", "qwen3-30b-a3b"] {
        let model = super::support::tiny(&format!("headers/{name}.gguf"));
        let machine = machine(&["sim:24GiB", "sim:24GiB"]);
        let best = Settings { context: 8192, ..Settings::new(&model.params) };
        let ggml = Settings { placer: Placer::Ggml, ..best.clone() };
        let best = prepare(&model, &machine, &best).expect("it can be planned");
        let ggml = prepare(&model, &machine, &ggml).expect("it can be planned");
        for (best, ggml) in best.devices.values().zip(ggml.devices.values()) {
            assert!(best.compute <= ggml.compute, "{name}: {} above {}", best.compute, ggml.compute);
            assert!(best.bound <= best.compute, "{name}: {} below its bound", best.compute);
        }
    }
}

//! A service on simulated CUDA GPUs of which one dies.

use crate::loads::check_ledger;
use crate::support::{ask, config, empty, until};
use loadmaster::serve::{Config, LoadSpec, ServiceState};
use loadmaster_backends::cuda::simulator::Simulator;
use serde_json::{Value, json};
use std::sync::Arc;

const GPUS: [&str; 3] = ["cuda:0:128MiB", "cuda:1:128MiB", "cpu"];

fn simulated(config: &str) -> Option<Simulator> {
    if cfg!(feature = "gpu-tests") {
        println!("skipped: this run is for real GPUs");
        return None;
    }
    Simulator::open_with_kernels(config).map_err(|why| println!("skipped: {why}")).ok()
}

fn service() -> Arc<ServiceState> {
    let state = empty(Config { slots: 1, ..config() }, &GPUS);
    state.load(&LoadSpec::embedded("alice")).unwrap_or_else(|e| panic!("{}", e.message));
    state
}

fn complete(state: &Arc<ServiceState>) -> (u16, Value) {
    let request = json!({ "prompt": "The Queen", "max_tokens": 4, "temperature": 0 });
    let (status, answer) = ask(state, "POST", "/v1/completions", &request.to_string());
    (status.as_u16(), answer)
}

fn launches(simulator: &Simulator) -> u64 {
    simulator.calls().iter().filter(|(name, _)| name == "cuLaunchKernel").map(|(_, n)| n).sum()
}

/// Unloads the model; its thread lives a moment longer.
fn end(state: Arc<ServiceState>, simulator: &Simulator) {
    assert_eq!(ask(&state, "DELETE", "/api/v1/models/alice", "").0, 200);
    drop(state);
    until("everything is given back", || simulator.live().is_empty());
}

/// Layers by device, and which devices live.
fn places(state: &Arc<ServiceState>) -> (Vec<String>, Vec<(String, bool)>) {
    let (_, placement) = ask(state, "GET", "/api/v1/placement", "");
    let layers = placement["models"][0]["layers"].as_array().unwrap();
    let (_, devices) = ask(state, "GET", "/api/v1/devices", "");
    let device = |d: &Value| (d["name"].as_str().unwrap().to_owned(), d["alive"].as_bool().unwrap());
    (
        layers.iter().map(|l| l["device"].as_str().unwrap().to_owned()).collect(),
        devices["devices"].as_array().unwrap().iter().map(device).collect(),
    )
}

#[test]
fn models_side_by_side_on_one_gpu_hold_what_the_ledger_says_with_what_their_kernels_need() {
    let Some(simulator) = simulated("devices=1,memory=256MiB") else { return };
    let state = empty(config(), &["cuda:0:96MiB", "cuda:0:64MiB", "cpu"]);
    for id in ["first", "alice"] {
        state.load(&LoadSpec::embedded(id)).unwrap_or_else(|e| panic!("{}", e.message));
        check_ledger(&state);
    }
    let ledger = state.core.ledger.lock().clone();
    let needs = ledger.holdings().values().flat_map(|h| h.needs.values());
    assert!(needs.filter(|need| need.workspace.get() > 0).count() >= 2, "{ledger:?}");
    assert_eq!(ask(&state, "DELETE", "/api/v1/models/first", "").0, 200);
    check_ledger(&state);
    end(state, &simulator);
    assert_eq!(simulator.report(), "");
}

#[test]
fn a_service_on_two_simulated_gpus_goes_on_without_the_one_that_died() {
    let Some(simulator) = simulated("devices=2,memory=256MiB") else { return };
    let state = service();
    let (status, expected) = complete(&state);
    assert_eq!(status, 200, "{expected}");
    let (layers, _) = places(&state);
    assert!(["CUDA0", "CUDA1"].iter().all(|gpu| layers.iter().any(|l| l == gpu)), "{layers:?}");
    let before = launches(&simulator);
    end(state, &simulator);
    drop(simulator);

    // The same again, until a kernel in the middle of the second answer kills its GPU.
    let dying = format!("devices=2,memory=256MiB,fail=cuLaunchKernel:{}:719:late", before + 9);
    let Some(simulator) = simulated(&dying) else { return };
    let state = service();
    assert_eq!(complete(&state).1["choices"], expected["choices"]);
    let (status, answer) = complete(&state);
    let message = answer["error"]["message"].as_str().unwrap_or_default();
    assert!(status == 503 && message.contains("CUDA") && message.contains("is lost"), "{status}: {answer}");
    let (status, answer) = complete(&state);
    assert_eq!((status, &answer["choices"]), (200, &expected["choices"]), "{answer}");
    let (layers, devices) = places(&state);
    let dead: Vec<_> = devices.iter().filter(|(_, alive)| !alive).map(|(name, _)| name).collect();
    assert!(dead.len() == 1 && dead[0].starts_with("CUDA"), "{devices:?}");
    assert!(layers.iter().all(|l| l != dead[0]), "{layers:?}");
    assert!(layers.iter().any(|l| l.starts_with("CUDA")), "{layers:?}");
    end(state, &simulator);
    assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
}

//! Devices that die while they are asked.

use crate::support::{Server, ask, config, empty, service, sim, until};
use loadmaster::serve::{Config, LoadSpec};
use serde_json::{Value, json};
use std::io::Read;

fn greedy(prompt: &str, tokens: u32) -> Value {
    json!({ "prompt": prompt, "max_tokens": tokens, "temperature": 0 })
}

fn text_of(answer: &str) -> Value {
    let (status, body) = crate::support::parse(answer);
    assert_eq!(status, 200, "{body}");
    serde_json::from_str::<Value>(&body).unwrap()["choices"][0]["text"].clone()
}

#[test]
fn a_device_that_dies_fails_what_runs_and_the_rest_goes_on_elsewhere() {
    let state = service(Config { slots: 1, ..config() });
    let (_, before) = ask(&state, "POST", "/v1/completions", &greedy("The Queen", 12).to_string());
    let server = Server::start(&state);
    sim(&state, 1).faults().stall();
    let mut runs = server.send("POST", "/v1/completions", &greedy("Alice", 50).to_string());
    until("it runs", || state.model(None).unwrap().mailbox.depth() == (0, 1));
    let mut waits = server.send("POST", "/v1/completions", &greedy("The Queen", 12).to_string());
    until("it waits", || state.model(None).unwrap().mailbox.depth() == (1, 1));
    sim(&state, 1).faults().die();
    let mut failed = String::new();
    runs.read_to_string(&mut failed).unwrap();
    let (status, body) = crate::support::parse(&failed);
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["error"]["code"]), (503, &json!("device_failed")), "{body}");
    assert!(body["error"]["message"].as_str().unwrap().contains("SIM1"), "{body}");
    let mut answered = String::new();
    waits.read_to_string(&mut answered).unwrap();
    assert_eq!(text_of(&answered), before["choices"][0]["text"]);
    let (_, placement) = ask(&state, "GET", "/api/v1/placement", "");
    let layers = placement["models"][0]["layers"].as_array().unwrap();
    assert!(layers.iter().all(|l| l["device"] != "SIM1"), "{layers:?}");
    assert!(layers.iter().any(|l| l["changed"] == "was on SIM1"), "{layers:?}");
    let (_, devices) = ask(&state, "GET", "/api/v1/devices", "");
    assert_eq!(devices["devices"][1]["alive"], false);
}

#[test]
fn whoever_has_an_answer_finds_its_slot_free() {
    let state = service(Config { slots: 1, ..config() });
    for _ in 0..50 {
        let (status, answer) = ask(&state, "POST", "/v1/completions", &greedy("The Queen", 1).to_string());
        assert_eq!(status, 200, "{answer}");
        assert_eq!(state.model(None).unwrap().mailbox.depth(), (0, 0));
    }
}

#[test]
fn a_device_that_died_unused_costs_nobody_an_answer() {
    let state = service(config());
    sim(&state, 0).faults().die();
    let (status, answer) = ask(&state, "POST", "/v1/completions", &greedy("The Queen", 3).to_string());
    assert_eq!(status, 200, "{answer}");
}

#[test]
fn a_model_that_fits_nowhere_any_more_says_so() {
    let state = empty(config(), &["sim:64MiB", "cpu:2MiB"]);
    state.load(&LoadSpec::embedded("alice")).map(|_| ()).unwrap_or_else(|e| panic!("{}", e.message));
    sim(&state, 0).faults().die();
    for _ in 0..2 {
        let (status, answer) = ask(&state, "POST", "/v1/completions", &greedy("The Queen", 3).to_string());
        assert_eq!(status, 503, "{answer}");
    }
    assert_eq!(ask(&state, "GET", "/ready", "").0, 503);
    assert_eq!(ask(&state, "GET", "/health", "").0, 200);
    assert_eq!(ask(&state, "DELETE", "/api/v1/models/alice", "").0, 200);
}

#[test]
fn a_step_that_fails_once_is_made_again() {
    let state = service(config());
    let (_, before) = ask(&state, "POST", "/v1/completions", &greedy("The Queen", 8).to_string());
    sim(&state, 0).faults().kernels.arm(40);
    let (status, again) = ask(&state, "POST", "/v1/completions", &greedy("The Queen", 8).to_string());
    assert_eq!(status, 200, "{again}");
    assert_eq!(before["choices"], again["choices"]);
}

//! Models that come and go: the ledger is what devices count, and nobody goes who need not.

use crate::support::{ask, config, empty};
use loadmaster::serve::{Config, End, LoadSpec, ServiceState};
use loadmaster_backends::DeviceKind;
use loadmaster_graph::Bytes;
use serde_json::{Value, json};

/// Devices count what they gave; a host's weights stay in the mapped file.
pub fn check_ledger(state: &ServiceState) {
    let ledger = state.core.ledger.lock().clone();
    for (id, device) in state.core.devices.iter() {
        let needs = ledger.holdings().values().map(|h| &h.needs[id]);
        let counted = match device.kind() {
            DeviceKind::Cpu => continue,
            _ => needs.map(|n| n.total()).sum::<Bytes>(),
        };
        let memory = device.memory();
        let held = memory.total.unwrap().saturating_sub(memory.free.unwrap());
        assert_eq!(held, counted, "{}", device.name());
    }
}

fn spec(id: &str, parallel: u32) -> LoadSpec {
    let mut spec = LoadSpec::embedded(id);
    spec.settings.parallel = Some(parallel);
    spec.settings.ubatch = Some(32);
    spec
}

#[test]
fn load_unload_and_over_admission_leave_the_ledger_equal_to_the_devices() {
    let state = empty(config(), &["sim:9MiB,arch=60,multiprocessors=20", "sim:7MiB", "cpu:2MiB"]);
    let (mut loaded, mut refused) = (0, 0);
    for round in 0..30u32 {
        let id = format!("m{}", round % 5);
        if round % 7 == 6 {
            let _ = state.unload(&format!("m{}", round % 4), End::Drained);
        } else {
            match state.load(&spec(&id, 1 + round % 4)) {
                Ok(_) => loaded += 1,
                Err(error) => {
                    assert!(["over_capacity", "model_exists"].contains(&error.code), "{error:?}");
                    refused += 1;
                }
            }
        }
        check_ledger(&state);
    }
    assert!(loaded >= 4 && refused >= 4, "{loaded} loaded, {refused} refused");
    state.end(End::Now);
    check_ledger(&state);
    assert!(state.core.ledger.lock().holdings().is_empty());
}

#[test]
fn nobody_goes_where_it_fits_elsewhere_and_the_least_goes_where_it_does_not() {
    let state = empty(Config { evict: true, ..config() }, &["sim:9MiB", "sim:9MiB", "cpu:2MiB"]);
    let ids = || state.models().iter().map(|m| m.id.clone()).collect::<Vec<_>>();
    state.load(&spec("small", 1)).unwrap();
    state.load(&spec("large", 4)).unwrap();
    assert_eq!(ids(), ["large", "small"], "both fit");
    let gone = (0..10).find_map(|i| {
        let before = ids();
        state.load(&spec(&format!("more{i}"), 1)).unwrap();
        check_ledger(&state);
        let now = ids();
        let gone: Vec<String> = before.into_iter().filter(|id| !now.contains(id)).collect();
        (!gone.is_empty()).then_some(gone)
    });
    let gone = gone.expect("nothing ever has to go");
    assert_eq!(gone.len(), 1, "{gone:?}");
    assert_ne!(gone[0], "large", "a small one was enough");
    for id in ids() {
        state.pin(&id, true).unwrap();
    }
    let error = state.load(&spec("last", 1)).unwrap_err();
    assert_eq!(error.code, "over_capacity");
    assert_eq!(ids().iter().filter(|i| i.starts_with("last")).count(), 0);
}

/// Equal requests plan once; and the counter is the sum of what the events tell.
#[test]
fn plans_that_are_made_are_counted_and_not_made_again() {
    let state = crate::support::service(config());
    let body = json!({ "prompt": "Alice was beginning to get very tired", "max_tokens": 8, "temperature": 0 });
    let bound = || -> Vec<u64> {
        let (kept, _) = state.core.events.follow(0);
        let told = kept.iter().map(|e| serde_json::from_str::<Value>(&e.data).unwrap());
        told.filter(|e| e["kind"] == "bind").map(|e| e["plans"].as_u64().unwrap()).collect()
    };
    for _ in 0..3 {
        assert_eq!(ask(&state, "POST", "/v1/completions", &body.to_string()).0, 200);
    }
    // The thread has counted everything when it has ended.
    state.unload("alice", End::Drained).unwrap();
    let made = state.core.stats.plans_made();
    assert_eq!(made, bound().iter().sum::<u64>());
    // Loading, pieces of the prompt, and a step: a shape each.
    assert!((4..=12).contains(&made), "{made} plans");
    assert!(state.core.stats.plans_reused() > made);
}

#[test]
fn placement_says_what_the_ledger_says() {
    let state = empty(config(), &["sim:64MiB", "sim:64MiB"]);
    state.load(&spec("a", 2)).unwrap();
    state.load(&spec("b", 1)).unwrap();
    let (_, placement) = ask(&state, "GET", "/api/v1/placement", "");
    let ledger = state.core.ledger.lock().clone();
    for (id, device) in state.core.machine.devices().iter() {
        let told = placement["devices"].as_array().unwrap().iter().find(|d| d["name"] == *device.name).unwrap();
        let used: Bytes = ledger.holdings().values().map(|h| h.needs[id].total()).sum();
        assert_eq!(told["used"], json!(used.get()));
        let models = told["models"].as_array().unwrap();
        let sum =
            |m: &serde_json::Value| ["weights", "kv", "compute"].iter().map(|k| m[k].as_u64().unwrap()).sum::<u64>();
        assert_eq!(models.iter().map(sum).sum::<u64>(), used.get());
    }
    let head = &placement["models"][0]["arenas"][0];
    let path = format!(
        "/api/v1/models/a/arena?device={}&graph={}",
        head["device"].as_str().unwrap(),
        head["graph"].as_str().unwrap()
    );
    let (status, arena) = ask(&state, "GET", &path, "");
    assert_eq!(status, 200);
    assert_eq!(arena["size"], head["size"]);
    let tensors = arena["tensors"].as_array().unwrap();
    let end = tensors.iter().map(|t| t["offset"].as_u64().unwrap() + t["bytes"].as_u64().unwrap()).max().unwrap();
    assert!(end <= arena["size"].as_u64().unwrap() && tensors.len() > 50);
    let (_, history) = ask(&state, "GET", "/api/v1/placement/history", "");
    assert_eq!(history["entries"].as_array().unwrap().len(), 2);
}

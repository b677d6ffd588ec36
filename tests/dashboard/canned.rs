//! Answers of a machine with two virtual GPUs and two models, one of them with an arena of 6,000 tensors.

use serde_json::{Value, json};
use std::collections::BTreeMap;

/// What the service says.
pub struct Canned {
    /// Who asks must bring it.
    pub token: Option<&'static str>,
    pub devices: Value,
    pub placement: Value,
    pub history: Value,
    pub stats: Value,
    pub traces: Value,
    pub trace: BTreeMap<String, Value>,
    pub arenas: BTreeMap<(String, String, String), Value>,
}

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// A name as a hostile model file might have it.
pub const HOSTILE: &str = "<img src=x onerror=\"document.title='taken'\">";
/// Tensors of the large arena.
pub const MANY: usize = 6000;

pub fn canned() -> Canned {
    let large = arena("sim0", MANY);
    let small = arena("sim1", 40);
    let key = |model: &str, device: &str, graph: &str| (model.to_owned(), device.to_owned(), graph.to_owned());
    let arenas = [
        (key("stories", "sim0", "prompt"), small.clone()),
        (key("stories", "sim0", "decode"), large.clone()),
        (key("stories", "sim1", "decode"), small.clone()),
        (key(HOSTILE, "sim0", "decode"), small.clone()),
    ];
    Canned {
        token: None,
        devices: devices(),
        placement: placement(1, &large, &small),
        history: history(),
        stats: json!({ "tokens_per_second": 41.5, "queue": 3, "running": 2, "bytes_moved": 7 * GIB + 12345, "plans_made": 4,
            "plans_reused": 1996, "requests": 87, "failures": 1 }),
        traces: json!({ "traces": [
            { "id": "r1", "started_us": 1_000_000, "duration_us": 9_000, "model": "stories", "tokens": 3 },
            { "id": "r2", "started_us": 2_000_000, "duration_us": 12_000, "model": "stories", "tokens": 4 } ] }),
        trace: [("r1".to_owned(), trace("r1", 3)), ("r2".to_owned(), trace("r2", 4))].into(),
        arenas: arenas.into(),
    }
}

fn devices() -> Value {
    let link = |to: &str, path: &str, why: &str| json!({ "to": to, "path": path, "why": why, "bandwidth": 16 * GIB });
    json!({ "devices": [
        { "name": "sim0", "kind": "gpu", "pools": [{ "name": "sim0", "total": 16 * GIB, "free": 9 * GIB }],
          "links": [link("sim1", "direct", "the self-test passed"), link("cpu", "pinned", "staged through pinned memory")] },
        { "name": "sim1", "kind": "gpu", "pools": [{ "name": "sim1", "total": 8 * GIB, "free": 7 * GIB }],
          "links": [link("sim0", "direct", "the self-test passed")] },
        { "name": "cpu", "kind": "cpu", "pools": [{ "name": "host", "total": 64 * GIB, "free": 60 * GIB }], "links": [] } ] })
}

fn held(model: &str, weights: u64, kv: u64, arena: &Value) -> Value {
    json!({ "model": model, "weights": weights, "kv": kv, "compute": arena["size"], "compute_bound": arena["bound"],
        "workspace": 0 })
}

fn placement(version: u64, large: &Value, small: &Value) -> Value {
    let layers: Vec<Value> = (0..28)
        .map(|i| {
            let (device, cause) = if i < 18 { ("sim0", "fits, fastest device") } else { ("sim1", "sim0 is full") };
            let changed = if i == 18 { json!("was on sim0") } else { Value::Null };
            json!({ "layer": i, "device": device, "cause": cause, "changed": changed })
        })
        .collect();
    let used = |model: u64, arena: &Value| model + arena["size"].as_u64().unwrap();
    let of = |device: &str, buffer: u64, graph: &str, a: &Value| {
        json!({ "device": device, "buffer": buffer, "graph": graph, "size": a["size"], "bound": a["bound"], "steps": a["steps"],
            "peak_step": a["peak_step"] })
    };
    json!({ "version": version,
        "devices": [
            { "name": "sim0", "kind": "gpu", "limit": 15 * GIB, "used": used(6 * GIB, large) + used(600 * MIB, small), "free": 8 * GIB,
              "models": [held("stories", 4 * GIB, 2 * GIB, large), held(HOSTILE, 500 * MIB, 100 * MIB, small)] },
            { "name": "sim1", "kind": "gpu", "limit": 8 * GIB, "used": used(3 * GIB, small), "free": 5 * GIB - 40 * MIB,
              "models": [held("stories", 2 * GIB, GIB, small)] },
            { "name": "cpu", "kind": "cpu", "limit": 64 * GIB, "used": 0, "free": 60 * GIB, "models": [] } ],
        "models": [
            { "id": "stories", "state": "ready", "pinned": true, "idle_ms": 1500, "layers": layers,
              "arenas": [of("sim0", 0, "decode", large), of("sim0", 0, "prompt", small), of("sim1", 1, "decode", small)] },
            { "id": HOSTILE, "state": "ready", "pinned": false, "idle_ms": 0,
              "layers": [{ "layer": "all", "device": "sim0", "cause": HOSTILE, "changed": false }],
              "arenas": [of("sim0", 0, "decode", small)] } ] })
}

fn history() -> Value {
    let at = |i: u64, cause: &str, used: u64| json!({ "at_us": i * 1_000_000, "version": i, "cause": cause, "devices": [{ "name": "sim0", "used": used }, { "name": "sim1", "used": used / 2 }] });
    json!({ "entries": [at(1, "load", 2 * GIB), at(3, "load", 7 * GIB), at(4, "unload", 3 * GIB), at(9, "load", 6 * GIB)] })
}

const OPS: [&str; 8] = ["RMS_NORM", "MUL", "MUL_MAT", "ROPE", "SOFT_MAX", "ADD", "CPY", "NONE"];

/// An arena of tensors that live in turns: place after place, each free before the next is born in it.
fn arena(device: &str, count: usize) -> Value {
    const LANES: usize = 6;
    let steps = count / LANES * 2 + 4;
    let mut base = 0;
    let mut tensors = Vec::new();
    for lane in 0..LANES {
        let height = (LANES - lane) as u64 * 8 * MIB;
        for i in 0..count / LANES {
            let (first, op) = (i * 2 + lane % 2, OPS[(i + lane) % OPS.len()]);
            let bytes = height - (i as u64 * 7919 + lane as u64 * 104_729) % height * 3 / 4;
            tensors.push(json!({ "name": format!("blk.{}.t{lane}_{i}", i % 28), "op": op, "chunk": lane / 4, "first": first,
                "last": first + 2, "offset": if lane < 4 { base } else { base - 128 * MIB }, "bytes": bytes, "cause": "first place that was free" }));
        }
        base += if lane == 3 { 128 * MIB - base % (128 * MIB) } else { height };
    }
    let alive = |step: usize| -> u64 {
        let at =
            |t: &&Value| t["first"].as_u64().unwrap() <= step as u64 && (step as u64) < t["last"].as_u64().unwrap();
        tensors.iter().filter(at).map(|t| t["bytes"].as_u64().unwrap()).sum()
    };
    let near: Vec<usize> = (0..steps.min(400)).collect();
    let peak = near.into_iter().max_by_key(|&s| alive(s)).unwrap();
    json!({ "device": device, "size": 168 * MIB, "bound": alive(peak), "steps": steps, "peak_step": peak, "tensors": tensors })
}

fn trace(id: &str, tokens: u64) -> Value {
    let span = |device: &str, kind: &str, name: String, start: u64, end: u64, bytes: u64, link: Value| json!({ "device": device, "kind": kind, "name": name, "start_us": start, "end_us": end, "bytes": bytes, "link": link });
    let spans: Vec<Value> = (0..tokens)
        .flat_map(|t| {
            let at = t * 3000;
            [
                span("sim0", "copy", format!("tokens {t}"), at, at + 40, 4096, json!("cpu→sim0")),
                span("sim0", "split", format!("split0 of token {t}"), at + 50, at + 1700, 0, Value::Null),
                span("sim1", "copy", "l_out-17".to_owned(), at + 1700, at + 1850, 8192, json!("sim0→sim1")),
                span("sim1", "split", format!("split1 of token {t}"), at + 1860, at + 2900, 0, Value::Null),
                span("sim0", "sync", "wait".to_owned(), at + 1860, at + 2900, 0, Value::Null),
            ]
        })
        .collect();
    json!({ "id": id, "model": "stories", "spans": spans })
}

//! The placement table, the summary, and the JSON object.

use super::generate::Generated;
use crate::commands::table::{Column, Table};
use crate::engine::Engine;
use loadmaster_backends::DeviceStats;
use loadmaster_graph::{Bytes, DeviceId, IdVec};
use serde_json::json;
use std::time::Duration;

/// Copies that devices made.
#[derive(Clone, Copy, Debug, Default)]
pub struct Moved {
    copies: u64,
    bytes: Bytes,
}

impl Moved {
    /// What was moved between memories from one moment to a later one: inputs and outputs too.
    pub fn since(before: &IdVec<DeviceId, DeviceStats>, after: &IdVec<DeviceId, DeviceStats>) -> Self {
        let sum = |stats: &IdVec<DeviceId, DeviceStats>| {
            let routes = stats.values().flat_map(|s| [s.to_device, s.to_host, s.peer]);
            routes.fold((0, Bytes::ZERO), |(n, bytes), c| (n + c.copies, bytes.saturating_add(c.bytes)))
        };
        let ((n0, b0), (n1, b1)) = (sum(before), sum(after));
        Self { copies: n1 - n0, bytes: b1.saturating_sub(b0) }
    }
}

/// Which device has what, and what the compute arenas could not be below.
pub fn placement(engine: &Engine) -> String {
    let prepared = engine.prepared();
    let outputs = prepared.layers.layers.len() as u32;
    let mut table = Table::new(&[
        (Column::Left, "device"),
        (Column::Left, "layers"),
        (Column::Right, "weights"),
        (Column::Right, "KV cache"),
        (Column::Right, "compute"),
        (Column::Right, "bound"),
        (Column::Right, "workspace"),
    ]);
    for (id, need) in prepared.devices.iter() {
        let name = engine.runtime().device(id).name().to_owned();
        let cells = [need.weights, need.cache, need.compute, need.bound, need.workspace].map(|b| b.to_string());
        table.push([name, layer_ranges(&need.layers, outputs)].into_iter().chain(cells));
    }
    let settings = engine.settings();
    format!(
        "{}: context {}, micro-batch {}\n{}\n",
        engine.model().name,
        settings.context,
        settings.largest_micro_batch(),
        table.render(2)
    )
}

/// `0-3, 7, output`.
fn layer_ranges(layers: &[u32], output: u32) -> String {
    let mut parts: Vec<String> = Vec::new();
    let plain: Vec<u32> = layers.iter().copied().filter(|&l| l != output).collect();
    for run in plain.chunk_by(|a, b| a + 1 == *b) {
        match run {
            [only] => parts.push(only.to_string()),
            [first, .., last] => parts.push(format!("{first}-{last}")),
            [] => {}
        }
    }
    if layers.contains(&output) {
        parts.push("output".to_owned());
    }
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

/// Tokens a second; `None` where nothing was computed.
fn rate(count: usize, time: Duration) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| count as f64 / time.as_secs_f64())
}

/// The rate for people, after a comma.
fn told(rate: Option<f64>) -> String {
    rate.map_or(String::new(), |rate| format!(", {rate:.1} tokens/s"))
}

/// Speed, splits, copies, bytes moved.
pub fn summary(engine: &Engine, generated: &Generated, loaded: Duration, moved: &Moved) -> String {
    let prepared = engine.prepared();
    let (full, one) = (&prepared.full, &prepared.one);
    let tokens: usize = generated.sequences.iter().map(|s| s.tokens.len()).sum();
    format!(
        "\n\nloaded in {:.2} s; prompt {} tokens{}; generated {tokens} tokens{} ({})\n\
         a token: {} splits, {} copies ({}); a micro-batch of {}: {} splits, {} copies ({})\n\
         moved {} in {} copies\n",
        loaded.as_secs_f64(),
        generated.prompt_tokens,
        told(rate(generated.prompt_tokens, generated.prompt_time)),
        told(rate(generated.steps, generated.step_time)),
        generated.end.sentence(generated.sequences.first().map_or(0, |s| s.tokens.len())),
        one.splits,
        one.copies,
        one.copied,
        full.tokens,
        full.splits,
        full.copies,
        full.copied,
        moved.bytes,
        moved.copies,
    )
}

/// All of it for programs.
pub fn json(engine: &Engine, generated: &Generated, loaded: Duration, moved: &Moved) -> anyhow::Result<String> {
    let prepared = engine.prepared();
    let ids = |tokens: &[loadmaster_models::tokenizer::TokenId]| tokens.iter().map(|t| t.index()).collect::<Vec<_>>();
    let devices: Vec<_> = prepared
        .devices
        .iter()
        .map(|(id, need)| {
            json!({
                "name": engine.runtime().device(id).name(),
                "layers": need.layers,
                "weights": need.weights.get(),
                "kv": need.cache.get(),
                "compute": need.compute.get(),
                "bound": need.bound.get(),
                "workspace": need.workspace.get(),
            })
        })
        .collect();
    let graph = |g: &crate::engine::GraphSummary| {
        json!({
            "tokens": g.tokens, "nodes": g.nodes, "splits": g.splits, "copies": g.copies, "copied_bytes": g.copied.get(),
        })
    };
    let sequences: Vec<_> = generated
        .sequences
        .iter()
        .map(|s| json!({ "prompt_tokens": ids(&s.prompt), "tokens": ids(&s.tokens), "text": s.text }))
        .collect();
    let first = generated.sequences.first();
    let object = json!({
        "model": engine.model().name,
        "prompt_tokens": first.map(|s| ids(&s.prompt)).unwrap_or_default(),
        "tokens": first.map(|s| ids(&s.tokens)).unwrap_or_default(),
        "text": first.map(|s| s.text.as_str()).unwrap_or_default(),
        "sequences": sequences,
        "end": generated.end.word(),
        "devices": devices,
        "splits": prepared.one.splits,
        "copies": prepared.one.copies,
        "graphs": { "token": graph(&prepared.one), "micro_batch": graph(&prepared.full) },
        "moved": { "copies": moved.copies, "bytes": moved.bytes.get() },
        "timings": {
            "load_s": loaded.as_secs_f64(),
            "prompt_s": generated.prompt_time.as_secs_f64(),
            "prompt_tokens_per_s": rate(generated.prompt_tokens, generated.prompt_time),
            "decode_s": generated.step_time.as_secs_f64(),
            "decode_tokens_per_s": rate(generated.steps, generated.step_time),
        },
    });
    Ok(serde_json::to_string(&object)? + "\n")
}

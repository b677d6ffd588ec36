//! What llama.cpp takes, by kind of memory.

use super::args::{Args, Format};
use super::bytes;
use crate::commands::table::{Column, Table};
use crate::engine::Model;
use crate::plan::llama_cpp::{Prediction, predict};
use loadmaster_graph::Bytes;
use loadmaster_sched::Machine;
use serde_json::{Value, json};
use std::process::ExitCode;

pub(super) fn run(args: &Args, model: &Model) -> anyhow::Result<ExitCode> {
    let machine = super::Target::of(args)?.machine;
    let choices = args.choices(&model.params);
    let prediction = predict(&model.file, &machine, &choices.llama_cpp(&machine)?)?;
    let short = short(&machine, &prediction, args.reserve);
    let flags = choices.llama_cpp_flags();
    let text = match args.format {
        Format::Json => serde_json::to_string_pretty(&json(&machine, &prediction, &short, &flags))? + "\n",
        Format::Text => text(&prediction, &short, &flags),
    };
    crate::commands::print(&text)?;
    Ok(if short.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn total(m: &crate::plan::llama_cpp::MemoryUse) -> Bytes {
    m.weights.saturating_add(m.kv).saturating_add(m.compute)
}

/// Devices whose pool is too small, and by how much.
fn short(machine: &Machine, prediction: &Prediction, reserve: Bytes) -> Vec<(String, Bytes)> {
    let of = |(id, pool): (_, &loadmaster_sched::machine::Pool)| {
        let fallback = machine.compute_type(machine.fallback()).pool;
        let pool_of = |i: usize| match machine.devices().iter().nth(i) {
            Some((device, _)) => machine.compute_type(device).pool,
            // Re-laid out weights are in host memory.
            None => fallback,
        };
        let used: Bytes =
            prediction.memory.iter().enumerate().filter(|(i, _)| pool_of(*i) == id).map(|(_, m)| total(m)).sum();
        let short = used.saturating_add(reserve).saturating_sub(pool.capacity?);
        (short > Bytes::ZERO).then(|| (pool.name.to_string(), short))
    };
    machine.pools().iter().filter_map(of).collect()
}

fn json(machine: &Machine, prediction: &Prediction, short: &[(String, Bytes)], flags: &str) -> Value {
    let device = |(i, m): (usize, &crate::plan::llama_cpp::MemoryUse)| {
        let capacity =
            machine.devices().iter().nth(i).and_then(|(d, _)| machine.pools()[machine.compute_type(d).pool].capacity);
        json!({
            "name": m.name, "weights": m.weights.get(), "kv": m.kv.get(), "compute": m.compute.get(),
            "total": total(m).get(), "free": capacity.map(|c| (i128::from(c.get()) - i128::from(total(m).get())).clamp(i64::MIN.into(), i64::MAX.into()) as i64),
        })
    };
    let name = |d| machine.device(d).name.to_string();
    let layers: Vec<Value> = prediction
        .layers
        .layers
        .iter()
        .enumerate()
        .map(|(i, &d)| json!({ "layer": i.to_string(), "device": name(d) }))
        .collect();
    let layers: Vec<Value> =
        layers.into_iter().chain([json!({ "layer": "output", "device": name(prediction.layers.output) })]).collect();
    json!({
        "engine": "llama.cpp",
        "devices": prediction.memory.iter().enumerate().map(device).collect::<Vec<_>>(),
        "fits": short.is_empty(),
        "short": short.iter().map(|(n, b)| json!({ "pool": n, "bytes": b.get() })).collect::<Vec<_>>(),
        "splits": prediction.splits_decode,
        "splits_prefill": prediction.splits_prefill,
        "copies": prediction.copies,
        "layers": layers,
        "llama_cpp_flags": flags,
    })
}

fn text(prediction: &Prediction, short: &[(String, Bytes)], flags: &str) -> String {
    let headings = ["weights", "KV", "compute", "total"];
    let mut columns = vec![(Column::Left, "memory")];
    columns.extend(headings.map(|h| (Column::Right, h)));
    let mut table = Table::new(&columns);
    for m in &prediction.memory {
        let numbers = [m.weights, m.kv, m.compute, total(m)].map(|b| b.get().to_string());
        table.push([m.name.clone()].into_iter().chain(numbers));
    }
    let mut out = format!("llama.cpp takes, in bytes:\n{}", table.render(2));
    out += &format!(
        "a token: {} splits; a micro-batch: {} splits; pipeline depth {}\n",
        prediction.splits_decode, prediction.splits_prefill, prediction.copies
    );
    for (pool, missing) in short {
        out += &format!("it does not fit: {pool} is short by {} bytes ({})\n", missing.get(), bytes(missing.get()));
    }
    out + &format!("llama.cpp: {flags}\n")
}

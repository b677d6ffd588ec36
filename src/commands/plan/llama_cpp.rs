//! What llama.cpp takes, by kind of memory.

use super::args::{Args, Format};
use super::bytes;
use crate::commands::table::{Column, Table};
use crate::engine::Model;
use crate::plan::llama_cpp::{Prediction, predict};
use loadmaster_graph::{Bytes, IdVec, PoolId};
use loadmaster_sched::Machine;
use loadmaster_sched::machine::Pool;
use serde_json::{Value, json};
use std::process::ExitCode;

pub(super) fn run(args: &Args, model: &Model) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(args.output.is_none(), "-o writes a plan for `run`; give --format json with --engine llama.cpp");
    anyhow::ensure!(!args.fit, "--fit chooses a placement for `run`; --engine llama.cpp follows llama.cpp's own rules");
    let machine = super::Target::of(args)?.machine;
    let choices = args.choices(&model.params);
    let prediction = predict(&model.file, &machine, &choices.llama_cpp(&machine)?)?;
    let short = short(&machine, &prediction, args.reserve);
    let flags = choices.llama_cpp_flags();
    let text = match args.format {
        Format::Json => {
            serde_json::to_string_pretty(&json(&machine, &prediction, args.reserve, &short, &flags))? + "\n"
        }
        Format::Text => text(&prediction, &short, &flags),
    };
    crate::commands::print(&text)?;
    Ok(if short.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn total(m: &crate::plan::llama_cpp::MemoryUse) -> Bytes {
    m.weights.saturating_add(m.kv).saturating_add(m.compute)
}

/// Pools that are too small, and by how much: every byte counts in its pool and in those that contain that one.
fn short(machine: &Machine, prediction: &Prediction, reserve: Bytes) -> Vec<(String, Bytes)> {
    // Re-laid out weights stand behind the devices and are in host memory.
    let devices = machine.devices().ids().chain(std::iter::once(machine.fallback()));
    let mut used = IdVec::filled(Bytes::ZERO, machine.pools().len());
    for (device, memory) in devices.zip(&prediction.memory) {
        for pool in machine.pool_and_outer(machine.compute_type(device).pool) {
            used[pool] = used[pool].saturating_add(total(memory));
        }
    }
    let of = |(id, pool): (PoolId, &Pool)| {
        let short = used[id].saturating_add(reserve).saturating_sub(pool.capacity?);
        (short > Bytes::ZERO).then(|| (pool.name.to_string(), short))
    };
    machine.pools().iter().filter_map(of).collect()
}

/// Bytes as JSON's readers take them: below 0 for what is missing.
fn signed(bytes: Bytes) -> i64 {
    i64::try_from(bytes.get()).unwrap_or(i64::MAX)
}

fn json(machine: &Machine, prediction: &Prediction, reserve: Bytes, short: &[(String, Bytes)], flags: &str) -> Value {
    let device = |(i, m): (usize, &crate::plan::llama_cpp::MemoryUse)| {
        let capacity =
            machine.devices().iter().nth(i).and_then(|(d, _)| machine.pools()[machine.compute_type(d).pool].capacity);
        json!({
            "name": m.name, "weights": m.weights.get(), "kv": m.kv.get(), "compute": m.compute.get(),
            "total": total(m).get(), "free": capacity.map(|c| signed(c).saturating_sub(signed(reserve)).saturating_sub(signed(total(m)))),
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
    if short.is_empty() {
        out += "it fits\n";
    }
    for (pool, missing) in short {
        out += &format!("it does not fit: {pool} is short by {} bytes ({})\n", missing.get(), bytes(missing.get()));
    }
    out + &format!("llama.cpp: {flags}\n")
}

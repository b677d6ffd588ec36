//! What llama.cpp takes, by kind of memory.

use super::args::{Args, Format};
use crate::commands::table::{Column, Table, fit};
use crate::engine::{Model, Room, rooms};
use crate::plan::llama_cpp::{MemoryUse, Prediction, predict};
use loadmaster_graph::{Bytes, DeviceId, IdVec, PoolId};
use loadmaster_sched::Machine;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Longest name of a pool within a line.
const NAME: usize = 36;

pub(super) fn run(args: &Args, model: &Model) -> anyhow::Result<ExitCode> {
    let machine = super::Target::of(args)?.machine;
    let choices = args.choices(&model.params);
    let prediction = predict(&model.file, &machine, &choices.llama_cpp(&machine)?)?;
    let told = Predicted { rooms: rooms_of(&machine, &prediction, args.reserve()), machine, prediction };
    let flags = choices.llama_cpp_flags();
    let text = match args.format {
        Format::Json => serde_json::to_string_pretty(&told.json(&flags))? + "\n",
        Format::Text => crate::commands::harmless(&told.text(&flags)),
    };
    crate::commands::print(&text)?;
    Ok(if told.fits() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// What llama.cpp takes of a machine.
struct Predicted {
    machine: Machine,
    prediction: Prediction,
    rooms: IdVec<PoolId, Room>,
}

fn total(m: &MemoryUse) -> Bytes {
    m.weights.saturating_add(m.kv).saturating_add(m.compute)
}

/// What is left of pools: every byte counts in its pool and in those that contain that one.
fn rooms_of(machine: &Machine, prediction: &Prediction, reserve: Bytes) -> IdVec<PoolId, Room> {
    let mut used = IdVec::filled(Bytes::ZERO, machine.pools().len());
    for (device, memory) in homes(machine).zip(&prediction.memory) {
        for pool in machine.pool_and_outer(machine.compute_type(device).pool) {
            used[pool] = used[pool].saturating_add(total(memory));
        }
    }
    rooms(machine, &used, reserve)
}

/// The device of each kind of memory: re-laid out weights stand behind the devices and are in host memory.
fn homes(machine: &Machine) -> impl Iterator<Item = DeviceId> {
    machine.devices().ids().chain(std::iter::once(machine.fallback()))
}

impl Predicted {
    fn fits(&self) -> bool {
        self.rooms.values().all(|room| room.missing() == Bytes::ZERO)
    }

    /// Kinds of memory, each with what its pool has left.
    fn memory(&self) -> impl Iterator<Item = (&MemoryUse, Option<i64>)> {
        let left = |device| self.rooms[self.machine.compute_type(device).pool].left();
        self.prediction.memory.iter().zip(homes(&self.machine).map(left))
    }

    /// Pools that are too small, and by how much.
    fn short(&self) -> impl Iterator<Item = (&str, Bytes)> {
        let all = self.machine.pools().values().zip(self.rooms.values());
        all.map(|(pool, room)| (&*pool.name, room.missing())).filter(|(_, missing)| *missing > Bytes::ZERO)
    }

    fn json(&self, flags: &str) -> Value {
        let device = |(m, free): (&MemoryUse, Option<i64>)| {
            json!({
                "name": m.name, "weights": m.weights.get(), "kv": m.kv.get(), "compute": m.compute.get(),
                "compute_bound": m.compute_bound.get(), "total": total(m).get(), "free": free,
            })
        };
        let name = |d| self.machine.device(d).name.to_string();
        let layers = self.prediction.layers.layers.iter().enumerate();
        let layers = layers.map(|(i, &d)| json!({ "layer": i.to_string(), "device": name(d) }));
        let output = json!({ "layer": "output", "device": name(self.prediction.layers.output) });
        json!({
            "engine": "llama.cpp",
            "devices": self.memory().map(device).collect::<Vec<_>>(),
            "fits": self.fits(),
            "short": self.short().map(|(n, b)| json!({ "pool": n, "bytes": b.get() })).collect::<Vec<_>>(),
            "splits": self.prediction.splits_decode,
            "splits_prefill": self.prediction.splits_prefill,
            "copies": self.prediction.copies,
            "layers": layers.chain([output]).collect::<Vec<_>>(),
            "llama_cpp_flags": flags,
        })
    }

    fn text(&self, flags: &str) -> String {
        let headings = ["weights", "KV", "compute", "bound", "total", "free"];
        let mut columns = vec![(Column::Left, "memory")];
        columns.extend(headings.map(|h| (Column::Right, h)));
        let mut table = Table::new(&columns);
        for (m, free) in self.memory() {
            let numbers = [m.weights, m.kv, m.compute, m.compute_bound, total(m)].map(|b| b.get().to_string());
            let free = free.map_or("?".to_owned(), |n| n.to_string());
            table.push([m.name.clone()].into_iter().chain(numbers).chain([free]));
        }
        let mut out = format!("llama.cpp takes, in bytes:\n{}", table.render(2));
        let (one, full) = (self.prediction.splits_decode, self.prediction.splits_prefill);
        let depth = self.prediction.copies;
        out += &format!("a token: {one} splits; a micro-batch: {full} splits; pipeline depth {depth}\n");
        if self.fits() {
            out += "it fits\n";
        }
        for (pool, missing) in self.short() {
            let pool = fit(pool, NAME);
            out += &format!("it does not fit: {pool} is short by {} bytes ({missing})\n", missing.get());
        }
        out + &format!("llama.cpp: {flags}\n")
    }
}

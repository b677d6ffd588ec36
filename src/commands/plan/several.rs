//! Several models on the same devices, such as a draft and its target.
//!
//! Each is fitted into what those before it leave; every order is tried while there are few, and the one that takes least
//! time for a token of each, all added up, is told.

use super::{Args, Format, Target, Told, bytes, json as json_of, plan, text};
use crate::commands::table::{Column, Table, fit};
use crate::engine::Model;
use crate::plan::fit::Request;
use crate::plan::saved::SavedPlan;
use anyhow::Context;
use loadmaster_graph::Bytes;
use loadmaster_sched::Machine;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;

/// Models at most.
const MAX_MODELS: usize = 8;
/// Models of which every order is tried.
const MAX_ORDERED: usize = 3;
/// A pool with nothing left is described by this many bytes, because none may be empty.
const NOTHING: Bytes = Bytes(4096);
/// Longest name of a model in a line.
const NAME: usize = 60;

/// Models in the order in which they were asked for, each with its plan.
struct Together {
    plans: Vec<Told>,
    fits: bool,
    /// Seconds for a token of each.
    seconds: f64,
}

pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let paths = &args.models;
    anyhow::ensure!(paths.len() <= MAX_MODELS, "--models: {} models exceed the limit of {MAX_MODELS}", paths.len());
    anyhow::ensure!(args.output.is_none(), "-o writes the plan of one model; give --format json with --models");
    let open = |path: &PathBuf| Model::open(path).with_context(|| path.display().to_string());
    let models: Vec<Model> = paths.iter().map(open).collect::<Result<_, _>>()?;
    let target = Target::of(args)?;
    let mut best: Option<Together> = None;
    for order in orders(models.len()) {
        let found = in_order(args, &models, &target, &order)?;
        let key = |t: &Together| (!t.fits, t.seconds);
        if best.as_ref().is_none_or(|b| key(&found) < key(b)) {
            best = Some(found);
        }
    }
    let best = best.context("--models names no model")?;
    let names: Vec<String> = paths.iter().map(|p| p.display().to_string()).collect();
    let out = match args.format {
        Format::Json => serde_json::to_string_pretty(&as_json(&best, &names, &target)?)? + "\n",
        Format::Text => crate::commands::harmless(&as_text(&best, &names, &target.machine)),
    };
    crate::commands::print(&out)?;
    Ok(if best.fits { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// All orders of a few, or that of the command line.
fn orders(n: usize) -> Vec<Vec<usize>> {
    if n > MAX_ORDERED {
        return vec![(0..n).collect()];
    }
    let mut all = vec![Vec::new()];
    for i in 0..n {
        let longer = all.iter().flat_map(|order: &Vec<usize>| {
            (0..=order.len()).map(move |at| [&order[..at], &[i], &order[at..]].concat())
        });
        all = longer.collect();
    }
    all.sort();
    all
}

fn in_order(args: &Args, models: &[Model], target: &Target, order: &[usize]) -> anyhow::Result<Together> {
    let placer = args.policy().placer();
    let mut machine = target.machine.clone();
    let mut plans: Vec<Option<Told>> = models.iter().map(|_| None).collect();
    for &i in order {
        let (model, speeds) = (&models[i], target.speeds.as_slice());
        let request = Request { model, machine: &machine, speeds, placer: &placer, reserve: args.reserve() };
        let told = Told { target: Some(target.clone()), ..plan(args, &request)? };
        machine = without(&machine, &told.plan)?;
        plans[i] = Some(told);
    }
    let plans: Vec<Told> = plans.into_iter().flatten().collect();
    let seconds =
        |t: &Told| t.plan.predicted.map_or(0.0, |p| if p.decode > 0.0 { 1.0 / p.decode } else { f64::INFINITY });
    Ok(Together { fits: plans.iter().all(|t| t.plan.fits), seconds: plans.iter().map(seconds).sum(), plans })
}

/// The machine with what a plan leaves of it.
fn without(machine: &Machine, plan: &SavedPlan) -> anyhow::Result<Machine> {
    let mut parts = machine.parts().clone();
    for (pool, planned) in parts.pools.values_mut().zip(&plan.pools) {
        pool.capacity = pool.capacity.map(|c| c.saturating_sub(Bytes(planned.used)).max(NOTHING));
    }
    for memory in parts.buffer_types.values_mut() {
        let left = parts.pools[memory.pool].capacity;
        memory.max_size = memory.max_size.map(|m| left.map_or(m, |left| m.min(left)));
    }
    Ok(Machine::new(parts)?)
}

/// Bytes that all models take of each pool.
fn used(plans: &[Told], pool: usize) -> u64 {
    plans.iter().filter_map(|t| t.plan.pools.get(pool)).map(|p| p.used).fold(0, u64::saturating_add)
}

fn as_json(found: &Together, names: &[String], target: &Target) -> anyhow::Result<Value> {
    let one = |(told, name): (&Told, &String)| {
        let mut object = json_of(told)?;
        object["file"] = json!(name);
        Ok(object)
    };
    let models: anyhow::Result<Vec<Value>> = found.plans.iter().zip(names).map(one).collect();
    let pools = target.machine.pools().values().enumerate().map(|(i, pool)| {
        json!({ "name": pool.name, "capacity": pool.capacity.map(Bytes::get), "used": used(&found.plans, i) })
    });
    Ok(json!({ "fits": found.fits, "models": models?, "pools": pools.collect::<Vec<_>>() }))
}

fn as_text(found: &Together, names: &[String], machine: &Machine) -> String {
    let mut out = String::new();
    for (told, name) in found.plans.iter().zip(names) {
        out += &format!("== {}\n{}\n", fit(name, NAME), text::render(told));
    }
    let mut columns = vec![(Column::Left, "together"), (Column::Right, "used")];
    columns.extend([(Column::Right, "of"), (Column::Right, "free")]);
    let mut table = Table::new(&columns);
    for (i, pool) in machine.pools().values().enumerate() {
        let used = used(&found.plans, i);
        let left = pool.capacity.map(|c| c.get().checked_sub(used).map_or("none".to_owned(), bytes));
        let all = pool.capacity.map_or("?".to_owned(), |c| bytes(c.get()));
        table.push([pool.name.to_string(), bytes(used), all, left.unwrap_or_else(|| "?".to_owned())]);
    }
    out += &table.render(2);
    out + if found.fits { "all of them fit\n" } else { "not all of them fit\n" }
}

//! A plan for people: at most 100 columns.

use super::machine::{told_assumed, told_sources};
use super::{Told, bytes};
use crate::commands::table::{Column, Table, fit, wrapped};
use crate::plan::advice::Relaxation;
use crate::plan::fit::Purpose;
use crate::plan::fit::core::WhyEmpty;
use crate::plan::fit::costs::Upload;
use crate::plan::longest::CONTEXT_BLOCK;
use crate::plan::saved::{LayerPlan, SavedPlan};
use std::collections::BTreeSet;

/// Widest line.
const WIDTH: usize = 100;
/// Devices and links that are listed at most.
const LISTED: usize = 16;
/// Tensors of a peak that are listed at most.
const PEAK_LISTED: usize = 4;
/// Longest name of a device within a line.
const NAME: usize = 36;
/// Blanks before the further lines of a list.
const INDENT: usize = 4;

pub(super) fn render(told: &Told) -> String {
    let plan = &told.plan;
    let c = &plan.choices;
    let mut out = format!(
        "{}, {} tensors, {}: context {}, batch {}, micro-batch {}, {} sequences\n\n",
        plan.model.architecture,
        plan.model.tensors,
        bytes(plan.model.bytes),
        c.ctx,
        c.batch,
        c.ubatch,
        c.parallel
    );
    out += &devices(plan);
    out += &told.target.as_ref().map_or(String::new(), |t| told_assumed(&t.machine));
    out += "\n";
    out += &placement(&plan.layers);
    out += &elsewhere(&plan.layers);
    out += &told.upload.map_or(String::new(), |u| upload(plan, &u));
    for text in &told.idle {
        out += &fit(&format!("  no weight has a name that `{text}` matches"), WIDTH);
        out += "\n";
    }
    let graph =
        |splits: usize, copies: usize, moved: u64| format!("{splits} splits, {copies} copies ({})", bytes(moved));
    let full = &plan.prefill;
    out += &format!("\na token: {}\n", graph(plan.splits, plan.transfers, plan.bytes_per_token));
    out += &format!("a micro-batch of {}: {}\n", full.tokens, graph(full.splits, full.transfers, full.bytes));
    out += &format!("pipeline depth {}\n", plan.copies);
    out += &links(plan);
    out += &peaks(plan);
    if let Some(speed) = &plan.predicted {
        out += &format!("predicted: {:.1} tokens/s, prompts {:.0} tokens/s", speed.decode, speed.prefill);
        out += &speed.gap.map_or(String::new(), |g| format!("; at most {:.1} % from the best placement", g * 100.0));
        out += "\n";
        if let Some(target) = &told.target {
            out += &format!("  speeds of devices: {}\n", told_sources(&target.sources));
        }
    }
    for (device, why) in &told.empty {
        let name = &plan.devices[device.index()].name;
        let name = fit(name, WIDTH / 2);
        out += &match why {
            WhyEmpty::NoRoom => format!("{name} stays empty: no placement that uses it fits\n"),
            WhyEmpty::Slower(s) if *s <= 0.0 => format!("{name} stays empty: using it gains nothing\n"),
            WhyEmpty::Slower(s) => format!("{name} stays empty: using it costs {} more\n", cost(told.purpose, *s)),
        };
    }
    out += &verdict(told);
    out + &format!("llama.cpp: {}\n", plan.llama_cpp_flags)
}

fn devices(plan: &SavedPlan) -> String {
    let headings = ["weights", "KV", "compute", "bound", "workspace", "total", "free"];
    let mut columns = vec![(Column::Left, "device")];
    columns.extend(headings.map(|h| (Column::Right, h)));
    let mut table = Table::new(&columns);
    for d in &plan.devices {
        let free = match d.free {
            None => "?".to_owned(),
            Some(n) if n < 0 => format!("-{}", bytes(n.unsigned_abs())),
            Some(n) => bytes(n.unsigned_abs()),
        };
        let numbers = [d.weights, d.kv, d.compute, d.compute_bound, d.workspace, d.total].map(bytes);
        table.push([d.name.clone()].into_iter().chain(numbers).chain([free]));
    }
    table.render(2)
}

/// Bytes over each link; the longest list that is shown in full has [`LISTED`] lines.
fn links(plan: &SavedPlan) -> String {
    if plan.links.is_empty() {
        return String::new();
    }
    let columns = [
        (Column::Left, "from"),
        (Column::Left, "to"),
        (Column::Right, "copies"),
        (Column::Right, "a token"),
        (Column::Right, "copies"),
        (Column::Right, "a micro-batch"),
    ];
    let mut table = Table::new(&columns);
    for l in plan.links.iter().take(LISTED) {
        let numbers = [l.transfers.to_string(), bytes(l.bytes_per_token)];
        let prefill = [l.prefill_transfers.to_string(), bytes(l.prefill_bytes)];
        table.push([l.from.clone(), l.to.clone()].into_iter().chain(numbers).chain(prefill));
    }
    table.render(2) + &more(plan.links.len(), LISTED)
}

/// What the fullest moments of the arenas are made of.
fn peaks(plan: &SavedPlan) -> String {
    let mut out = String::new();
    for d in plan.devices.iter().filter(|d| !d.peak.alive.is_empty()).take(LISTED) {
        let peak = &d.peak;
        let head = format!("peak of {}: {} with {} tokens at {}:", d.name, bytes(peak.bytes), peak.tokens, peak.node);
        out += &fit(&head, WIDTH);
        out += "\n";
        for part in peak.alive.iter().take(PEAK_LISTED) {
            out += &fit(&format!("  {:>12}  {}", bytes(part.bytes), part.tensor), WIDTH);
            out += "\n";
        }
        out += &more(peak.alive.len(), PEAK_LISTED);
    }
    out
}

/// Says how many lines were left out.
fn more(all: usize, listed: usize) -> String {
    all.checked_sub(listed).filter(|&n| n > 0).map_or(String::new(), |n| format!("  and {n} more\n"))
}

fn placement(layers: &[LayerPlan]) -> String {
    let mut out = String::new();
    for run in layers.chunk_by(|a, b| a.device == b.device) {
        out += &fit(&format!("  layers {}: {}", range(run), run[0].device), WIDTH);
        out += "\n";
    }
    out
}

/// What was minimised, for people.
fn cost(purpose: Purpose, cost: f64) -> String {
    match purpose {
        Purpose::Decode => format!("{:.3} ms for a token", cost * 1e3),
        Purpose::Prefill => format!("{:.3} ms for a prompt of one batch", cost * 1e3),
        Purpose::Memory => format!("{:.1} % of the fullest device", cost * 1e2),
    }
}

/// Weights that an option by name put on another device than their layer's, by that device.
fn elsewhere(layers: &[LayerPlan]) -> String {
    let homes: BTreeSet<&String> = layers.iter().flat_map(|l| l.elsewhere.keys()).collect();
    let one = |home: &String| {
        let of = |l: &LayerPlan| l.elsewhere.get(home).copied();
        let sum = layers.iter().filter_map(of).fold(0, u64::saturating_add);
        let runs = layers.chunk_by(|a, b| of(a).is_some() == of(b).is_some()).filter(|run| of(&run[0]).is_some());
        let names: Vec<String> = runs.map(range).collect();
        let line =
            format!("  {} of weights by name on {}: of layers {}", bytes(sum), fit(home, NAME), names.join(", "));
        listed(&line)
    };
    homes.into_iter().map(one).collect()
}

/// Who computes with experts on the host, and from which batch on that should be.
fn upload(plan: &SavedPlan, of: &Upload) -> String {
    let device = fit(&plan.devices[of.device.index()].name, NAME);
    let best = match of.best {
        Some(best) if u64::from(best) == of.now => String::new(),
        Some(best) => format!("; {best} would be faster (`offload_min_batch` of a machine file)"),
        None => format!("; up to {} the host is faster (`offload_min_batch` of a machine file)", of.most),
    };
    listed(&format!("experts on the host: {device} computes with them from {} tokens on{best}", of.now))
}

/// An entry of a list, on as many lines as it needs.
fn listed(text: &str) -> String {
    format!("  {}\n", wrapped(text, WIDTH - INDENT).join(&format!("\n{}", " ".repeat(INDENT))))
}

/// The names of layers that follow each other.
fn range(run: &[LayerPlan]) -> String {
    match run {
        [only] => only.layer.clone(),
        [first, .., last] => format!("{} to {}", first.layer, last.layer),
        [] => String::new(),
    }
}

/// What would make it fit.
pub(super) fn advice(relaxations: &[Relaxation]) -> String {
    if relaxations.is_empty() {
        return "no change of up to three kinds makes it fit\n".to_owned();
    }
    let line = |r: &Relaxation| {
        let line = format!("{}: {:.1} tokens/s", r.what, r.predicted.decode);
        listed(&line)
    };
    std::iter::once("it would with\n".to_owned()).chain(relaxations.iter().map(line)).collect()
}

fn verdict(told: &Told) -> String {
    let plan = &told.plan;
    let mut out = String::new();
    if plan.fits {
        out += "it fits\n";
    } else {
        for pool in plan.pools.iter().filter(|p| p.short > 0) {
            out += &format!(
                "it does not fit: {} is short by {} bytes ({})\n",
                fit(&pool.name, WIDTH / 3),
                pool.short,
                bytes(pool.short)
            );
        }
        let most = plan.devices.iter().filter(|d| d.free.is_some_and(|f| f < 0));
        for d in most {
            let parts = [("weights", d.weights), ("KV", d.kv), ("compute", d.compute), ("workspace", d.workspace)];
            let share = |n: u64| n as f64 * 100.0 / d.total.max(1) as f64;
            let parts: Vec<String> = parts.iter().map(|(what, n)| format!("{what} {:.0} %", share(*n))).collect();
            out += &format!("  {}: {}\n", fit(&d.name, WIDTH / 2), parts.join(", "));
        }
        out += &advice(&told.relaxations);
    }
    match told.longest {
        None => {}
        Some(None) => out += &format!("not even a context of {CONTEXT_BLOCK} fits so placed\n"),
        Some(Some(n)) if n >= told.longest_tried => {
            let why = if n > plan.choices.ctx { "the model was trained for" } else { "was asked for" };
            out += &format!("the longest context that was tried fits: {n}, what {why}\n");
        }
        Some(Some(n)) => {
            out += &format!("longest context that fits so placed: {n}; {} does not\n", n + CONTEXT_BLOCK);
        }
    }
    out
}

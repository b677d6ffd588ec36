//! A plan for people: at most 100 columns.

use super::{Told, bytes};
use crate::commands::table::{Column, Table};
use crate::plan::advice::CONTEXT_BLOCK;
use crate::plan::fit::core::WhyEmpty;
use crate::plan::saved::{LayerPlan, SavedPlan};

/// Layers that a line of the placement names at most.
const WIDTH: usize = 96;

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
    out += "\n";
    out += &placement(&plan.layers);
    out += &format!(
        "\na token: {} splits, {} copies ({}); a micro-batch of {}: {} splits, {} copies ({}); pipeline depth {}\n",
        plan.splits,
        plan.transfers,
        bytes(plan.bytes_per_token),
        plan.prefill.tokens,
        plan.prefill.splits,
        plan.prefill.transfers,
        bytes(plan.prefill.bytes),
        plan.copies
    );
    if let Some(speed) = &plan.predicted {
        out += &format!(
            "predicted from assumed speeds: {:.1} tokens/s, prompts {:.0} tokens/s",
            speed.decode, speed.prefill
        );
        out += &speed.gap.map_or(String::new(), |g| format!("; at most {:.1} % from the best placement", g * 100.0));
        out += "\n";
    }
    for (device, why) in &told.empty {
        let name = &plan.devices[device.index()].name;
        out += &match why {
            WhyEmpty::NoRoom => format!("{name} stays empty: no placement that uses it fits\n"),
            WhyEmpty::Slower(s) => format!("{name} stays empty: using it costs {:.3} ms more\n", s * 1e3),
        };
    }
    out += &verdict(told);
    out + &format!("llama.cpp: {}\n", plan.llama_cpp_flags)
}

fn devices(plan: &SavedPlan) -> String {
    let headings = ["weights", "KV", "compute", "bound", "total", "free"];
    let mut columns = vec![(Column::Left, "device")];
    columns.extend(headings.map(|h| (Column::Right, h)));
    let mut table = Table::new(&columns);
    for d in &plan.devices {
        let free = match d.free {
            None => "?".to_owned(),
            Some(n) if n < 0 => format!("-{}", bytes(n.unsigned_abs())),
            Some(n) => bytes(n.unsigned_abs()),
        };
        let numbers = [d.weights, d.kv, d.compute, d.compute_bound, d.total].map(bytes);
        table.push([d.name.clone()].into_iter().chain(numbers).chain([free]));
    }
    table.render(2)
}

fn placement(layers: &[LayerPlan]) -> String {
    let mut out = String::new();
    for run in layers.chunk_by(|a, b| a.device == b.device) {
        let names = match run {
            [only] => only.layer.clone(),
            [first, .., last] => format!("{} to {}", first.layer, last.layer),
            [] => continue,
        };
        let line = format!("  layers {names}: {}", run[0].device);
        out += &line.chars().take(WIDTH).collect::<String>();
        out += "\n";
    }
    out
}

fn verdict(told: &Told) -> String {
    let plan = &told.plan;
    let mut out = String::new();
    if plan.fits {
        out += "it fits\n";
    } else {
        for pool in plan.pools.iter().filter(|p| p.short > 0) {
            out +=
                &format!("it does not fit: {} is short by {} bytes ({})\n", pool.name, pool.short, bytes(pool.short));
        }
        let most = plan.devices.iter().filter(|d| d.free.is_some_and(|f| f < 0));
        for d in most {
            let parts = [("weights", d.weights), ("KV", d.kv), ("compute", d.compute)];
            let share = |n: u64| n as f64 * 100.0 / d.total.max(1) as f64;
            let parts: Vec<String> = parts.iter().map(|(what, n)| format!("{what} {:.0} %", share(*n))).collect();
            out += &format!("  {}: {}\n", d.name, parts.join(", "));
        }
        out += if told.relaxations.is_empty() { "no single change or pair makes it fit\n" } else { "it would with\n" };
        for r in &told.relaxations {
            out += &format!("  {}: {:.1} tokens/s\n", r.what, r.predicted.decode);
        }
    }
    match told.longest {
        None => {}
        Some(None) => out += &format!("not even a context of {CONTEXT_BLOCK} fits\n"),
        Some(Some(n)) if n >= told.longest_tried => {
            out += &format!("the longest context that was tried fits: {n}, what the model was trained for\n");
        }
        Some(Some(n)) => out += &format!("longest context that fits: {n}; {} does not\n", n + CONTEXT_BLOCK),
    }
    out
}

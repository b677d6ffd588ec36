//! `loadmaster diff`: what moved between two saved plans, and what it costs.

use super::table::{Column, Table, fit};
use crate::plan::saved::SavedPlan;
use loadmaster_graph::Bytes;
use std::path::PathBuf;
use std::process::ExitCode;

/// Longest name of a device in a line that is no table.
const NAME: usize = 36;

/// Compare two saved plans
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A plan, from `plan -o`
    pub a: PathBuf,
    /// Another
    pub b: PathBuf,
}

/// Runs the command: 0 they are equal, 1 they differ, 2 one cannot be read.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (a, b) = (SavedPlan::read(&args.a)?, SavedPlan::read(&args.b)?);
    if a == b {
        super::print("the plans are equal\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    super::print(&super::harmless(&render(&a, &b)))?;
    Ok(ExitCode::from(1))
}

fn change(a: u64, b: u64) -> String {
    match b.cmp(&a) {
        std::cmp::Ordering::Equal => "=".to_owned(),
        std::cmp::Ordering::Less => format!("-{}", Bytes(a - b)),
        std::cmp::Ordering::Greater => format!("+{}", Bytes(b - a)),
    }
}

fn render(a: &SavedPlan, b: &SavedPlan) -> String {
    let mut out = String::new();
    if a.model != b.model {
        out += &format!("other models: {} and {}\n", a.model.architecture, b.model.architecture);
    }
    let headings = ["weights", "KV", "compute", "workspace", "total"];
    let mut columns = vec![(Column::Left, "device")];
    columns.extend(headings.map(|h| (Column::Right, h)));
    let mut table = Table::new(&columns);
    for d in &b.devices {
        match a.devices.iter().find(|o| o.name == d.name) {
            Some(o) => {
                let pairs = [
                    (o.weights, d.weights),
                    (o.kv, d.kv),
                    (o.compute, d.compute),
                    (o.workspace, d.workspace),
                    (o.total, d.total),
                ];
                table.push([d.name.clone()].into_iter().chain(pairs.map(|(a, b)| change(a, b))));
            }
            None => table.push([d.name.clone(), "new".to_owned()]),
        }
    }
    for gone in a.devices.iter().filter(|o| b.devices.iter().all(|d| d.name != o.name)) {
        table.push([gone.name.clone(), "gone".to_owned()]);
    }
    out += &table.render(2);
    out += &moved(a, b);
    if a.choices.override_tensor != b.choices.override_tensor {
        let list = |p: &SavedPlan| p.choices.override_tensor.join(" ");
        out += &format!("weights by name: `{}` becomes `{}`\n", list(a), list(b));
    }
    out +=
        &format!("splits {} → {}, bytes per token {} → {}\n", a.splits, b.splits, a.bytes_per_token, b.bytes_per_token);
    if let (Some(x), Some(y)) = (&a.predicted, &b.predicted) {
        out += &format!(
            "predicted tokens/s: {:.1} → {:.1}; prompts {:.0} → {:.0}\n",
            x.decode, y.decode, x.prefill, y.prefill
        );
    }
    if a.fits != b.fits {
        out += if b.fits { "the second fits, the first does not\n" } else { "the first fits, the second does not\n" };
    }
    out
}

/// Layers that changed their device, as ranges.
fn moved(a: &SavedPlan, b: &SavedPlan) -> String {
    let pairs: Vec<(&str, &str, &str)> =
        a.layers.iter().zip(&b.layers).map(|(x, y)| (x.layer.as_str(), x.device.as_str(), y.device.as_str())).collect();
    let mut out = String::new();
    for run in pairs.chunk_by(|x, y| (x.1, x.2) == (y.1, y.2)) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        if first.1 != first.2 {
            let names = if run.len() == 1 { first.0.to_owned() } else { format!("{} to {}", first.0, last.0) };
            out += &format!("layers {names}: {} → {}\n", fit(first.1, NAME), fit(first.2, NAME));
        }
    }
    out
}

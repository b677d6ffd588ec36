//! `loadmaster compare`: ggml's bytes, ours, and what nothing can beat, over many graphs.

use super::input::{PolicyArg, read_graph};
use super::print;
use super::table::{Column, Table};
use anyhow::{Context, bail};
use loadmaster_alloc::Placer;
use loadmaster_graph::Bytes;
use loadmaster_sched::Setup;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Compare the bytes that ggml's rules and ours need for graph files, next to the lower bound
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Graph files, or directories of them (every *.json and *.json.gz)
    #[arg(value_name = "DIR_OR_FILES", required = true)]
    paths: Vec<PathBuf>,
}

/// Bytes of one file, all devices together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bill {
    ggml: Bytes,
    best: Bytes,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let files = graph_files(&args.paths)?;
    let mut table = Table::new(&[
        (Column::Left, "graph"),
        (Column::Right, "ggml"),
        (Column::Right, "best"),
        (Column::Right, "best/ggml"),
    ]);
    let mut bills = Vec::with_capacity(files.len());
    for path in &files {
        let (name, bill) = measure(path)?;
        table.push([name, bill.ggml.get().to_string(), bill.best.get().to_string(), ratio(bill.best, bill.ggml)]);
        bills.push(bill);
    }
    let total = Bill { ggml: bills.iter().map(|b| b.ggml).sum(), best: bills.iter().map(|b| b.best).sum() };
    table.push([
        format!("total of {}", bills.len()),
        total.ggml.get().to_string(),
        total.best.get().to_string(),
        ratio(total.best, total.ggml),
    ]);
    print(&table.render(0))?;
    print(&format!("geometric mean of best/ggml: {:.4}\n", geometric_mean(&bills)))?;
    Ok(ExitCode::SUCCESS)
}

fn measure(path: &Path) -> anyhow::Result<(String, Bill)> {
    let file = read_graph(path)?;
    let setup = Setup::of(&file).with_context(|| path.display().to_string())?;
    let bytes = |placer: Placer| -> anyhow::Result<Bytes> {
        Ok(setup.plan(&file.graph, placer).with_context(|| path.display().to_string())?.memory.total_size())
    };
    let bill = Bill { ggml: bytes(PolicyArg::Ggml.placer())?, best: bytes(PolicyArg::Best.placer())? };
    Ok((file.graph.name().to_owned(), bill))
}

fn ratio(a: Bytes, b: Bytes) -> String {
    if b == Bytes::ZERO { "-".to_owned() } else { format!("{:.4}", a.get() as f64 / b.get() as f64) }
}

/// Over the files that need any bytes.
fn geometric_mean(bills: &[Bill]) -> f64 {
    let logs = bills.iter().filter(|b| b.ggml > Bytes::ZERO).map(|b| (b.best.get() as f64 / b.ggml.get() as f64).ln());
    let (sum, count) = logs.fold((0.0, 0_u32), |(sum, n), log| (sum + log, n + 1));
    if count == 0 { 1.0 } else { (sum / f64::from(count)).exp() }
}

/// The files themselves, and the graph files of directories, in name order. Errors: a path that is not there, a
/// directory without graph files.
fn graph_files(paths: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let place = || path.display().to_string();
        let mut found = Vec::new();
        for entry in path.read_dir().with_context(place)? {
            let path = entry.with_context(place)?.path();
            let name = path.to_string_lossy();
            if name.ends_with(".json") || name.ends_with(".json.gz") {
                found.push(path);
            }
        }
        if found.is_empty() {
            bail!("{}: no *.json or *.json.gz in this directory", path.display());
        }
        found.sort();
        files.extend(found);
    }
    Ok(files)
}

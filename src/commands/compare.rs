//! `loadmaster compare`: ggml's bytes, ours, and what nothing can beat, over many graphs.

use super::input::PolicyArg;
use super::print;
use super::table::{Column, Table};
use anyhow::{Context, bail};
use loadmaster_alloc::report;
use loadmaster_graph::Bytes;
use loadmaster_graph::file::GraphFile;
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
    /// What no plan with the lifetimes and in-place pairs of `best` can beat.
    bound: Bytes,
}

impl Bill {
    fn row(self, name: String) -> [String; 6] {
        let bytes = |b: Bytes| b.get().to_string();
        let Self { ggml, best, bound } = self;
        [name, bytes(ggml), bytes(best), bytes(bound), ratio(best, ggml), ratio(best, bound)]
    }
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let files = graph_files(&args.paths)?;
    let mut table = Table::new(&[
        (Column::Left, "graph"),
        (Column::Right, "ggml"),
        (Column::Right, "best"),
        (Column::Right, "bound"),
        (Column::Right, "best/ggml"),
        (Column::Right, "best/bound"),
    ]);
    let mut bills = Vec::with_capacity(files.len());
    for path in &files {
        let (name, bill) = measure(path).with_context(|| path.display().to_string())?;
        table.push(bill.row(name));
        bills.push(bill);
    }
    let sum = |of: fn(&Bill) -> Bytes| bills.iter().map(of).sum();
    let total = Bill { ggml: sum(|b| b.ggml), best: sum(|b| b.best), bound: sum(|b| b.bound) };
    table.push(total.row(format!("total of {}", bills.len())));
    print(&table.render(0))?;
    print(&format!("geometric mean of best/ggml: {:.4}\n", geometric_mean(&bills)))?;
    Ok(ExitCode::SUCCESS)
}

fn measure(path: &Path) -> anyhow::Result<(String, Bill)> {
    let file = GraphFile::read_path(path)?;
    let setup = Setup::of(&file)?;
    let ggml = setup.plan(&file.graph, PolicyArg::Ggml.placer())?.memory.total_size();
    let plan = setup.plan(&file.graph, PolicyArg::Best.placer())?;
    let report = report(&plan.lowered.graph, &plan.arenas, plan.ids(), &plan.memory)?;
    let bill = Bill { ggml, best: report.size(), bound: report.lower_bound() };
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

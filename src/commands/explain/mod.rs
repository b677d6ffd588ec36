//! `loadmaster explain`: where everything of a graph goes, and why.

mod dot;
mod json;
mod names;
mod peaks;
mod pools;
mod text;

use super::input::{MachineArgs, PolicyArg, read_graph};
use super::print;
use anyhow::Context;
use clap::ValueEnum;
use loadmaster_alloc::{CheckError, Checker, PlanReport, report};
use loadmaster_graph::file::GraphFile;
use loadmaster_sched::{Plan, PlanFault, Setup, check_lowered, check_splits};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Show where everything of a graph goes, and why: devices with causes, splits, copies, bytes, and what the peak is made of
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A graph file, plain or gzip
    #[arg(value_name = "GRAPH.json[.gz]")]
    graph: PathBuf,
    #[command(flatten)]
    machine: MachineArgs,
    /// Whose rules place tensors
    #[arg(long, value_enum, default_value_t)]
    policy: PolicyArg,
    /// How to say it
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Check the plan with code that shares nothing with the planner; exit status 1 if it does not stand
    #[arg(long)]
    verify: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
enum Format {
    /// For people
    #[default]
    Text,
    /// For programs: the keys of `expected` in graph files, and more
    Json,
    /// For Graphviz
    Dot,
}

/// What the formats write down.
struct Explained<'g> {
    file: &'g GraphFile,
    setup: Setup,
    plan: Plan<'g>,
    report: PlanReport,
    policy: PolicyArg,
    verified: Verified,
}

/// Whether the checkers have looked at the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verified {
    Yes,
    No,
}

/// Runs the command. Exit status 1: the plan does not stand the check that was asked for.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = read_graph(&args.graph)?;
    let place = || args.graph.display().to_string();
    let setup = match args.machine.machine()? {
        Some(machine) => Setup::on(&file, &machine),
        None => Setup::of(&file),
    };
    let setup = setup.with_context(place)?;
    let plan = setup.plan(&file.graph, args.policy.placer()).with_context(place)?;
    let report = report(&plan.lowered.graph, &plan.arenas, plan.ids(), &plan.memory).with_context(place)?;
    let verified = match args.verify.then(|| verify(&file, &setup, &plan, args.policy)) {
        None => Verified::No,
        Some(Ok(verified)) => verified,
        Some(Err(unsound)) => {
            writeln!(io::stderr(), "error: {}: {unsound}", place())?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let explained = Explained { file: &file, setup, plan, report, policy: args.policy, verified };
    let text = match args.format {
        Format::Text => text::render(&explained),
        Format::Json => json::render(&explained)?,
        Format::Dot => dot::render(&explained),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// What `--format json` prints of a graph, planned as its file asks. Errors: a file that contradicts itself.
pub fn object(file: &GraphFile, policy: PolicyArg) -> anyhow::Result<serde_json::Value> {
    let setup = Setup::of(file)?;
    let plan = setup.plan(&file.graph, policy.placer())?;
    let report = report(&plan.lowered.graph, &plan.arenas, plan.ids(), &plan.memory)?;
    Ok(json::value(&Explained { file, setup, plan, report, policy, verified: Verified::No }))
}

/// A checker does not accept a plan. The reference's rules are followed even where they compute nonsense, as with a view
/// that is pinned away from its root.
#[derive(Debug, thiserror::Error)]
enum Unsound {
    #[error("by ggml's rules for devices and splits this graph computes nonsense: {0}")]
    Splits(#[from] PlanFault),
    #[error("by ggml's rules for memory this graph computes nonsense: {0}")]
    GgmlPlaces(CheckError),
    #[error("our placement of this graph is wrong, please report it: {0}")]
    OurPlaces(CheckError),
}

/// Lets the checkers look at devices, splits, the allocator's list and places.
fn verify(file: &GraphFile, setup: &Setup, plan: &Plan<'_>, policy: PolicyArg) -> Result<Verified, Unsound> {
    let graph = &file.graph;
    check_splits(graph, &setup.machine, &setup.residency, &plan.assignment, &plan.splits)?;
    check_lowered(graph, &plan.assignment, &plan.splits, &plan.lowered)?;
    let in_place = &policy.in_place();
    let checker = Checker { graph: &plan.lowered.graph, arenas: &plan.arenas, ids: plan.ids(), in_place };
    checker.check(&plan.memory).map_err(|fault| match policy {
        PolicyArg::Ggml => Unsound::GgmlPlaces(fault),
        PolicyArg::Best => Unsound::OurPlaces(fault),
    })?;
    Ok(Verified::Yes)
}

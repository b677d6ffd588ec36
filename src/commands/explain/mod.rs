//! `loadmaster explain`: where everything of a graph goes, and why.

mod dot;
mod json;
mod names;
mod pools;
mod text;

use super::input::{MachineArgs, PolicyArg, read_graph};
use super::print;
use anyhow::Context;
use clap::ValueEnum;
use loadmaster_graph::file::GraphFile;
use loadmaster_sched::{Plan, Setup};
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
    /// Check the plan with code that shares nothing with the planner
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
    policy: PolicyArg,
    verified: Verified,
}

/// Whether the checkers have looked at the plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verified {
    Yes,
    No,
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = read_graph(&args.graph)?;
    let place = || args.graph.display().to_string();
    let setup = match args.machine.machine()? {
        Some(machine) => Setup::on(&file, &machine),
        None => Setup::of(&file),
    };
    let setup = setup.with_context(place)?;
    let plan = setup.plan(&file.graph, args.policy.placer()).with_context(place)?;
    let verified = if args.verify { Verified::Yes } else { Verified::No };
    let explained = Explained { file: &file, setup, plan, policy: args.policy, verified };
    let text = match args.format {
        Format::Text => text::render(&explained),
        Format::Json => json::render(&explained)?,
        Format::Dot => dot::render(&explained),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

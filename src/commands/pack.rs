//! `loadmaster pack`: offsets for the buffers of a MiniMalloc file.

use super::print;
use anyhow::{Context, anyhow};
use loadmaster_alloc::pack::csv::{CsvProblem, MAX_FILE_BYTES};
use loadmaster_alloc::pack::{Effort, FitOutcome, PackError, Packing, pack_into_until, pack_until};
use loadmaster_graph::Bytes;
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Nodes that the search may look at without a time limit: a few seconds for some hundred buffers.
const NODE_BUDGET: u64 = 400_000;

/// Find offsets for buffers with sizes and lifetimes (MiniMalloc's CSV: id, lower, upper, size, and optionally offset and alignment)
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file
    #[arg(value_name = "FILE.csv")]
    file: PathBuf,
    /// Bytes that everything must stay below; without it the lowest peak is wanted
    #[arg(long, value_name = "BYTES")]
    capacity: Option<u64>,
    /// End the search after so many seconds, instead of after a fixed number of steps
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time_limit: Option<Duration>,
    /// Write the file with the offsets here
    #[arg(short, long, value_name = "OUT.csv")]
    output: Option<PathBuf>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wanted = "a number of seconds, such as 2 or 0.5";
    let seconds: f64 = text.parse().map_err(|_| wanted.to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|_| wanted.to_owned())
}

/// Runs the command. Status 1: the capacity cannot be met, or not with this effort.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let file = read(&args.file)?;
    let started = Instant::now();
    let mut stop = || args.time_limit.is_some_and(|limit| started.elapsed() >= limit);
    let node_budget = if args.time_limit.is_some() { u64::MAX } else { NODE_BUDGET };
    let effort = Effort::Optimal { node_budget };
    let refused = |error| refusal(&args.file, &file, &error);
    let Some(capacity) = args.capacity.map(Bytes) else {
        let packing = pack_until(&file.problem, effort, &mut stop).map_err(refused)?;
        print(&describe(&packing))?;
        write(args.output.as_deref(), &file, &packing)?;
        return Ok(ExitCode::SUCCESS);
    };
    match pack_into_until(&file.problem, capacity, effort, &mut stop).map_err(refused)? {
        FitOutcome::Fits(packing) => {
            print(&format!("{}capacity     {}: fits\n", describe(&packing), capacity.get()))?;
            write(args.output.as_deref(), &file, &packing)?;
            Ok(ExitCode::SUCCESS)
        }
        FitOutcome::Infeasible { at_least } => {
            let (capacity, at_least) = (capacity.get(), at_least.get());
            print(&format!("lower bound  {at_least}\ncapacity     {capacity}: cannot be met, which is proved\n"))?;
            Ok(ExitCode::from(1))
        }
        FitOutcome::Unknown { best } => {
            let verdict = "not met; whether it can be is not proved";
            print(&format!("{}capacity     {}: {verdict}\n", describe(&best), capacity.get()))?;
            Ok(ExitCode::from(1))
        }
    }
}

fn read(path: &Path) -> anyhow::Result<CsvProblem> {
    let name = || path.display().to_string();
    let mut bytes = Vec::new();
    // One byte more than the limit, so that the parser says what is wrong.
    File::open(path).with_context(name)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).with_context(name)?;
    CsvProblem::parse(&bytes).with_context(name)
}

fn describe(packing: &Packing) -> String {
    let (peak, bound) = (packing.peak, packing.lower_bound);
    let mut text = format!("peak         {} ({peak})\nlower bound  {}", peak.get(), bound.get());
    let gap = (peak.get() - bound.get()) as f64 / bound.get() as f64 * 100.0;
    // Writing to a string cannot fail.
    let _ = match packing.proved {
        true => writeln!(text, "\noptimum      proved"),
        false => writeln!(text, "\noptimum      not proved: {gap:.2} % above the bound"),
    };
    let _ = writeln!(text, "method       {}", packing.method.name());
    text
}

fn write(output: Option<&Path>, file: &CsvProblem, packing: &Packing) -> anyhow::Result<()> {
    let Some(path) = output else { return Ok(()) };
    fs::write(path, file.with_offsets(packing)).with_context(|| path.display().to_string())
}

/// The error with the lines and ids of the buffers that it names.
fn refusal(path: &Path, file: &CsvProblem, error: &PackError) -> anyhow::Error {
    let place = |buffer| file.origin(buffer).map(|(id, line)| format!("line {line} ({buffer} is `{id}`)"));
    let places: Vec<String> = error.buffers().into_iter().filter_map(place).collect();
    let separator = if places.is_empty() { "" } else { ": " };
    anyhow!("{}{separator}{}: {error}", path.display(), places.join(", "))
}

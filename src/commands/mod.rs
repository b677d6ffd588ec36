//! The subcommands. Exit status: 0 done, 1 a negative answer, 2 what was asked for makes no sense or cannot be read.

pub mod compare;
pub mod devices;
pub mod diff;
pub mod explain;
pub mod help;
pub mod input;
pub mod pack;
pub mod plan;
pub mod probe;
pub mod run;
pub mod serve;
pub mod table;

use clap::{Parser, Subcommand};
use std::io::{self, Write};
use std::process::ExitCode;

/// Splits tensor graphs over a CPU and several GPUs, plans every byte, runs them and explains the placement.
#[derive(Parser, Debug)]
#[command(name = "loadmaster", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Explain(explain::Args),
    Compare(compare::Args),
    Pack(pack::Args),
    Plan(Box<plan::Args>),
    Devices(devices::Args),
    Diff(diff::Args),
    Probe(probe::Args),
    Run(Box<run::Args>),
    Serve(Box<serve::Args>),
    Completions(help::CompletionsArgs),
    Man(help::ManArgs),
}

/// Parses the command line and does what it says.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.command {
        Command::Explain(args) => explain::run(args),
        Command::Compare(args) => compare::run(args),
        Command::Pack(args) => pack::run(args),
        Command::Plan(args) => plan::run(args),
        Command::Devices(args) => devices::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Probe(args) => probe::run(args),
        Command::Run(args) => run::run(args),
        Command::Serve(args) => serve::run(args),
        Command::Completions(args) => help::completions(args),
        Command::Man(args) => help::man(args),
    };
    let status = outcome.unwrap_or_else(|error| report(&error));
    if found_by_stand_in() { ExitCode::from(1) } else { status }
}

/// Whether the stand-in driver of the tests, where that was used, found anything; it is printed.
#[cfg(feature = "cuda")]
fn found_by_stand_in() -> bool {
    let found = loadmaster_backends::cuda::simulator::findings().filter(|text| !text.is_empty());
    if let Some(text) = &found {
        // Nobody is left to tell if this fails.
        let _ = write!(io::stderr(), "the stand-in driver found:\n{text}");
    }
    found.is_some()
}

#[cfg(not(feature = "cuda"))]
fn found_by_stand_in() -> bool {
    false
}

/// Says why something failed; status 1.
fn failed(error: &anyhow::Error) -> ExitCode {
    // Nobody is left to tell if this fails.
    let _ = writeln!(io::stderr(), "error: {}", harmless(&message(error)));
    ExitCode::from(1)
}

/// One message, and the status that goes with it. A reader that closed the pipe has seen what it wanted.
fn report(error: &anyhow::Error) -> ExitCode {
    let closed = |e: &(dyn std::error::Error + 'static)| {
        e.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    };
    if error.chain().any(closed) {
        return ExitCode::SUCCESS;
    }
    // Nobody is left to tell if this fails.
    let _ = writeln!(io::stderr(), "error: {}", harmless(&message(error)));
    ExitCode::from(2)
}

/// The error and its causes, without those that it already quotes.
fn message(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| match said.as_str() {
        "" => cause,
        _ if said.contains(&cause) => said,
        // A path in front of a message that begins with it.
        _ if cause.starts_with(&said) => cause,
        _ => format!("{said}: {cause}"),
    })
}

/// The text with what steers a terminal made visible, as names from files may hold it.
#[must_use]
pub fn harmless(text: &str) -> String {
    let shown = |c: char| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}

/// Writes to standard output. Errors: those of the stream, a closed pipe among them.
pub fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

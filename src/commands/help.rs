//! `loadmaster completions` and `loadmaster man`: what the shell and the manual say of the command.

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print completions for a shell
#[derive(clap::Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Print the manual page, or write one for every subcommand
#[derive(clap::Args, Debug)]
pub struct ManArgs {
    /// Write loadmaster.1 and a page for every subcommand there; the folder is made if it is not there
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
}

/// Prints completions. Errors: those of the stream.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut super::Cli::command(), "loadmaster", &mut text);
    super::print(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints or writes manual pages. Errors: those of the file system.
pub fn man(args: &ManArgs) -> anyhow::Result<ExitCode> {
    let command = super::Cli::command();
    let Some(folder) = &args.output else {
        let mut text = Vec::new();
        clap_mangen::Man::new(command).render(&mut text)?;
        super::print(&String::from_utf8_lossy(&text))?;
        return Ok(ExitCode::SUCCESS);
    };
    let place = || folder.display().to_string();
    std::fs::create_dir_all(folder).with_context(place)?;
    clap_mangen::generate_to(command, folder).with_context(place)?;
    Ok(ExitCode::SUCCESS)
}

//! The `loadmaster` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    loadmaster::commands::main()
}

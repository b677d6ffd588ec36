//! What is told where some tensor is longer than any buffer of its device.

use super::args::Format;
use super::{Args, relaxations_json};
use crate::commands::harmless;
use crate::plan::Choices;
use crate::plan::advice::{Placing, Relaxation, relaxations};
use crate::plan::fit::{FitError, Request};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Says what can never fit as chosen, and what would help.
pub(super) fn tell(args: &Args, request: &Request<'_>, base: &Choices, error: &FitError) -> anyhow::Result<ExitCode> {
    let text = match args.format {
        Format::Text => {
            let found = super::text::advice(&advice(args, request, base)?);
            harmless(&format!("it does not fit: {error}\n{found}llama.cpp: {}\n", base.llama_cpp_flags()))
        }
        Format::Json => serde_json::to_string_pretty(&object(args, request, base, error)?)? + "\n",
    };
    crate::commands::print(&text)?;
    Ok(ExitCode::from(1))
}

/// The same as `--format json` prints it.
pub(super) fn object(args: &Args, request: &Request<'_>, base: &Choices, error: &FitError) -> anyhow::Result<Value> {
    let never = error.never_fits().map(|n| {
        json!({ "buffer_type": n.buffer_type, "tensor": n.tensor, "needed": n.needed.get(), "largest": n.largest.get() })
    });
    let relaxations = relaxations_json(&advice(args, request, base)?);
    Ok(json!({ "fits": false, "never_fits": never, "choices": base, "relaxations": relaxations }))
}

fn advice(args: &Args, request: &Request<'_>, base: &Choices) -> Result<Vec<Relaxation>, FitError> {
    let placing = if args.chooses(request.machine) { Placing::Chosen(args.purpose()) } else { Placing::Asked };
    relaxations(request, base, placing)
}

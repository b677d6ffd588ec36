//! What is told where some tensor is longer than any buffer of its device.

use super::args::Format;
use super::{Args, relaxations_json};
use crate::commands::harmless;
use crate::plan::Choices;
use crate::plan::advice::{Placing, relaxations};
use crate::plan::fit::{FitError, Request};
use serde_json::json;
use std::process::ExitCode;

/// Says what can never fit as chosen, and what would help.
pub(super) fn tell(args: &Args, request: &Request<'_>, base: &Choices, error: &FitError) -> anyhow::Result<ExitCode> {
    let placing = if args.chooses(request.machine) { Placing::Chosen(args.purpose()) } else { Placing::Asked };
    let relaxations = relaxations(request, base, placing)?;
    let text = match args.format {
        Format::Text => {
            let found = super::text::advice(&relaxations);
            harmless(&format!("it does not fit: {error}\n{found}llama.cpp: {}\n", base.llama_cpp_flags()))
        }
        Format::Json => {
            let never = error.never_fits().map(|n| {
                json!({ "buffer_type": n.buffer_type, "tensor": n.tensor, "needed": n.needed.get(), "largest": n.largest.get() })
            });
            let object = json!({
                "fits": false, "never_fits": never, "choices": base, "relaxations": relaxations_json(&relaxations),
            });
            serde_json::to_string_pretty(&object)? + "\n"
        }
    };
    crate::commands::print(&text)?;
    Ok(ExitCode::from(1))
}

//! `--trace`: what every device did when, as Chrome's trace format has it. Opens in Perfetto.

use crate::engine::traced::{Span, Work};
use anyhow::Context;
use serde_json::{Value, json};
use std::path::Path;

/// Writes the file. Errors: with the path.
pub fn write(path: &Path, names: &[String], spans: &[Span]) -> anyhow::Result<()> {
    let text = serde_json::to_string(&events(names, spans))?;
    std::fs::write(path, text).with_context(|| path.display().to_string())
}

/// A process for each device, a thread for each of its streams.
fn events(names: &[String], spans: &[Span]) -> Value {
    let process = |(pid, name): (usize, &String)| json!({ "ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": { "name": name } });
    let all: Vec<Value> = names.iter().enumerate().map(process).chain(spans.iter().map(event)).collect();
    json!({ "displayTimeUnit": "ns", "traceEvents": all })
}

fn event(span: &Span) -> Value {
    let (name, category, args) = match span.work {
        Work::Compute { nodes } => (format!("{nodes} nodes"), "compute", json!({ "nodes": nodes })),
        Work::Copy { bytes, tensor } => {
            (format!("copy {bytes}"), "copy", json!({ "bytes": bytes.get(), "tensor": tensor.map(|t| t.index()) }))
        }
        Work::Upload { bytes } => (format!("write {bytes}"), "copy", json!({ "bytes": bytes.get() })),
        Work::Download { bytes } => (format!("read {bytes}"), "copy", json!({ "bytes": bytes.get() })),
    };
    // Thread 0 is the host's own reading and writing.
    let thread = span.stream.map_or(0, |s| s + 1);
    json!({
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": span.device.index(),
        "tid": thread,
        "ts": span.start.as_nanos() as f64 / 1000.0,
        "dur": span.length.as_nanos() as f64 / 1000.0,
        "args": args,
    })
}

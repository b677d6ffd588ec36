//! The explanation as a Graphviz graph: a box for each split, dashed edges for copies.

use super::Explained;
use loadmaster_graph::NodeId;
use loadmaster_sched::{Operand, Split};
use std::fmt::Write;

const COLOURS: [&str; 8] = ["#cfe8fc", "#fde2c4", "#d5f0d0", "#f6d3dc", "#e3d9f5", "#fdf3bf", "#cdeeea", "#e6e0d8"];

pub(super) fn render(explained: &Explained<'_>) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(explained, &mut text);
    text
}

fn write(explained: &Explained<'_>, out: &mut String) -> std::fmt::Result {
    writeln!(out, "digraph \"{}\" {{", escaped(explained.file.graph.name()))?;
    writeln!(out, "  node [shape=box, style=filled, fontname=\"sans-serif\"];")?;
    for (id, split) in explained.plan.splits.splits().iter() {
        let device = explained.device_name(split.device);
        let label = format!("{id} on {device}: {}", explained.words(&split.cause));
        writeln!(out, "  subgraph cluster_{} {{\n    label=\"{}\";", id.index(), escaped(&label))?;
        split.nodes().try_for_each(|node| write_node(explained, split, node, out))?;
        for copy in split.inputs() {
            let tensor = explained.plan.splits.copies()[copy].tensor;
            let label = format!("copy of {}", explained.tensor_name(tensor));
            writeln!(out, "    \"{copy}\" [label=\"{}\", style=dashed];", escaped(&label))?;
        }
        writeln!(out, "  }}")?;
    }
    write_leafs(explained, out)?;
    write_edges(explained, out)?;
    writeln!(out, "}}")
}

fn colour(split: &Split) -> &'static str {
    COLOURS[split.device.index() % COLOURS.len()]
}

fn write_node(explained: &Explained<'_>, split: &Split, node: NodeId, out: &mut String) -> std::fmt::Result {
    let tensor = explained.file.graph.nodes()[node];
    let op = explained.file.graph.tensor(tensor).op;
    let label = format!("{node} {op}\n{}", explained.tensor_name(tensor));
    writeln!(out, "    \"{tensor}\" [label=\"{}\", fillcolor=\"{}\"];", escaped(&label), colour(split))
}

fn write_leafs(explained: &Explained<'_>, out: &mut String) -> std::fmt::Result {
    explained.file.graph.leafs().values().try_for_each(|&leaf| {
        let device = explained.device_name(explained.plan.assignment.device(leaf));
        let label = format!("{}\non {device}", explained.tensor_name(leaf));
        writeln!(out, "  \"{leaf}\" [label=\"{}\", shape=ellipse, fillcolor=white];", escaped(&label))
    })
}

fn write_edges(explained: &Explained<'_>, out: &mut String) -> std::fmt::Result {
    let (graph, splits) = (&explained.file.graph, &explained.plan.splits);
    for (id, copy) in splits.copies().iter() {
        let label = copy.bytes.to_string();
        writeln!(out, "  \"{}\" -> \"{id}\" [style=dashed, label=\"{label}\"];", copy.tensor)?;
    }
    for (node, &tensor) in graph.nodes().iter() {
        for operand in splits.operands(graph, node).flatten() {
            match operand {
                Operand::Tensor(source) => writeln!(out, "  \"{source}\" -> \"{tensor}\";")?,
                Operand::Copy(copy) => writeln!(out, "  \"{copy}\" -> \"{tensor}\";")?,
            }
        }
    }
    Ok(())
}

/// Text inside a quoted Graphviz string.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

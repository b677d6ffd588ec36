//! Graphs as Graphviz DOT.

use crate::graph::Graph;
use crate::id::{DeviceId, TensorId};
use crate::op::Op;
use crate::tensor::Tensor;
use crate::text::{List, shown_extents};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};

/// Fill colours of devices, repeated where there are more devices.
const COLOURS: [&str; 8] = ["#cfe2f3", "#d9ead3", "#fff2cc", "#f4cccc", "#d9d2e9", "#fce5cd", "#d0e0e3", "#ead1dc"];

impl Graph {
    /// The graph in Graphviz's language: an ellipse for each node, a box for each leaf, an arrow from each source, a dashed
    /// one from the root of a view that is no source of it. Tensors that are neither node nor leaf are left out.
    /// Deterministic. O(tensors + sources).
    #[must_use]
    pub fn to_dot(&self) -> String {
        self.to_dot_placed(|_| None)
    }

    /// [`Self::to_dot`] with tensors grouped and coloured by device: `place` gives the device of a tensor and the label of
    /// its group (the label of a device's first tensor counts).
    #[must_use]
    pub fn to_dot_placed(&self, place: impl Fn(TensorId) -> Option<(DeviceId, String)>) -> String {
        let mut out = String::with_capacity(self.tensors().len() * 120);
        // Writing to a string does not fail.
        let written = write_graph(&mut out, self, place);
        debug_assert!(written.is_ok());
        out
    }
}

fn write_graph(out: &mut String, graph: &Graph, place: impl Fn(TensorId) -> Option<(DeviceId, String)>) -> fmt::Result {
    writeln!(out, "digraph {} {{\n  node [fontsize=10];", Quoted(graph.name()))?;
    let mut groups = BTreeMap::<DeviceId, (String, Vec<TensorId>)>::new();
    let mut loose = Vec::new();
    for &id in graph.leafs().values().chain(graph.nodes().values()) {
        match place(id) {
            Some((device, label)) => groups.entry(device).or_insert_with(|| (label, Vec::new())).1.push(id),
            None => loose.push(id),
        }
    }
    for (device, (label, ids)) in &groups {
        let colour = COLOURS[device.index() % COLOURS.len()];
        writeln!(out, "  subgraph cluster_{device} {{\n    label={}; color=\"{colour}\";", Quoted(label))?;
        for &id in ids {
            write!(out, "  ")?;
            write_tensor(out, graph, id, Some(colour))?;
        }
        writeln!(out, "  }}")?;
    }
    for &id in &loose {
        write_tensor(out, graph, id, None)?;
    }
    for &id in graph.leafs().values().chain(graph.nodes().values()) {
        write_edges(out, graph, id)?;
    }
    writeln!(out, "}}")
}

fn write_tensor(out: &mut String, graph: &Graph, id: TensorId, colour: Option<&str>) -> fmt::Result {
    let tensor = graph.tensor(id);
    let shape = if tensor.op == Op::None { "box" } else { "ellipse" };
    write!(out, "  {id} [shape={shape}, label={}", Quoted(&label(id, tensor)))?;
    if let Some(colour) = colour {
        write!(out, ", style=filled, fillcolor=\"{colour}\"")?;
    }
    writeln!(out, "];")
}

fn label(id: TensorId, tensor: &Tensor) -> String {
    let Tensor { op, name, dtype, .. } = tensor;
    let op = if *op == Op::None { String::new() } else { format!("{op}\n") };
    format!("{op}{id} {name}\n{dtype} {}", List(shown_extents(&tensor.ne)))
}

fn write_edges(out: &mut String, graph: &Graph, id: TensorId) -> fmt::Result {
    let tensor = graph.tensor(id);
    // A cast's reference to itself says nothing to a reader.
    for source in graph.topology().sources_some(id).filter(|&source| source != id) {
        writeln!(out, "  {source} -> {id};")?;
    }
    match tensor.view {
        Some(view) if !tensor.src.contains(&Some(view.root)) => {
            writeln!(out, "  {} -> {id} [style=dashed];", view.root)
        }
        _ => Ok(()),
    }
}

/// A quoted string of the language.
struct Quoted<'a>(&'a str);

impl Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                '\n' => f.write_str("\\n")?,
                c if c.is_control() => f.write_char('\u{fffd}')?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

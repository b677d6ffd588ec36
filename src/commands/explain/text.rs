//! The explanation for people: the answer first, then what it is made of.

use super::{Explained, Verified};
use crate::commands::table::{Column, Table};
use loadmaster_graph::{Bytes, DeviceId};
use std::fmt::Write;

pub(super) fn render(explained: &Explained<'_>) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write(explained, &mut text);
    text
}

fn write(explained: &Explained<'_>, out: &mut String) -> std::fmt::Result {
    heading(explained, out)?;
    writeln!(out, "\ndevices\n{}", devices(explained).render(2))?;
    writeln!(out, "pools\n{}", super::pools::table(explained).render(2))?;
    super::peaks::write(explained, out)?;
    writeln!(out)?;
    splits(explained, out)?;
    writeln!(out, "\nnodes\n{}", nodes(explained).render(2))?;
    writeln!(out, "leafs\n{}", leafs(explained).render(2).trim_end())
}

fn heading(explained: &Explained<'_>, out: &mut String) -> std::fmt::Result {
    let Explained { file, plan, policy, .. } = explained;
    let copied: Bytes = plan.splits.copies().values().map(|c| c.bytes).sum();
    let graph = &file.graph;
    writeln!(out, "{}: {} nodes, {} leafs", graph.name(), graph.nodes().len(), graph.leafs().len())?;
    write!(out, "policy {}", policy.name())?;
    write!(out, "; {}", plural(plan.splits.splits().len(), "split"))?;
    write!(out, ", {} a run ({copied})", plural(plan.splits.copies().len(), "copy"))?;
    if plan.lowered.n_copies() > 1 {
        write!(out, "; pipelined: every input has {} copies", plan.lowered.n_copies())?;
    }
    if explained.verified == Verified::Yes {
        write!(out, "; verified")?;
    }
    writeln!(out)
}

/// `1 copy`, `2 copies`.
fn plural(n: usize, noun: &str) -> String {
    match (n, noun.strip_suffix('y')) {
        (1, _) => format!("1 {noun}"),
        (_, Some(stem)) => format!("{n} {stem}ies"),
        (_, None) => format!("{n} {noun}s"),
    }
}

fn devices(explained: &Explained<'_>) -> Table {
    let mut table = Table::new(&[
        (Column::Left, "device"),
        (Column::Left, "kind"),
        (Column::Left, "driver"),
        (Column::Left, "buffer type"),
        (Column::Right, "nodes"),
        (Column::Right, "splits"),
        (Column::Right, "copies in"),
        (Column::Right, "bytes in"),
    ]);
    let assignment = &explained.plan.assignment;
    for (id, device) in explained.setup.machine.devices().iter() {
        let nodes = explained.file.graph.nodes().values().filter(|&&t| assignment.device(t) == id).count();
        let splits = explained.plan.splits.splits().values().filter(|s| s.device == id).count();
        let (copies, bytes) = copies_to(explained, id);
        table.push([
            device.name.to_string(),
            device.kind.to_string(),
            device.driver.to_string(),
            explained.setup.machine.compute_type(id).name.to_string(),
            nodes.to_string(),
            splits.to_string(),
            copies.to_string(),
            bytes.to_string(),
        ]);
    }
    table
}

fn copies_to(explained: &Explained<'_>, device: DeviceId) -> (usize, Bytes) {
    let copies = || explained.plan.splits.copies().values().filter(|c| c.to == device);
    (copies().count(), copies().map(|c| c.bytes).sum())
}

fn splits(explained: &Explained<'_>, out: &mut String) -> std::fmt::Result {
    writeln!(out, "splits")?;
    for (id, split) in explained.plan.splits.splits().iter() {
        let device = explained.device_name(split.device);
        let cause = explained.words(&split.cause);
        let count = plural(split.nodes().len(), "node");
        writeln!(out, "  {id}  {device}  {}..{} ({count}): {cause}", split.start, split.end)?;
        for copy in split.inputs() {
            let copy = &explained.plan.splits.copies()[copy];
            let (tensor, from) = (explained.tensor_name(copy.tensor), explained.device_name(copy.from));
            let reader = explained.tensor_name(explained.file.graph.nodes()[copy.reader]);
            let why = explained.words(&copy.cause);
            writeln!(out, "    copies {tensor} ({}) from {from} for {reader}: it {why}", copy.bytes)?;
        }
    }
    Ok(())
}

fn nodes(explained: &Explained<'_>) -> Table {
    let mut table = Table::new(&[
        (Column::Left, "node"),
        (Column::Left, "device"),
        (Column::Left, "operation"),
        (Column::Left, "tensor"),
        (Column::Wrapped, "why there (rule)"),
    ]);
    for (id, &tensor) in explained.file.graph.nodes().iter() {
        let cause = explained.plan.assignment.cause(tensor);
        table.push([
            id.to_string(),
            explained.device_name(explained.plan.assignment.device(tensor)).to_owned(),
            explained.file.graph.tensor(tensor).op.to_string(),
            explained.tensor_name(tensor),
            format!("{} ({})", explained.words(&cause), cause.rule()),
        ]);
    }
    table
}

fn leafs(explained: &Explained<'_>) -> Table {
    let mut table = Table::new(&[
        (Column::Left, "leaf"),
        (Column::Left, "device"),
        (Column::Right, "bytes"),
        (Column::Left, "tensor"),
        (Column::Wrapped, "why there (rule)"),
    ]);
    for (id, &tensor) in explained.file.graph.leafs().iter() {
        let cause = explained.plan.assignment.cause(tensor);
        table.push([
            id.to_string(),
            explained.device_name(explained.plan.assignment.device(tensor)).to_owned(),
            explained.file.graph.tensor(tensor).nbytes().to_string(),
            explained.tensor_name(tensor),
            format!("{} ({})", explained.words(&cause), cause.rule()),
        ]);
    }
    table
}

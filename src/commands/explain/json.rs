//! The explanation as JSON. The keys of `expected` in graph files have the same names and form here.

use super::{Explained, Verified};
use loadmaster_alloc::{ItemId, Origin};
use loadmaster_graph::TensorId;
use serde_json::{Map, Value, json};

pub(super) fn render(explained: &Explained<'_>) -> anyhow::Result<String> {
    let mut text = serde_json::to_string(&value(explained))?;
    text.push('\n');
    Ok(text)
}

pub(super) fn value(explained: &Explained<'_>) -> Value {
    let Explained { file, plan, policy, .. } = explained;
    let graph = &file.graph;
    let devices = |ids: &[loadmaster_graph::DeviceId]| ids.iter().map(|d| d.index()).collect::<Vec<_>>();
    let mut object = json!({
        "name": graph.name(),
        "policy": policy.name(),
        "devices": explained.device_names(),
        "node_devices": devices(plan.assignment.node_devices(graph).as_slice()),
        "leaf_devices": devices(plan.assignment.leaf_devices(graph).as_slice()),
        "splits": splits(explained),
        "split_causes": plan.splits.splits().values().map(|s| explained.words(&s.cause)).collect::<Vec<_>>(),
        "copies": copies(explained),
        "alloc_graph": alloc_graph(explained),
        "buffer_sizes": explained.per_device(|a| json!(plan.memory.buffer_size(a).get())),
        "lower_bounds": explained.per_device(|a| json!(explained.report.arena(a).map_or(0, |r| r.lower_bound.get()))),
        "proved": explained.per_device(|a| json!(explained.report.arena(a).is_none_or(|r| r.is_proved()))),
        "leaf_offsets": places(explained, plan.lowered.graph.leafs()),
        "node_offsets": places(explained, plan.lowered.graph.nodes()),
        "causes": {
            "nodes": causes(explained, graph.nodes().as_slice()),
            "leafs": causes(explained, graph.leafs().as_slice()),
        },
        "verified": explained.verified == Verified::Yes,
    });
    if let (Some(order), Some(map)) = (plan.memory.order(), object.as_object_mut()) {
        map.insert("node_order".to_owned(), json!(order.iter().map(|s| s.get()).collect::<Vec<_>>()));
    }
    object
}

fn splits(explained: &Explained<'_>) -> Vec<Value> {
    let plan = &explained.plan.splits;
    let input = |c| plan.copies()[c].tensor.index();
    plan.splits()
        .values()
        .map(|s| {
            json!({
                "device": s.device.index(),
                "start": s.start.index(),
                "end": s.end.index(),
                "inputs": s.inputs().map(input).collect::<Vec<_>>(),
            })
        })
        .collect()
}

fn copies(explained: &Explained<'_>) -> Vec<Value> {
    let copy = |c: &loadmaster_sched::InputCopy| {
        json!({
            "tensor": c.tensor.index(),
            "from": c.from.index(),
            "to": c.to.index(),
            "split": c.split.index(),
            "reader": c.reader.index(),
            "bytes": c.bytes.get(),
            "why": explained.words(&c.cause),
        })
    };
    explained.plan.splits.copies().values().map(copy).collect()
}

fn alloc_graph(explained: &Explained<'_>) -> Value {
    let lowered = &explained.plan.lowered;
    let list = |items: &[ItemId]| items.iter().map(|&i| entry(explained, i)).collect::<Vec<_>>();
    let ids = |ids: &[loadmaster_alloc::ArenaId]| ids.iter().map(|a| a.index()).collect::<Vec<_>>();
    json!({
        "nodes": list(lowered.graph.nodes()),
        "node_buffer_ids": ids(&lowered.node_buffer_ids),
        "leafs": list(lowered.graph.leafs()),
        "leaf_buffer_ids": ids(&lowered.leaf_buffer_ids),
        "changed_src": changed_sources(explained),
    })
}

fn entry(explained: &Explained<'_>, item: ItemId) -> Value {
    match explained.plan.lowered.graph.item(item).origin {
        Origin::Tensor(tensor) => json!(tensor.index()),
        Origin::Copy { of, device, copy } => {
            json!({ "copy_of": of.index(), "device": device.index(), "copy": copy })
        }
        Origin::Keep(tensor) => json!({ "keep": tensor.index() }),
    }
}

/// Sources of the nodes that read a copy.
fn changed_sources(explained: &Explained<'_>) -> Map<String, Value> {
    let (graph, lowered) = (&explained.file.graph, &explained.plan.lowered);
    let mut changed = Map::new();
    for redirect in explained.plan.splits.redirects() {
        let tensor: TensorId = graph.nodes()[redirect.node];
        let sources = lowered.graph.sources(ItemId::of(tensor)).iter();
        let list = sources.map(|s| s.map_or(Value::Null, |item| entry(explained, item))).collect();
        changed.insert(tensor.index().to_string(), Value::Array(list));
    }
    changed
}

fn places(explained: &Explained<'_>, items: &[ItemId]) -> Vec<Value> {
    let place =
        |p: loadmaster_alloc::Placement| json!([p.arena.index(), p.chunk.index(), p.offset.get(), p.size.get()]);
    items.iter().map(|&item| explained.plan.memory.placement(item).map_or(Value::Null, place)).collect()
}

fn causes(explained: &Explained<'_>, tensors: &[TensorId]) -> Vec<Value> {
    let cause = |&tensor: &TensorId| {
        let cause = explained.plan.assignment.cause(tensor);
        json!({ "tensor": tensor.index(), "rule": cause.rule(), "cause": explained.words(&cause) })
    };
    tensors.iter().map(cause).collect()
}

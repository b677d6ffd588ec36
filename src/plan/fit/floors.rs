//! What a device must have at once to compute a layer, in every placement that gives it the layer.

use super::costs::Part;
use loadmaster_graph::{Bytes, Op, TensorId};
use loadmaster_models::families::{ModelGraph, Part as ModelPart};
use loadmaster_sched::Machine;
use std::collections::{BTreeMap, BTreeSet};

/// Fills in the floors. Counted are products that read a weight of the part (they run where it is) or its cache (unless
/// that is on the host): the result, which is never written over an operand, and the operands that are computed or copied.
/// Experts are not counted, because they may be elsewhere.
pub(super) fn fill(parts: &mut [Part], model: &ModelGraph, machine: &Machine, cache_is_here: bool) {
    let graph = &model.graph;
    let mut owners: BTreeMap<TensorId, usize> = BTreeMap::new();
    let mut resident: BTreeSet<TensorId> = BTreeSet::new();
    let last = parts.len().saturating_sub(1);
    for weight in &model.weights {
        resident.insert(weight.tensor);
        let at = match weight.part {
            ModelPart::Input => continue,
            ModelPart::Layer(id) => id.index(),
            ModelPart::Output => last,
        };
        if !graph.tensor(weight.tensor).name.contains("_exps") {
            owners.insert(weight.tensor, at);
        }
    }
    for cache in &model.caches {
        resident.insert(cache.tensor);
        if cache_is_here {
            owners.insert(cache.tensor, cache.layer.index());
        }
    }
    let root = |t: TensorId| graph.tensor(t).view.map_or(t, |v| v.root);
    for &node in graph.nodes().values() {
        let tensor = graph.tensor(node);
        if tensor.op != Op::MulMat {
            continue;
        }
        let sources: BTreeSet<TensorId> = tensor.src.iter().flatten().map(|&s| root(s)).collect();
        let Some(&at) = sources.iter().find_map(|s| owners.get(s)) else { continue };
        let held = sources.iter().filter(|s| !resident.contains(s)).chain([&node]);
        let bytes = held.map(|&t| least(machine, model, t).get()).fold(0, u64::saturating_add);
        parts[at].floor = parts[at].floor.max(bytes);
    }
}

/// What a tensor takes where it takes least.
fn least(machine: &Machine, model: &ModelGraph, tensor: TensorId) -> Bytes {
    let tensor = model.graph.tensor(tensor);
    machine.buffer_types().values().map(|t| t.alloc_size(tensor)).min().unwrap_or_default()
}

//! The first difference between two answers.

use crate::file::Answer;
use std::fmt::Debug;

/// Describes the first difference between `left` and `right`, `None` if they agree. Sizes and offsets are compared
/// where both have them.
pub fn first_difference(left: &Answer, right: &Answer) -> Option<String> {
    let (l, r) = (&left.alloc_graph, &right.alloc_graph);
    list("device of node", &left.node_devices, &right.node_devices)
        .or_else(|| list("device of leaf", &left.leaf_devices, &right.leaf_devices))
        .or_else(|| list("split", &left.splits, &right.splits))
        .or_else(|| list("allocator's node", &l.nodes, &r.nodes))
        .or_else(|| list("buffer id of allocator's node", &l.node_buffer_ids, &r.node_buffer_ids))
        .or_else(|| list("allocator's leaf", &l.leafs, &r.leafs))
        .or_else(|| list("buffer id of allocator's leaf", &l.leaf_buffer_ids, &r.leaf_buffer_ids))
        .or_else(|| {
            let flat = |m: &std::collections::BTreeMap<_, _>| m.clone().into_iter().collect::<Vec<_>>();
            list("changed sources, entry", &flat(&l.changed_src), &flat(&r.changed_src))
        })
        .or_else(|| optional("offset of allocator's leaf", &left.leaf_offsets, &right.leaf_offsets))
        .or_else(|| optional("offset of allocator's node", &left.node_offsets, &right.node_offsets))
        .or_else(|| optional("size of buffer", &left.buffer_sizes, &right.buffer_sizes))
        .or_else(|| {
            let pairs = left.groups.iter().flatten().zip(right.groups.iter().flatten());
            pairs.enumerate().find_map(|(device, (l, r))| {
                list(&format!("buffer of the group of device {device}, number"), &l.0, &r.0)
                    .or_else(|| list(&format!("place in the group of device {device}, of tensor"), &l.1, &r.1))
            })
        })
}

fn optional<T: PartialEq + Debug>(what: &str, left: &Option<Vec<T>>, right: &Option<Vec<T>>) -> Option<String> {
    list(what, left.as_ref()?, right.as_ref()?)
}

fn list<T: PartialEq + Debug>(what: &str, left: &[T], right: &[T]) -> Option<String> {
    if let Some(i) = left.iter().zip(right).position(|(l, r)| l != r) {
        return Some(format!("{what} {i}: {:?} or {:?}", left[i], right[i]));
    }
    (left.len() != right.len()).then(|| format!("{what}: {} of them or {}", left.len(), right.len()))
}

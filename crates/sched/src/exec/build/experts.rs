//! Experts in host memory that are uploaded as batches use them.

use super::{ExpertUpload, Planned, ScheduleOptions};
use crate::exec::schedule::ExpertCopy;
use crate::split::InputCopy;
use loadmaster_graph::{CopyId, DType, NodeId, Op};
use std::collections::BTreeMap;

/// Weights in host memory, never written, that only MUL_MAT_ID nodes read, all with the same ids.
pub(super) fn find_experts(planned: &Planned<'_, '_>, options: &ScheduleOptions) -> BTreeMap<CopyId, ExpertCopy> {
    if options.experts == ExpertUpload::All {
        return BTreeMap::new();
    }
    let mut readers: BTreeMap<CopyId, Vec<(NodeId, u16)>> = BTreeMap::new();
    for redirect in planned.splits.redirects() {
        readers.entry(redirect.copy).or_default().push((redirect.node, redirect.operand));
    }
    let found = readers.iter().filter_map(|(&copy, readers)| {
        let experts = as_experts(planned, copy, readers)?;
        Some((copy, experts))
    });
    found.collect()
}

fn as_experts(planned: &Planned<'_, '_>, copy: CopyId, readers: &[(NodeId, u16)]) -> Option<ExpertCopy> {
    let graph = planned.graph();
    let record = &planned.splits.copies()[copy];
    let weights = graph.tensor(record.tensor);
    let resident = planned.residency.has_memory(record.tensor) && weights.op == Op::None && !weights.is_view();
    if !resident || weights.ne[2] < 2 || weights.ne[3] != 1 || !is_host_source(planned, record) {
        return None;
    }
    let ids_of = |&(node, operand): &(NodeId, u16)| {
        let tensor = graph.tensor(planned.tensor_of(node));
        let ids = tensor.src.get(2).copied().flatten();
        ids.filter(|&ids| tensor.op == Op::MulMatId && operand == 0 && graph.tensor(ids).dtype == DType::I32)
    };
    let ids = ids_of(readers.first()?)?;
    let same = readers.iter().all(|reader| ids_of(reader) == Some(ids));
    same.then_some(ExpertCopy { copy, weights: record.tensor, ids, device: record.to })
}

/// Whether the original of a copy is in host memory.
pub(in crate::exec) fn is_host_source(planned: &Planned<'_, '_>, copy: &InputCopy) -> bool {
    let machine = planned.machine;
    match planned.residency.storage_of(planned.graph(), copy.tensor) {
        Some(buffer) => machine.buffer_types()[planned.residency.buffers[buffer].buffer_type].host,
        None => machine.compute_type(copy.from).host,
    }
}

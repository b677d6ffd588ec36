//! loadmaster's answer for a graph file, and the stages that the timings use.

use crate::file::{AllocGraph as AllocKeys, Answer, Entry, GraphFile as PeerFile, Group, Offset, Split as SplitKeys};
use crate::unbacked::unbacked;
use anyhow::Context;
use loadmaster_alloc::group::{alloc_tensors, alloc_tensors_size};
use loadmaster_alloc::place::{BestOptions, InPlaceTables};
use loadmaster_alloc::{
    AllocError, AllocPlan, Arenas, BufferIds, BufferType, Checker, InPlaceTable, ItemId, Origin, Placer, plan,
};
use loadmaster_graph::file::GraphFile;
use loadmaster_graph::{Graph, NodeId, Op, TensorId};
use loadmaster_sched::{
    Assignment, KeepUntil, LowerOptions, Lowered, Machine, SchedError, Setup, SplitPlan, assign, check_lowered,
    check_splits, compute_types, lower, split,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A graph file with its machine, as loadmaster sees it.
pub struct Ours {
    pub graph: Graph,
    pub setup: Setup,
    pub arenas: Arenas,
    keep: Vec<KeepUntil>,
}

impl Ours {
    /// Reads the file with loadmaster's reader.
    pub fn new(file: &PeerFile) -> anyhow::Result<Self> {
        let read = GraphFile::from_bytes(file.to_json().as_bytes()).context("loadmaster cannot read the case")?;
        let mut setup = Setup::of(&read)?;
        restrict(&mut setup, file)?;
        let arenas = Arenas::new(compute_types(&setup.machine, &setup.sizes));
        let position = |tensor: u32| file.nodes.iter().position(|&n| n == tensor).context("kept for no node");
        let keep = |&(tensor, until): &(u32, u32)| {
            let (until, tensor) = (NodeId::new(position(until)?), TensorId::new(tensor as usize));
            anyhow::Ok(KeepUntil { until, tensor })
        };
        let keep = file.keep_until.iter().map(keep).collect::<anyhow::Result<_>>()?;
        Ok(Self { graph: read.graph, setup, arenas, keep })
    }

    pub fn assign(&self) -> Result<Assignment, SchedError> {
        assign(&self.graph, &self.setup.machine, &self.setup.residency, self.setup.assign)
    }

    pub fn split(&self, assignment: &Assignment) -> Result<SplitPlan, SchedError> {
        split(&self.graph, &self.setup.machine, &self.setup.residency, assignment)
    }

    pub fn lower(&self, assignment: &Assignment, plan: &SplitPlan) -> Result<Lowered<'_>, SchedError> {
        let options = LowerOptions { n_copies: self.setup.n_copies, keep: self.keep.clone() };
        lower(&self.graph, &self.setup.residency, assignment, plan, &options)
    }

    /// The same keys as ggml's answer.
    pub fn answer(&self) -> anyhow::Result<Answer> {
        let assignment = self.assign()?;
        let splits = self.split(&assignment)?;
        let lowered = self.lower(&assignment, &splits)?;
        let ids = BufferIds::Each { nodes: &lowered.node_buffer_ids, leafs: &lowered.leaf_buffer_ids };
        let alloc = plan(&lowered.graph, &self.arenas, ids, &Placer::Ggml)?;
        let offsets = |items: &[ItemId]| Some(items.iter().map(|&i| offset(&alloc, &lowered, i)).collect());
        Ok(Answer {
            node_devices: assignment.node_devices(&self.graph).values().map(|d| d.index() as i32).collect(),
            leaf_devices: assignment.leaf_devices(&self.graph).values().map(|d| d.index() as i32).collect(),
            splits: split_keys(&splits),
            alloc_graph: alloc_keys(&lowered),
            buffer_sizes: Some(alloc.buffer_sizes().values().map(|b| b.get()).collect()),
            leaf_offsets: offsets(lowered.graph.leafs()),
            node_offsets: offsets(lowered.graph.nodes()),
            groups: None,
        })
    }

    /// What loadmaster's own checkers find wrong with the list for the allocator and the best plan, and whether that
    /// is larger than the reference's. Returns what they find wrong with the splits and the plan by the reference's
    /// rules, which are not sound for every graph.
    pub fn verify(&self) -> anyhow::Result<Vec<String>> {
        let assignment = self.assign()?;
        let splits = self.split(&assignment)?;
        let Setup { machine, residency, .. } = &self.setup;
        let mut faults = Vec::new();
        if let Err(fault) = check_splits(&self.graph, machine, residency, &assignment, &splits) {
            faults.push(format!("splits: {fault}"));
        }
        let lowered = self.lower(&assignment, &splits)?;
        if self.keep.is_empty() {
            check_lowered(&self.graph, &assignment, &splits, &lowered).context("checker of lists")?;
        }
        let ids = BufferIds::Each { nodes: &lowered.node_buffer_ids, leafs: &lowered.leaf_buffer_ids };
        let check = |plan: &AllocPlan, in_place: &InPlaceTables| {
            Checker { graph: &lowered.graph, arenas: &self.arenas, ids, in_place }.check(plan)
        };
        let reference = plan(&lowered.graph, &self.arenas, ids, &Placer::Ggml)?;
        if let Err(fault) = check(&reference, &InPlaceTable::ggml().into()) {
            faults.push(format!("placement: {fault}"));
        }
        let options = BestOptions::default();
        let best = plan(&lowered.graph, &self.arenas, ids, &Placer::Best(options.clone()))?;
        check(&best, &options.in_place).context("checker of the best plan")?;
        let (best, reference) = (best.total_size(), reference.total_size());
        let sound = faults.is_empty();
        anyhow::ensure!(best <= reference || !sound, "the best plan needs {best}, the reference's {reference}");
        Ok(faults)
    }

    /// All tensors without memory as one group in the buffer type of each device (rule 6). `None` for a tensor that no
    /// buffer is long enough for: ggml tries a longer one than allowed.
    pub fn groups(&self) -> anyhow::Result<Vec<Option<Group>>> {
        self.arenas.ids().map(|arena| self.group(&unbacked(self.arenas.buffer_type(arena)))).collect()
    }

    fn group(&self, buffer_type: &Arc<dyn BufferType>) -> anyhow::Result<Option<Group>> {
        let tensors = self.graph.tensors();
        let has_memory = |t| self.setup.residency.has_memory(t);
        let group = match alloc_tensors(tensors, has_memory, buffer_type) {
            Err(AllocError::NeverFits { .. }) => return Ok(None),
            other => other?,
        };
        let sizes = alloc_tensors_size(tensors, has_memory, buffer_type)?;
        let sizes = sizes.values().map(|b| b.get()).collect();
        let place = |id| group.place(id).map(|p| (p.buffer.index() as u32, p.offset.get()));
        Ok(Some((sizes, tensors.ids().map(place).collect())))
    }
}

/// Takes away what the file's devices do not support: FORMAT.md has no key for that.
fn restrict(setup: &mut Setup, file: &PeerFile) -> anyhow::Result<()> {
    if file.devices.iter().all(|d| d.unsupported.is_empty()) {
        return Ok(());
    }
    let mut parts = setup.machine.parts().clone();
    for (device, peer) in parts.devices.values_mut().zip(&file.devices) {
        for name in &peer.unsupported {
            let op = Op::from_name(name).with_context(|| format!("loadmaster has no op {name}"))?;
            device.ops = device.ops.without(op);
        }
    }
    setup.machine = Machine::new(parts)?;
    Ok(())
}

fn split_keys(plan: &SplitPlan) -> Vec<SplitKeys> {
    let keys = |s: &loadmaster_sched::Split| SplitKeys {
        device: s.device.index() as i32,
        start: s.start.index() as u32,
        end: s.end.index() as u32,
        inputs: s.inputs().map(|c| plan.copies()[c].tensor.index() as u32).collect(),
    };
    plan.splits().values().map(keys).collect()
}

fn alloc_keys(lowered: &Lowered<'_>) -> AllocKeys {
    let graph = &lowered.graph;
    let entry = |i: ItemId| match graph.item(i).origin {
        Origin::Tensor(t) => Entry::Tensor(t.index() as u32),
        Origin::Copy { of, device, copy } => {
            Entry::Copy { copy_of: of.index() as u32, device: device.index() as u32, copy }
        }
        Origin::Keep(t) => Entry::Keep { keep: t.index() as u32 },
    };
    let mut changed_src = BTreeMap::new();
    for &node in graph.nodes() {
        let Origin::Tensor(tensor) = graph.item(node).origin else { continue };
        let before = graph.graph().topology().sources(tensor);
        let after = graph.sources(node);
        let as_item = |s: &Option<TensorId>| s.map(ItemId::of);
        if before.iter().map(as_item).ne(after.iter().copied()) {
            changed_src.insert(tensor.index() as u32, after.iter().map(|s| s.map(entry)).collect());
        }
    }
    AllocKeys {
        nodes: graph.nodes().iter().map(|&i| entry(i)).collect(),
        node_buffer_ids: lowered.node_buffer_ids.iter().map(|a| a.index() as i32).collect(),
        leafs: graph.leafs().iter().map(|&i| entry(i)).collect(),
        leaf_buffer_ids: lowered.leaf_buffer_ids.iter().map(|a| a.index() as i32).collect(),
        changed_src,
    }
}

fn offset(plan: &AllocPlan, lowered: &Lowered<'_>, item: ItemId) -> Offset {
    if lowered.graph.item(item).root.is_some() {
        return None;
    }
    let p = plan.placement(item)?;
    Some((p.arena.index() as u32, p.chunk.index() as u32, p.offset.get(), p.size.get()))
}

//! A checker beside the planner: it verifies devices, splits, copies and the allocator's list from the description of
//! the machine alone, and shares no look-up table with what made them.

use crate::assign::Assignment;
use crate::lower::Lowered;
use crate::machine::Machine;
use crate::residency::Residency;
use crate::split::{Operand, SplitPlan};
use loadmaster_alloc::{ArenaId, ItemId, Origin};
use loadmaster_graph::{BufferId, BufferTypeId, CopyId, DeviceId, Graph, NodeId, SplitId, TensorId};
use std::collections::{BTreeMap, BTreeSet};

/// What is wrong with a plan: always a fault of the planner, never of its input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanFault {
    /// A node is on a device that does not support it.
    #[error("{node} is on {device}, which does not support its operation")]
    Unsupported {
        /// The node.
        node: NodeId,
        /// The device.
        device: DeviceId,
    },
    /// A pinned tensor is elsewhere.
    #[error("{tensor} is pinned to {pinned}, but on {device}")]
    PinMoved {
        /// The tensor.
        tensor: TensorId,
        /// Where the caller wants it.
        pinned: DeviceId,
        /// Where it is.
        device: DeviceId,
    },
    /// A tensor in a buffer is on a device that cannot use the buffer.
    #[error("{tensor} is in {buffer}, which {device} cannot use in place")]
    NotUsable {
        /// The tensor.
        tensor: TensorId,
        /// Its buffer.
        buffer: BufferId,
        /// Its device.
        device: DeviceId,
    },
    /// Splits leave a gap, overlap, or miss nodes at an end.
    #[error("{split} begins or ends where it should not, at {node}")]
    Ranges {
        /// The split.
        split: SplitId,
        /// Where it begins or ends.
        node: NodeId,
    },
    /// A node that computes is in a split of another device.
    #[error("{node} is on {device}, but in {split}")]
    WrongSplit {
        /// The node.
        node: NodeId,
        /// Its device.
        device: DeviceId,
        /// The split.
        split: SplitId,
    },
    /// A node reads a tensor where its device cannot.
    #[error("{node} reads {tensor} in place, but its device cannot")]
    Unreadable {
        /// The node.
        node: NodeId,
        /// The tensor.
        tensor: TensorId,
    },
    /// A node reads a copy of another tensor, for another device, or one that is made later.
    #[error("{node} reads {copy}, which is not its operand, not on its device, or not yet made")]
    WrongCopy {
        /// The node.
        node: NodeId,
        /// The copy.
        copy: CopyId,
    },
    /// A copy is made before its original is computed.
    #[error("{copy} of {tensor} is made before the original is computed")]
    EarlyCopy {
        /// The copy.
        copy: CopyId,
        /// The original.
        tensor: TensorId,
    },
    /// Two copies of a tensor for one device.
    #[error("{copy} is a second copy of {tensor} for {device}")]
    SecondCopy {
        /// The later copy.
        copy: CopyId,
        /// The original.
        tensor: TensorId,
        /// The device.
        device: DeviceId,
    },
    /// The allocator's list lacks something, has it twice, in another order, or with another id.
    #[error("the allocator's {list} are wrong at position {position}")]
    List {
        /// Which list.
        list: &'static str,
        /// The first position that differs.
        position: usize,
    },
    /// An item of the allocator's list reads something else than the plan says.
    #[error("the item of {node} reads something else than the plan says")]
    Sources {
        /// The node.
        node: NodeId,
    },
}

/// Verifies devices and splits. O(nodes + sources), times the devices.
pub fn check_splits(
    graph: &Graph,
    machine: &Machine,
    residency: &Residency,
    assignment: &Assignment,
    splits: &SplitPlan,
) -> Result<(), PlanFault> {
    let checker = Checker { graph, machine, residency, assignment, splits };
    checker.devices()?;
    checker.ranges()?;
    checker.copies()?;
    checker.operands()
}

/// Verifies the list that the allocator sees, without keep-until wishes. O(nodes + sources + copies).
pub fn check_lowered(
    graph: &Graph,
    assignment: &Assignment,
    splits: &SplitPlan,
    lowered: &Lowered<'_>,
) -> Result<(), PlanFault> {
    check_nodes(graph, assignment, splits, lowered)?;
    check_leafs(graph, assignment, splits, lowered)?;
    check_sources(graph, splits, lowered)
}

struct Checker<'a> {
    graph: &'a Graph,
    machine: &'a Machine,
    residency: &'a Residency,
    assignment: &'a Assignment,
    splits: &'a SplitPlan,
}

impl Checker<'_> {
    fn storage(&self, tensor: TensorId) -> Option<BufferId> {
        let root = self.graph.tensor(tensor).view.map_or(tensor, |v| v.root);
        self.residency.buffer_of[root]
    }

    fn usable(&self, buffer_type: BufferTypeId, device: DeviceId) -> bool {
        self.machine.parts().buffer_types[buffer_type].usable_by.iter().any(|d| d == device)
    }

    fn can_read(&self, device: DeviceId, tensor: TensorId) -> bool {
        let owner = self.assignment.device(tensor);
        match self.storage(tensor) {
            Some(buffer) => owner == device || self.usable(self.residency.buffers[buffer].buffer_type, device),
            None => self.usable(self.machine.parts().devices[owner].buffer_type, device),
        }
    }

    fn devices(&self) -> Result<(), PlanFault> {
        for (&tensor, &pinned) in &self.residency.pinned {
            let device = self.assignment.device(tensor);
            if device != pinned {
                return Err(PlanFault::PinMoved { tensor, pinned, device });
            }
        }
        let listed = self.graph.nodes().values().chain(self.graph.leafs().values()).copied();
        for tensor in listed.filter(|t| !self.residency.pinned.contains_key(t)) {
            let device = self.assignment.device(tensor);
            let Some(buffer) = self.storage(tensor) else { continue };
            if !self.usable(self.residency.buffers[buffer].buffer_type, device) {
                return Err(PlanFault::NotUsable { tensor, buffer, device });
            }
        }
        for (node, &tensor) in self.graph.nodes().iter() {
            let (device, op) = (self.assignment.device(tensor), self.graph.tensor(tensor).op);
            let free = op.is_view() || self.residency.pinned.contains_key(&tensor);
            if !free && !self.machine.parts().devices[device].ops.contains(op) {
                return Err(PlanFault::Unsupported { node, device });
            }
        }
        Ok(())
    }

    fn ranges(&self) -> Result<(), PlanFault> {
        let mut next = NodeId::new(0);
        for (split, range) in self.splits.splits().iter() {
            if range.start != next || range.end <= range.start || range.end.index() > self.graph.nodes().len() {
                return Err(PlanFault::Ranges { split, node: range.start });
            }
            next = range.end;
            for node in range.nodes() {
                let tensor = self.graph.nodes()[node];
                let device = self.assignment.device(tensor);
                if !self.graph.tensor(tensor).op.is_view() && device != range.device {
                    return Err(PlanFault::WrongSplit { node, device, split });
                }
            }
        }
        if next.index() == self.graph.nodes().len() {
            return Ok(());
        }
        Err(PlanFault::Ranges { split: SplitId::new(self.splits.splits().len()), node: next })
    }

    /// By node: the last node that writes the bytes it stands for. A view operation writes none: what it shows is there
    /// with its sources, its root, and what was written through other views of the root before it.
    fn last_writers(&self) -> BTreeMap<TensorId, NodeId> {
        let mut written: BTreeMap<TensorId, NodeId> = BTreeMap::new();
        let mut through_views: BTreeMap<TensorId, NodeId> = BTreeMap::new();
        for (node, &id) in self.graph.nodes().iter() {
            let tensor = self.graph.tensor(id);
            let root = tensor.view.map(|v| v.root);
            if !tensor.op.is_view() {
                written.insert(id, node);
                if let Some(root) = root {
                    through_views.insert(root, node);
                }
                continue;
            }
            let shown = tensor.src.iter().flatten().chain(&root).filter_map(|t| written.get(t));
            let last = shown.chain(root.iter().filter_map(|root| through_views.get(root))).max().copied();
            if let Some(last) = last {
                written.insert(id, last);
            }
        }
        written
    }

    /// Every copy comes after its original, and there is one for each tensor and device.
    fn copies(&self) -> Result<(), PlanFault> {
        let written = self.last_writers();
        let mut seen = BTreeSet::new();
        for (id, split) in self.splits.splits().iter() {
            for copy in split.inputs() {
                let made = &self.splits.copies()[copy];
                let tensor = made.tensor;
                if made.split != id || made.to != split.device {
                    return Err(PlanFault::WrongCopy { node: split.start, copy });
                }
                if written.get(&tensor).is_some_and(|&node| node >= split.start) {
                    return Err(PlanFault::EarlyCopy { copy, tensor });
                }
                if !seen.insert((tensor, made.to)) {
                    return Err(PlanFault::SecondCopy { copy, tensor, device: made.to });
                }
            }
        }
        Ok(())
    }

    fn operands(&self) -> Result<(), PlanFault> {
        for (id, split) in self.splits.splits().iter() {
            for node in split.nodes() {
                let tensor = self.graph.nodes()[node];
                let sources = &self.graph.tensor(tensor).src;
                let operands: Vec<_> = self.splits.operands(self.graph, node).collect();
                for (source, operand) in sources.iter().zip(&operands) {
                    self.operand(id, node, *source, *operand)?;
                }
            }
        }
        Ok(())
    }

    fn operand(
        &self,
        split: SplitId,
        node: NodeId,
        source: Option<TensorId>,
        operand: Option<Operand>,
    ) -> Result<(), PlanFault> {
        let device = self.splits.splits()[split].device;
        match operand {
            Some(Operand::Copy(copy)) => {
                let made = &self.splits.copies()[copy];
                let fits = Some(made.tensor) == source && made.to == device && made.split <= split;
                if fits { Ok(()) } else { Err(PlanFault::WrongCopy { node, copy }) }
            }
            // A view computes nothing: whoever reads it gets a copy of the view.
            Some(Operand::Tensor(_)) if self.graph.tensor(self.graph.nodes()[node]).op.is_view() => Ok(()),
            Some(Operand::Tensor(tensor)) if !self.can_read(device, tensor) => {
                Err(PlanFault::Unreadable { node, tensor })
            }
            _ => Ok(()),
        }
    }
}

type Entry = (Origin, DeviceId);

/// The allocator's list is what it should be, entry by entry, and every entry has an id.
fn compare(
    list: &'static str,
    expected: &[Entry],
    lowered: &Lowered<'_>,
    items: &[ItemId],
    ids: &[ArenaId],
) -> Result<(), PlanFault> {
    let origins = items.iter().map(|&i| lowered.graph.item(i).origin);
    let found: Vec<Entry> = origins.zip(ids.iter().map(|a| DeviceId::new(a.index()))).collect();
    let lengths = [expected.len(), items.len(), ids.len()];
    let shortest = lengths.into_iter().min().filter(|n| lengths.iter().any(|l| l != n));
    let differs = expected.iter().zip(&found).position(|(e, f)| e != f);
    differs.or(shortest).map_or(Ok(()), |position| Err(PlanFault::List { list, position }))
}

fn check_nodes(
    graph: &Graph,
    assignment: &Assignment,
    splits: &SplitPlan,
    lowered: &Lowered<'_>,
) -> Result<(), PlanFault> {
    let mut expected = Vec::new();
    for split in splits.splits().values() {
        for copy in split.inputs() {
            let of = splits.copies()[copy].tensor;
            expected.push((Origin::Keep(of), assignment.device(of)));
            expected.push((Origin::Copy { of, device: split.device, copy: 0 }, split.device));
        }
        let tensors = split.nodes().map(|n| graph.nodes()[n]);
        expected.extend(tensors.map(|t| (Origin::Tensor(t), assignment.device(t))));
    }
    compare("nodes", &expected, lowered, lowered.graph.nodes(), &lowered.node_buffer_ids)
}

fn check_leafs(
    graph: &Graph,
    assignment: &Assignment,
    splits: &SplitPlan,
    lowered: &Lowered<'_>,
) -> Result<(), PlanFault> {
    let turns = lowered.n_copies();
    let mut expected = Vec::new();
    if turns > 1 {
        for &of in graph.leafs().values().filter(|&&t| graph.tensor(t).flags.is_input()) {
            let device = assignment.device(of);
            expected.push((Origin::Tensor(of), device));
            expected.extend((1..turns).map(|copy| (Origin::Copy { of, device, copy }, device)));
        }
        for split in splits.splits().values() {
            for of in split.inputs().map(|c| splits.copies()[c].tensor) {
                let device = split.device;
                expected.extend((0..turns).map(|copy| (Origin::Copy { of, device, copy }, device)));
            }
        }
    }
    expected.extend(graph.leafs().values().map(|&t| (Origin::Tensor(t), assignment.device(t))));
    compare("leafs", &expected, lowered, lowered.graph.leafs(), &lowered.leaf_buffer_ids)
}

fn check_sources(graph: &Graph, splits: &SplitPlan, lowered: &Lowered<'_>) -> Result<(), PlanFault> {
    for (node, &tensor) in graph.nodes().iter() {
        let origin = |operand| match operand {
            Operand::Tensor(t) => Origin::Tensor(t),
            Operand::Copy(c) => {
                let copy = &splits.copies()[c];
                Origin::Copy { of: copy.tensor, device: copy.to, copy: 0 }
            }
        };
        let expected = splits.operands(graph, node).map(|o| o.map(origin));
        let sources = lowered.graph.sources(ItemId::of(tensor)).iter();
        if !sources.map(|s| s.map(|i| lowered.graph.item(i).origin)).eq(expected) {
            return Err(PlanFault::Sources { node });
        }
    }
    Ok(())
}

//! Where the bytes of an item are, run by run.

use super::error::ExecError;
use crate::lower::Lowered;
use loadmaster_alloc::pack::ChunkId;
use loadmaster_alloc::{AllocPlan, ArenaId, Arenas, ItemId, Origin};
use loadmaster_graph::{Bytes, CopyId, IdVec, TensorId, define_id};
use std::collections::BTreeMap;

define_id! {
    /// Bytes that can be told apart from others: a chunk of an arena, a resident buffer, a staging or output buffer.
    pub MemoryId, "mem";
}

/// What a memory is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Memory {
    /// A chunk of an arena, under the first arena with its buffer type.
    Chunk(ArenaId, ChunkId),
    /// A buffer that exists before the plan, by the caller's number.
    Resident(u32),
    /// Slots through which copies from one device to another pass, by number of the pair.
    Staging(u32),
    /// Host slots for fetched outputs.
    Outputs,
}

/// A range of bytes of a memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The memory.
    pub memory: MemoryId,
    /// The first byte.
    pub offset: Bytes,
    /// How many.
    pub len: Bytes,
}

/// Where a tensor with memory of its own is: number of the resident buffer and first byte there.
pub type ResidentPlace = (u32, Bytes);

/// The memories of a plan, numbered as they are met.
#[derive(Clone, Debug, Default)]
pub struct Memories {
    kinds: IdVec<MemoryId, Memory>,
    ids: BTreeMap<Memory, MemoryId>,
}

impl Memories {
    /// The number of a memory.
    pub fn id(&mut self, memory: Memory) -> MemoryId {
        *self.ids.entry(memory).or_insert_with(|| self.kinds.push(memory))
    }
    /// All memories.
    #[must_use]
    pub fn kinds(&self) -> &IdVec<MemoryId, Memory> {
        &self.kinds
    }
}

/// Finds the bytes of items.
pub(super) struct Places<'a, 'g> {
    lowered: &'a Lowered<'g>,
    plan: &'a AllocPlan,
    arenas: &'a Arenas,
    resident: &'a dyn Fn(TensorId) -> Option<ResidentPlace>,
    memories: Memories,
}

impl<'a, 'g> Places<'a, 'g> {
    pub(super) fn new(
        lowered: &'a Lowered<'g>,
        plan: &'a AllocPlan,
        arenas: &'a Arenas,
        resident: &'a dyn Fn(TensorId) -> Option<ResidentPlace>,
    ) -> Self {
        Self { lowered, plan, arenas, resident, memories: Memories::default() }
    }

    pub(super) fn memories(&mut self) -> &mut Memories {
        &mut self.memories
    }

    /// Takes over the numbers that a schedule gave.
    pub(super) fn adopt(&mut self, kinds: &IdVec<MemoryId, Memory>) {
        kinds.values().for_each(|&kind| {
            self.memories.id(kind);
        });
    }

    pub(super) fn into_memories(self) -> Memories {
        self.memories
    }

    /// The copy of a split input.
    pub(super) fn of_copy(&mut self, copy: CopyId, turn: u32) -> Result<Place, ExecError> {
        let item = self.lowered.copy_item(copy, turn);
        self.placed(item, item)
    }

    /// A tensor of the graph in its own place.
    pub(super) fn of_tensor(&mut self, tensor: TensorId, turn: u32) -> Result<Place, ExecError> {
        let graph = self.lowered.graph.graph();
        let view = graph.tensor(tensor).view;
        let root = view.map_or(tensor, |v| v.root);
        let record = self.lowered.graph.item(ItemId::of(tensor));
        if record.has_memory || self.lowered.graph.item(ItemId::of(root)).has_memory {
            return self.of_resident(tensor, root);
        }
        let item = self.lowered.leaf_item(root, turn);
        self.placed(item, ItemId::of(tensor))
    }

    fn of_resident(&mut self, tensor: TensorId, root: TensorId) -> Result<Place, ExecError> {
        let graph = self.lowered.graph.graph();
        let record = graph.tensor(tensor);
        let own = (self.resident)(tensor);
        let of_root = || {
            let (buffer, base) = (self.resident)(root)?;
            Some((buffer, base.checked_add(record.view.map_or(Bytes::ZERO, |v| v.offset))?))
        };
        let (buffer, offset) = own.or_else(of_root).ok_or_else(|| ExecError::not_placed(graph, tensor))?;
        let memory = self.memories.id(Memory::Resident(buffer));
        Ok(Place { memory, offset, len: record.nbytes() })
    }

    /// The bytes that `seen` has in the memory of its owner.
    fn placed(&mut self, owner: ItemId, seen: ItemId) -> Result<Place, ExecError> {
        let graph = &self.lowered.graph;
        let tensor = graph.item(seen).origin.tensor();
        let missing = || ExecError::not_placed(graph.graph(), tensor);
        let placement = self.plan.placement(owner).ok_or_else(missing)?;
        let record = graph.graph().tensor(tensor);
        let is_view = !matches!(graph.item(seen).origin, Origin::Copy { .. });
        let shift = record.view.filter(|_| is_view).map_or(Bytes::ZERO, |v| v.offset);
        let offset = placement.offset.checked_add(shift).ok_or_else(missing)?;
        let memory = self.memories.id(Memory::Chunk(self.arenas.home(placement.arena), placement.chunk));
        Ok(Place { memory, offset, len: record.nbytes() })
    }
}

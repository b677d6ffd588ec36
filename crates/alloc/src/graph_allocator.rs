//! The graph allocator: plans graphs, keeps the plans, and holds the memory that all of them need.

use crate::arenas::{Arenas, BufferIds};
use crate::buffer_type::{Buffer, BufferType};
use crate::error::AllocError;
use crate::lowered::{AllocGraph, ArenaId};
use crate::memory::Memory;
use crate::mismatch::{Mismatch, mismatch};
use crate::pack::ChunkId;
use crate::place::{Placer, plan};
use crate::plan::AllocPlan;
use crate::reservations::Reservations;
use loadmaster_graph::{Bytes, IdVec};
use std::sync::Arc;

/// Plans graphs over one or several buffer types and holds the memory.
///
/// Several plans share the memory, which is the largest that any of them needs, chunk by chunk. Of more than 64 plans the
/// one that was not used for longest is forgotten. Every call that fails leaves plans and memory as they were.
#[derive(Debug)]
pub struct GraphAllocator {
    arenas: Arenas,
    placer: Placer,
    memory: Arc<Memory>,
    reservations: Reservations,
}

/// A graph's plan and the memory that it is valid in.
#[derive(Clone, Debug)]
pub struct Allocation {
    plan: Arc<AllocPlan>,
    memory: Arc<Memory>,
}

impl Allocation {
    /// Where everything goes.
    #[must_use]
    pub fn plan(&self) -> &Arc<AllocPlan> {
        &self.plan
    }

    /// The buffer behind a chunk of an arena. `None` if the arena has no such chunk, or one of no bytes.
    #[must_use]
    pub fn buffer(&self, arena: ArenaId, chunk: ChunkId) -> Option<&Arc<dyn Buffer>> {
        self.memory.buffer(arena, chunk)
    }
}

impl GraphAllocator {
    /// One buffer type: every tensor goes to it, and a graph that fits no plan is planned when it comes.
    #[must_use]
    pub fn new(buffer_type: Arc<dyn BufferType>) -> Self {
        Self::new_n(vec![buffer_type])
    }

    /// Several buffer types; node and leaf buffer ids index this list.
    #[must_use]
    pub fn new_n(buffer_types: Vec<Arc<dyn BufferType>>) -> Self {
        let arenas = Arenas::new(buffer_types);
        let memory = Arc::new(Memory::empty(&arenas));
        Self { arenas, placer: Placer::default(), memory, reservations: Reservations::default() }
    }

    /// The same with another placer. Plans that were made stay.
    #[must_use]
    pub fn with_placer(mut self, placer: Placer) -> Self {
        self.placer = placer;
        self
    }

    /// The buffer types.
    #[must_use]
    pub fn arenas(&self) -> &Arenas {
        &self.arenas
    }

    /// Plans a graph with everything in the first arena, and grows what is too small.
    ///
    /// Errors: as [`Self::reserve_n`].
    pub fn reserve(&mut self, graph: &AllocGraph<'_>) -> Result<Arc<AllocPlan>, AllocError> {
        self.reserve_ids(graph, BufferIds::Same(ArenaId::new(0)))
    }

    /// Plans a graph and grows the buffers that are too small. New buffers are taken before old ones are given back, so
    /// that a failure leaves the previous reservation usable; growing needs room for both meanwhile.
    ///
    /// Errors: [`AllocError::IdCount`], [`AllocError::IdOutOfRange`], [`AllocError::Dynamic`], [`AllocError::Packing`],
    /// [`AllocError::Overflow`], [`AllocError::NeverFits`], [`AllocError::OverCapacity`],
    /// [`AllocError::DriverOutOfMemory`].
    pub fn reserve_n(
        &mut self,
        graph: &AllocGraph<'_>,
        node_buffer_ids: &[ArenaId],
        leaf_buffer_ids: &[ArenaId],
    ) -> Result<Arc<AllocPlan>, AllocError> {
        self.reserve_ids(graph, BufferIds::Each { nodes: node_buffer_ids, leafs: leaf_buffer_ids })
    }

    fn reserve_ids(&mut self, graph: &AllocGraph<'_>, ids: BufferIds<'_>) -> Result<Arc<AllocPlan>, AllocError> {
        let plan = Arc::new(plan(graph, &self.arenas, ids, &self.placer)?);
        if let Some(grown) = self.memory.grown(graph, ids, &plan, &self.arenas)? {
            self.memory = Arc::new(grown);
        }
        self.reservations.insert(graph, Arc::clone(&plan));
        Ok(plan)
    }

    /// Bytes that [`Self::reserve_n`] would need of every arena. Changes nothing.
    ///
    /// Errors: those of [`Self::reserve_n`] that planning can have.
    pub fn reserve_n_size(
        &self,
        graph: &AllocGraph<'_>,
        node_buffer_ids: &[ArenaId],
        leaf_buffer_ids: &[ArenaId],
    ) -> Result<IdVec<ArenaId, Bytes>, AllocError> {
        let ids = BufferIds::Each { nodes: node_buffer_ids, leafs: leaf_buffer_ids };
        Ok(plan(graph, &self.arenas, ids, &self.placer)?.buffer_sizes())
    }

    /// The plan and memory for a graph. A graph with the structural key of a plan is a look-up, O(1); one that has the
    /// structure of a plan and sizes that are no larger is compared once, O(items).
    /// Otherwise a single arena is planned again and grown, and with several the graph must be reserved.
    ///
    /// Errors: [`AllocError::NeedsReserve`] with several buffer types; with one, as [`Self::reserve`].
    pub fn alloc_graph(&mut self, graph: &AllocGraph<'_>) -> Result<Allocation, AllocError> {
        let plan = match self.known_plan(graph) {
            Ok(plan) => plan,
            Err(_) if self.arenas.len() == 1 => self.reserve(graph)?,
            Err(why) => return Err(AllocError::NeedsReserve { why }),
        };
        Ok(Allocation { plan, memory: Arc::clone(&self.memory) })
    }

    fn known_plan(&mut self, graph: &AllocGraph<'_>) -> Result<Arc<AllocPlan>, Mismatch> {
        let key = graph.key();
        if let Some(plan) = self.reservations.get(key) {
            return Ok(plan);
        }
        let arenas = &self.arenas;
        self.reservations.find_fitting(key, |structure, plan| mismatch(structure, plan, graph, arenas))
    }

    /// Bytes of every chunk that is held, by arena.
    #[must_use]
    pub fn chunk_sizes(&self) -> IdVec<ArenaId, Vec<Bytes>> {
        self.memory.chunk_sizes()
    }

    /// Takes memory before any graph is planned, so that plans which need no more than these chunks take none:
    /// [`Self::chunk_sizes`] of an allocator that planned the same graphs over memory without bytes.
    ///
    /// Errors: [`AllocError::DriverOutOfMemory`]; nothing has changed then.
    pub fn hold(&mut self, chunks: &IdVec<ArenaId, Vec<Bytes>>) -> Result<(), AllocError> {
        if let Some(grown) = self.memory.held(chunks, &self.arenas)? {
            self.memory = Arc::new(grown);
        }
        Ok(())
    }

    /// Bytes that are held for an arena: zero for an id that shares its buffer type with an earlier one.
    #[must_use]
    pub fn buffer_size(&self, arena: ArenaId) -> Bytes {
        self.memory.size(arena)
    }
}

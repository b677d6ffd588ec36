//! The memory behind the arenas of a graph allocator.

use crate::arenas::{Arenas, BufferIds};
use crate::buffer_type::{Buffer, Refused};
use crate::error::{AllocError, Holder};
use crate::lowered::{AllocGraph, ArenaId};
use crate::pack::ChunkId;
use crate::plan::AllocPlan;
use crate::report::report;
use loadmaster_graph::{Bytes, IdVec};
use std::sync::Arc;

/// Buffers by arena and chunk. A chunk of no bytes has none.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    homes: IdVec<ArenaId, ArenaId>,
    chunks: IdVec<ArenaId, Vec<Option<Arc<dyn Buffer>>>>,
}

/// A chunk that must become larger.
struct Growth {
    arena: ArenaId,
    chunk: ChunkId,
    size: Bytes,
}

/// Largest tensors named by an error.
const NAMED_HOLDERS: usize = 5;

impl Memory {
    pub(crate) fn empty(arenas: &Arenas) -> Self {
        let homes = arenas.ids().map(|id| arenas.home(id)).collect();
        Self { homes, chunks: IdVec::filled(Vec::new(), arenas.len()) }
    }

    pub(crate) fn buffer(&self, arena: ArenaId, chunk: ChunkId) -> Option<&Arc<dyn Buffer>> {
        let home = *self.homes.get(arena)?;
        self.chunks[home].get(chunk.index())?.as_ref()
    }

    pub(crate) fn size(&self, arena: ArenaId) -> Bytes {
        self.chunks.get(arena).into_iter().flatten().flatten().map(|b| b.size()).sum()
    }

    /// The memory that a plan needs besides this; `None` if it fits as it is. Takes new buffers and gives nothing back;
    /// what was taken before a failure is dropped.
    pub(crate) fn grown(
        &self,
        graph: &AllocGraph<'_>,
        ids: BufferIds<'_>,
        plan: &AllocPlan,
        arenas: &Arenas,
    ) -> Result<Option<Self>, AllocError> {
        let growths = self.growths(&plan.chunks);
        if growths.is_empty() {
            return Ok(None);
        }
        check_capacity(&growths, graph, ids, plan, arenas)?;
        self.with(&growths, arenas, |growth, refused| refusal(growth, refused, graph, plan, arenas)).map(Some)
    }

    /// Bytes of every chunk.
    pub(crate) fn chunk_sizes(&self) -> IdVec<ArenaId, Vec<Bytes>> {
        let sizes = |chunks: &Vec<Option<Arc<dyn Buffer>>>| {
            chunks.iter().map(|chunk| chunk.as_ref().map_or(Bytes::ZERO, |b| b.size())).collect()
        };
        self.chunks.values().map(sizes).collect()
    }

    /// This memory with chunks of at least these sizes; `None` if they are. Takes new buffers and gives nothing back.
    pub(crate) fn held(
        &self,
        chunks: &IdVec<ArenaId, Vec<Bytes>>,
        arenas: &Arenas,
    ) -> Result<Option<Self>, AllocError> {
        let refusal = |growth: &Growth, refused| {
            let &Growth { arena, chunk, .. } = growth;
            AllocError::DriverOutOfMemory { arena, chunk, refused }
        };
        let growths = self.growths(chunks);
        if growths.is_empty() { Ok(None) } else { self.with(&growths, arenas, refusal).map(Some) }
    }

    fn with(
        &self,
        growths: &[Growth],
        arenas: &Arenas,
        refusal: impl Fn(&Growth, Refused) -> AllocError,
    ) -> Result<Self, AllocError> {
        let mut grown = self.clone();
        for growth in growths {
            let taken = arenas.buffer_type(growth.arena).alloc_buffer(growth.size);
            let buffer = taken.map_err(|refused| refusal(growth, refused))?;
            let chunks = &mut grown.chunks[growth.arena];
            if chunks.len() <= growth.chunk.index() {
                chunks.resize(growth.chunk.index() + 1, None);
            }
            chunks[growth.chunk.index()] = Some(buffer);
        }
        Ok(grown)
    }

    fn growths(&self, chunks: &IdVec<ArenaId, Vec<Bytes>>) -> Vec<Growth> {
        let mut growths = Vec::new();
        for (arena, needed) in chunks.iter() {
            for (i, &size) in needed.iter().enumerate() {
                let have = self.chunks[arena].get(i).and_then(Option::as_ref).map_or(Bytes::ZERO, |b| b.size());
                if size > have {
                    growths.push(Growth { arena, chunk: ChunkId::new(i), size });
                }
            }
        }
        growths
    }
}

fn check_capacity(
    growths: &[Growth],
    graph: &AllocGraph<'_>,
    ids: BufferIds<'_>,
    plan: &AllocPlan,
    arenas: &Arenas,
) -> Result<(), AllocError> {
    for arena in arenas.home_ids() {
        let needed: Bytes = growths.iter().filter(|g| g.arena == arena).map(|g| g.size).sum();
        let Some(available) = arenas.buffer_type(arena).available() else { continue };
        if needed > available {
            let buffer_type = arenas.buffer_type(arena).name().to_owned();
            let report = report(graph, arenas, ids, plan)?;
            let alive = report.arena(arena).map_or(&[][..], |a| &a.alive_at_peak);
            let holders = alive.iter().take(NAMED_HOLDERS).cloned().collect();
            return Err(AllocError::OverCapacity { arena, buffer_type, needed, available, holders });
        }
    }
    Ok(())
}

/// Whether the driver refused because no buffer can be so large, or because it had no room.
fn refusal(growth: &Growth, refused: Refused, graph: &AllocGraph<'_>, plan: &AllocPlan, arenas: &Arenas) -> AllocError {
    let buffer_type = arenas.buffer_type(growth.arena);
    let too_large = buffer_type.max_size().and_then(|largest| {
        let in_chunk = |p: &crate::plan::Placement| arenas.home(p.arena) == growth.arena && p.chunk == growth.chunk;
        let (id, p) = plan.placed().filter(|(_, p)| in_chunk(p)).find(|(_, p)| p.size > largest)?;
        Some(AllocError::NeverFits {
            tensor: Holder::of(graph, id, p.size),
            buffer_type: buffer_type.name().to_owned(),
            needed: p.size,
            largest,
        })
    });
    too_large.unwrap_or(AllocError::DriverOutOfMemory { arena: growth.arena, chunk: growth.chunk, refused })
}

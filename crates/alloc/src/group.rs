//! Groups of tensors (weights, a KV cache) in as few buffers as the buffer type allows (rule 6).

use crate::buffer_type::{Buffer, BufferType};
use crate::error::{AllocError, Holder};
use crate::linear::{TensorAllocator, padded_size};
use loadmaster_graph::{Bytes, IdVec, Tensor, TensorId, define_id};
use std::sync::Arc;

define_id! {
    /// A buffer of a group.
    pub GroupBufferId, "buffer";
}

/// Where a tensor of a group lies.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GroupPlace {
    /// The buffer.
    pub buffer: GroupBufferId,
    /// Offset in the buffer.
    pub offset: Bytes,
}

/// Buffers of a group, and the place of each of its tensors.
#[derive(Clone, Debug)]
pub struct TensorGroup {
    buffers: IdVec<GroupBufferId, Arc<dyn Buffer>>,
    places: IdVec<TensorId, Option<GroupPlace>>,
}

impl TensorGroup {
    /// The buffers, in the order in which the tensors fill them.
    #[must_use]
    pub fn buffers(&self) -> &IdVec<GroupBufferId, Arc<dyn Buffer>> {
        &self.buffers
    }

    /// Where a tensor lies: `None` for what had memory before, and for views of it.
    #[must_use]
    pub fn place(&self, id: TensorId) -> Option<GroupPlace> {
        self.places.get(id).copied().flatten()
    }
}

/// Bytes of each buffer that [`alloc_tensors`] would take. Changes nothing; O(tensors).
///
/// Errors: [`AllocError::NeverFits`], [`AllocError::Overflow`].
pub fn alloc_tensors_size(
    tensors: &IdVec<TensorId, Tensor>,
    has_memory: impl Fn(TensorId) -> bool,
    buffer_type: &Arc<dyn BufferType>,
) -> Result<IdVec<GroupBufferId, Bytes>, AllocError> {
    Ok(runs(tensors, has_memory, buffer_type.as_ref())?.into_iter().map(|run| run.size).collect())
}

/// Takes memory for the tensors that have none, in order, and gives every view its place in its root. A group with
/// nothing to allocate gets no buffer. O(tensors).
///
/// Errors: those of [`alloc_tensors_size`], and [`AllocError::GroupOutOfMemory`], after which nothing is left taken.
pub fn alloc_tensors(
    tensors: &IdVec<TensorId, Tensor>,
    has_memory: impl Fn(TensorId) -> bool,
    buffer_type: &Arc<dyn BufferType>,
) -> Result<TensorGroup, AllocError> {
    let mut group = TensorGroup { buffers: IdVec::new(), places: IdVec::filled(None, tensors.len()) };
    for run in runs(tensors, has_memory, buffer_type.as_ref())? {
        let buffer = buffer_type.alloc_buffer(run.size).map_err(|refused| AllocError::GroupOutOfMemory {
            buffer: GroupBufferId::new(group.buffers.len()),
            refused,
        })?;
        let mut allocator = TensorAllocator::new(Arc::clone(&buffer), Arc::clone(buffer_type));
        let id = group.buffers.push(buffer);
        for &tensor in &run.tensors {
            let offset = allocator.alloc(tensor, &tensors[tensor])?;
            group.places[tensor] = Some(GroupPlace { buffer: id, offset });
        }
    }
    place_views(tensors, &mut group.places);
    Ok(group)
}

/// Consecutive tensors that share a buffer.
struct Run {
    size: Bytes,
    tensors: Vec<TensorId>,
}

fn runs(
    tensors: &IdVec<TensorId, Tensor>,
    has_memory: impl Fn(TensorId) -> bool,
    buffer_type: &dyn BufferType,
) -> Result<Vec<Run>, AllocError> {
    let limit = buffer_type.max_size().unwrap_or(Bytes::MAX);
    let mut runs = Vec::new();
    let mut run = Run { size: Bytes::ZERO, tensors: Vec::new() };
    for (id, tensor) in tensors.iter().filter(|(id, t)| !t.is_view() && !has_memory(*id)) {
        let needed = padded_size(buffer_type, id, tensor)?;
        if needed > limit {
            return Err(AllocError::NeverFits {
                tensor: Holder::of_tensor(id, tensor, needed),
                buffer_type: buffer_type.name().to_owned(),
                needed,
                largest: limit,
            });
        }
        match run.size.checked_add(needed).filter(|&sum| sum <= limit) {
            Some(sum) => run.size = sum,
            None => {
                runs.push(std::mem::replace(&mut run, Run { size: needed, tensors: Vec::new() }));
            }
        }
        run.tensors.push(id);
    }
    if run.size > Bytes::ZERO {
        runs.push(run);
    }
    Ok(runs)
}

/// Roots stand before their views and are no views themselves.
fn place_views(tensors: &IdVec<TensorId, Tensor>, places: &mut IdVec<TensorId, Option<GroupPlace>>) {
    for (id, tensor) in tensors.iter() {
        let Some(view) = tensor.view else { continue };
        let root = places.get(view.root).copied().flatten();
        places[id] = root.and_then(|p| Some(GroupPlace { offset: p.offset.checked_add(view.offset)?, ..p }));
    }
}

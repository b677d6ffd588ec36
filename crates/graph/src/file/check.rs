//! What must hold between the parts of a [`GraphFile`], whether it was read or is to be written.

use super::{Expected, FileError, GraphFile};
use crate::id::{DeviceId, TensorId};
use crate::units::Bytes;

impl GraphFile {
    /// Checks that the parts fit together: lengths, references, sizes. The reader and the writer do so by themselves.
    ///
    /// Errors: the first mismatch, with its place. O(tensors + lists).
    pub fn check(&self) -> Result<(), FileError> {
        let tensors = self.graph.tensors().len();
        if self.devices.is_empty() {
            return Err(value("devices", "there must be at least one device"));
        }
        if self.n_copies == 0 {
            return Err(value("n_copies", "there is at least one copy"));
        }
        length("buffers of tensors", self.buffer_of.len(), tensors)?;
        length("external marks of tensors", self.external.len(), tensors)?;
        self.check_references()?;
        self.alloc_sizes.iter().try_for_each(|(&id, sizes)| self.check_alloc_sizes(id, sizes.as_slice()))?;
        self.expected.as_ref().map_or(Ok(()), |e| self.check_expected(e))
    }

    fn check_references(&self) -> Result<(), FileError> {
        for (&tensor, &device) in &self.pinned {
            self.check_tensor("pinned", tensor)?;
            self.check_device("pinned", device)?;
        }
        for (id, buffer) in self.buffers.iter() {
            let place = format!("buffer {} key `usable_by`", id.index());
            buffer.usable_by.iter().try_for_each(|&d| self.check_device(&place, d))?;
        }
        for (id, buffer) in self.buffer_of.iter() {
            if let Some(b) = buffer.filter(|b| b.index() >= self.buffers.len()) {
                let place = format!("tensor {} key `buffer`", id.index());
                return Err(FileError::Reference { place, index: b.index() as u64, count: self.buffers.len() });
            }
        }
        Ok(())
    }

    fn check_alloc_sizes(&self, id: TensorId, sizes: &[Bytes]) -> Result<(), FileError> {
        self.check_tensor("alloc_sizes", id)?;
        let place = || format!("tensor {} key `alloc_sizes`", id.index());
        if sizes.len() != self.devices.len() {
            return Err(FileError::Length { place: place(), found: sizes.len(), expected: self.devices.len() });
        }
        let nbytes = self.graph.tensor(id).nbytes();
        if sizes.iter().any(|&s| s < nbytes) {
            return Err(FileError::Value { place: place(), why: "no device takes less than the tensor's own size" });
        }
        Ok(())
    }

    fn check_expected(&self, expected: &Expected) -> Result<(), FileError> {
        let alloc = &expected.alloc_graph;
        length("expected.node_devices", expected.node_devices.len(), self.graph.nodes().len())?;
        length("expected.leaf_devices", expected.leaf_devices.len(), self.graph.leafs().len())?;
        length("expected.alloc_graph.node_buffer_ids", alloc.node_buffer_ids.len(), alloc.nodes.len())?;
        length("expected.alloc_graph.leaf_buffer_ids", alloc.leaf_buffer_ids.len(), alloc.leafs.len())?;
        if let Some(sizes) = &expected.buffer_sizes {
            length("expected.buffer_sizes", sizes.len(), self.devices.len())?;
        }
        if let Some(offsets) = &expected.node_offsets {
            length("expected.node_offsets", offsets.len(), alloc.nodes.len())?;
        }
        if let Some(offsets) = &expected.leaf_offsets {
            length("expected.leaf_offsets", offsets.len(), alloc.leafs.len())?;
        }
        self.check_splits(expected)
    }

    fn check_splits(&self, expected: &Expected) -> Result<(), FileError> {
        let count = self.graph.nodes().len();
        for (id, split) in expected.splits.iter() {
            let place = || format!("expected.splits[{}]", id.index());
            if split.end.index() > count {
                return Err(FileError::Reference { place: place(), index: split.end.index() as u64, count });
            }
            if split.start > split.end {
                return Err(FileError::Value { place: place(), why: "a split ends before it starts" });
            }
        }
        Ok(())
    }

    pub(super) fn check_nbytes(&self, id: TensorId, found: Bytes) -> Result<(), FileError> {
        let tensor = self.graph.tensor(id);
        let computed = tensor.nbytes();
        if found != computed {
            return Err(FileError::SizeMismatch { tensor: id, name: tensor.name.clone(), found, computed });
        }
        Ok(())
    }

    fn check_tensor(&self, place: &str, id: TensorId) -> Result<(), FileError> {
        let count = self.graph.tensors().len();
        if id.index() < count {
            return Ok(());
        }
        Err(FileError::Reference { place: place.to_owned(), index: id.index() as u64, count })
    }

    fn check_device(&self, place: &str, id: DeviceId) -> Result<(), FileError> {
        let count = self.devices.len();
        if id.index() < count {
            return Ok(());
        }
        Err(FileError::Reference { place: place.to_owned(), index: id.index() as u64, count })
    }
}

fn length(place: &str, found: usize, expected: usize) -> Result<(), FileError> {
    if found == expected {
        return Ok(());
    }
    Err(FileError::Length { place: place.to_owned(), found, expected })
}

fn value(place: &str, why: &'static str) -> FileError {
    FileError::Value { place: place.to_owned(), why }
}

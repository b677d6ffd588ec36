//! The key `expected`: what the reference chose.

use super::raw::{RawAlloc, RawEntry, RawExpected, RawPlace};
use super::read::{Reader, within};
use super::{AllocEntry, Expected, ExpectedAlloc, ExpectedPlace, ExpectedSplit, FileError};
use crate::id::NodeId;
use crate::units::Bytes;

impl Reader<'_> {
    pub(super) fn expected(&self, raw: RawExpected) -> Result<Expected, FileError> {
        self.list("expected.splits", raw.splits.len())?;
        let splits = raw.splits.into_iter().enumerate().map(|(i, s)| {
            let place = format!("expected.splits[{i}]");
            Ok(ExpectedSplit {
                device: self.device_id(&place, s.device)?,
                start: node_id(&place, s.start)?,
                end: node_id(&place, s.end)?,
                inputs: self.tensor_ids(&place, &s.inputs)?,
            })
        });
        Ok(Expected {
            node_devices: self.device_ids("expected.node_devices", &raw.node_devices)?,
            leaf_devices: self.device_ids("expected.leaf_devices", &raw.leaf_devices)?,
            splits: splits.collect::<Result<_, FileError>>()?,
            alloc_graph: self.alloc_graph(raw.alloc_graph)?,
            buffer_sizes: raw.buffer_sizes.map(|sizes| sizes.into_iter().map(Bytes).collect()),
            node_offsets: self.places("expected.node_offsets", raw.node_offsets)?,
            leaf_offsets: self.places("expected.leaf_offsets", raw.leaf_offsets)?,
        })
    }

    fn alloc_graph(&self, raw: RawAlloc) -> Result<ExpectedAlloc, FileError> {
        let changed_src = raw.changed_src.into_iter().map(|(tensor, sources)| {
            let place = format!("expected.alloc_graph.changed_src[{tensor}]");
            let user = self.tensor_id(&place, tensor)?;
            within(&place, sources.len(), self.limits.sources)?;
            let entries = sources.into_iter().map(|s| s.map(|s| self.entry(&place, s)).transpose());
            Ok((user, entries.collect::<Result<_, _>>()?))
        });
        Ok(ExpectedAlloc {
            nodes: self.entries("expected.alloc_graph.nodes", &raw.nodes)?,
            node_buffer_ids: self.device_ids("expected.alloc_graph.node_buffer_ids", &raw.node_buffer_ids)?,
            leafs: self.entries("expected.alloc_graph.leafs", &raw.leafs)?,
            leaf_buffer_ids: self.device_ids("expected.alloc_graph.leaf_buffer_ids", &raw.leaf_buffer_ids)?,
            changed_src: changed_src.collect::<Result<_, FileError>>()?,
        })
    }

    fn entries(&self, place: &str, raw: &[RawEntry]) -> Result<Vec<AllocEntry>, FileError> {
        self.list(place, raw.len())?;
        raw.iter().map(|&e| self.entry(place, e)).collect()
    }

    fn entry(&self, place: &str, raw: RawEntry) -> Result<AllocEntry, FileError> {
        Ok(match raw {
            RawEntry::Tensor(id) => AllocEntry::Tensor(self.tensor_id(place, id)?),
            RawEntry::Keep(id) => AllocEntry::Keep(self.tensor_id(place, id)?),
            RawEntry::Copy { of, device, copy } => {
                AllocEntry::CopyOf { of: self.tensor_id(place, of)?, device: self.device_id(place, device)?, copy }
            }
        })
    }

    fn places(
        &self,
        place: &str,
        raw: Option<Vec<Option<RawPlace>>>,
    ) -> Result<Option<Vec<Option<ExpectedPlace>>>, FileError> {
        let Some(raw) = raw else { return Ok(None) };
        let one = |(buffer, chunk, offset, size): RawPlace| {
            let buffer = self.device_id(place, buffer)?;
            Ok(ExpectedPlace { buffer, chunk, offset: Bytes(offset), size: Bytes(size) })
        };
        raw.into_iter().map(|p| p.map(one).transpose()).collect::<Result<_, _>>().map(Some)
    }
}

/// The past-the-end node may be any number here; `check` compares it with the count.
fn node_id(place: &str, raw: u32) -> Result<NodeId, FileError> {
    if raw == u32::MAX {
        return Err(FileError::Reference { place: place.to_owned(), index: u64::from(raw), count: u32::MAX as usize });
    }
    Ok(NodeId::new(raw as usize))
}

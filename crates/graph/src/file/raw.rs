//! The file as it stands in JSON, key by key. Nothing is checked here but the types of values.

use serde::de::{Deserializer, Error, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

#[derive(Deserialize)]
pub(super) struct RawHeader<'a> {
    #[serde(borrow)]
    pub format: Cow<'a, str>,
    pub version: u32,
}

#[derive(Deserialize)]
pub(super) struct RawFile<'a> {
    #[serde(borrow)]
    pub format: Cow<'a, str>,
    pub version: u32,
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow)]
    pub devices: Vec<RawDevice<'a>>,
    pub n_copies: u32,
    pub op_offload: bool,
    #[serde(borrow)]
    pub buffers: Vec<RawBuffer<'a>>,
    #[serde(default)]
    pub pinned: BTreeMap<u32, u32>,
    pub nodes: Vec<u32>,
    pub leafs: Vec<u32>,
    #[serde(borrow)]
    pub tensors: Vec<RawTensor<'a>>,
    pub expected: Option<RawExpected>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct RawDevice<'a> {
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    pub kind: Cow<'a, str>,
    #[serde(borrow)]
    pub buffer_type: RawBufferType<'a>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct RawBufferType<'a> {
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    pub alignment: u64,
    pub max_size: Option<u64>,
    pub host: bool,
}

#[derive(Deserialize, Serialize)]
pub(super) struct RawBuffer<'a> {
    pub id: u32,
    #[serde(borrow)]
    pub buffer_type: Cow<'a, str>,
    #[serde(borrow)]
    pub usage: Cow<'a, str>,
    pub host: bool,
    pub usable_by: Vec<u32>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct RawTensor<'a> {
    pub id: u32,
    #[serde(borrow)]
    pub name: Cow<'a, str>,
    #[serde(borrow, rename = "type")]
    pub dtype: Cow<'a, str>,
    #[serde(borrow)]
    pub op: Cow<'a, str>,
    pub ne: [u64; 4],
    pub nb: [u64; 4],
    #[serde(borrow, default, skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<Cow<'a, str>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub src: Vec<Option<u32>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view_src: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub view_offs: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub op_params: Vec<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub buffer: Option<u32>,
    #[serde(default, skip_serializing_if = "is_false")]
    pub external: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nbytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alloc_sizes: Option<Vec<u64>>,
}

// `skip_serializing_if` hands over a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(b: &bool) -> bool {
    !*b
}

#[derive(Deserialize)]
pub(super) struct RawExpected {
    pub node_devices: Vec<u32>,
    pub leaf_devices: Vec<u32>,
    pub splits: Vec<RawSplit>,
    pub alloc_graph: RawAlloc,
    pub buffer_sizes: Option<Vec<u64>>,
    pub leaf_offsets: Option<Vec<Option<RawPlace>>>,
    pub node_offsets: Option<Vec<Option<RawPlace>>>,
}

/// Buffer id, chunk, offset, size.
pub(super) type RawPlace = (u32, u32, u64, u64);

#[derive(Deserialize, Serialize)]
pub(super) struct RawSplit {
    pub device: u32,
    pub start: u32,
    pub end: u32,
    pub inputs: Vec<u32>,
}

#[derive(Deserialize, Serialize)]
pub(super) struct RawAlloc {
    pub nodes: Vec<RawEntry>,
    pub node_buffer_ids: Vec<u32>,
    pub leafs: Vec<RawEntry>,
    pub leaf_buffer_ids: Vec<u32>,
    pub changed_src: BTreeMap<u32, Vec<Option<RawEntry>>>,
}

/// A number, `{"copy_of","device","copy"}`, or `{"keep"}`.
#[derive(Clone, Copy)]
pub(super) enum RawEntry {
    Tensor(u32),
    Copy { of: u32, device: u32, copy: u32 },
    Keep(u32),
}

impl Serialize for RawEntry {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Tensor(id) => out.serialize_u32(id),
            Self::Copy { of, device, copy } => {
                let mut map = out.serialize_map(Some(3))?;
                map.serialize_entry("copy_of", &of)?;
                map.serialize_entry("device", &device)?;
                map.serialize_entry("copy", &copy)?;
                map.end()
            }
            Self::Keep(id) => {
                let mut map = out.serialize_map(Some(1))?;
                map.serialize_entry("keep", &id)?;
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for RawEntry {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(EntryVisitor)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum EntryKey {
    CopyOf,
    Device,
    Copy,
    Keep,
}

/// By hand: an untagged enum would buffer every entry of the longest lists of the file.
struct EntryVisitor;

impl<'de> Visitor<'de> for EntryVisitor {
    type Value = RawEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a tensor id, {\"copy_of\",\"device\",\"copy\"} or {\"keep\"}")
    }

    fn visit_u64<E: Error>(self, id: u64) -> Result<RawEntry, E> {
        u32::try_from(id).map(RawEntry::Tensor).map_err(|_| E::custom("a tensor id above 2^32"))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RawEntry, A::Error> {
        let (mut of, mut device, mut copy, mut keep) = (None, None, None, None);
        while let Some(key) = map.next_key()? {
            let slot = match key {
                EntryKey::CopyOf => &mut of,
                EntryKey::Device => &mut device,
                EntryKey::Copy => &mut copy,
                EntryKey::Keep => &mut keep,
            };
            *slot = Some(map.next_value::<u32>()?);
        }
        match (of, device, copy, keep) {
            (Some(of), Some(device), Some(copy), None) => Ok(RawEntry::Copy { of, device, copy }),
            (None, None, None, Some(id)) => Ok(RawEntry::Keep(id)),
            _ => Err(A::Error::custom("an entry needs either `copy_of`, `device` and `copy`, or `keep`")),
        }
    }
}

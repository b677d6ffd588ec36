//! The graph files of `goldens/FORMAT.md`, read and written without loadmaster's own reader: the harness must not
//! share code with what it checks.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// A graph file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphFile {
    pub format: String,
    pub version: u32,
    pub name: String,
    pub devices: Vec<Device>,
    pub n_copies: u32,
    pub op_offload: bool,
    pub buffers: Vec<Buffer>,
    pub pinned: BTreeMap<u32, u32>,
    pub nodes: Vec<u32>,
    pub leafs: Vec<u32>,
    pub tensors: Vec<Tensor>,
    /// Tensors that a device's back end wants kept until a node has run: pairs of tensors, by position of the node
    /// and then by tensor. Not part of FORMAT.md, whose devices wish nothing.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub keep_until: Vec<(u32, u32)>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub expected: Option<Answer>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Device {
    pub name: String,
    #[serde(rename = "type")]
    pub kind: DeviceKind,
    pub buffer_type: BufferType,
    /// Operations that it does not support. Not part of FORMAT.md, whose devices support every operation.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub unsupported: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeviceKind {
    Cpu,
    Gpu,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BufferType {
    pub name: String,
    pub alignment: u64,
    pub max_size: Option<u64>,
    pub host: bool,
}

/// A buffer that exists before the graph is planned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Buffer {
    pub id: u32,
    pub buffer_type: String,
    pub usage: Usage,
    pub host: bool,
    pub usable_by: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Usage {
    Any,
    Weights,
    Compute,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tensor {
    pub id: u32,
    pub name: String,
    #[serde(rename = "type")]
    pub dtype: String,
    pub op: String,
    pub ne: [u64; 4],
    pub nb: [u64; 4],
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub src: Vec<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub view_src: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub view_offs: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub op_params: Vec<i64>,
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub flags: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub buffer: Option<u32>,
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub external: bool,
    pub nbytes: u64,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub alloc_sizes: Option<Vec<u64>>,
}

/// What a planner answered: the keys of `expected`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub node_devices: Vec<i32>,
    pub leaf_devices: Vec<i32>,
    pub splits: Vec<Split>,
    pub alloc_graph: AllocGraph,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub buffer_sizes: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub leaf_offsets: Option<Vec<Offset>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub node_offsets: Option<Vec<Offset>>,
    /// For each device: buffer and offset of every tensor if all that have no memory were allocated as one group
    /// (rule 6). Not part of FORMAT.md.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub groups: Option<Vec<Group>>,
}

/// Bytes of each buffer, and each tensor's buffer and offset.
pub type Group = (Vec<u64>, Vec<Option<(u32, u64)>>);

/// Buffer id, chunk, offset, size; `None` for what the allocator does not place.
pub type Offset = Option<(u32, u32, u64, u64)>;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Split {
    pub device: i32,
    pub start: u32,
    pub end: u32,
    pub inputs: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AllocGraph {
    pub nodes: Vec<Entry>,
    pub node_buffer_ids: Vec<i32>,
    pub leafs: Vec<Entry>,
    pub leaf_buffer_ids: Vec<i32>,
    #[serde(default)]
    pub changed_src: BTreeMap<u32, Vec<Option<Entry>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Entry {
    Tensor(u32),
    Copy { copy_of: u32, device: u32, copy: u32 },
    Keep { keep: u32 },
}

impl GraphFile {
    /// Reads a file, plain or gzip.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        Ok(serde_json::from_str(&read_text(path)?)?)
    }

    /// The file as text.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a graph file has string keys only")
    }
}

/// The text of a file, plain or gzip.
pub fn read_text(path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path)?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(String::from_utf8(bytes)?);
    }
    let mut text = String::new();
    flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text)?;
    Ok(text)
}

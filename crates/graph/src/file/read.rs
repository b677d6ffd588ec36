//! From bytes to a [`GraphFile`].

use super::raw::{RawBuffer, RawDevice, RawFile, RawHeader, RawTensor};
use super::{
    BufferUsage, FORMAT, FileBuffer, FileBufferType, FileDevice, FileDeviceKind, FileError, GraphFile, VERSION,
};
use crate::dtype::DType;
use crate::graph::Graph;
use crate::id::{BufferId, DeviceId, Id, IdVec, LeafId, NodeId, TensorId};
use crate::limits::ReadLimits;
use crate::op::Op;
use crate::tensor::{Flags, Tensor, View};
use crate::units::{Align, Bytes};
use std::borrow::Cow;
use std::io::Read;
use std::path::Path;

impl GraphFile {
    /// Reads a graph file from memory, plain or gzip, under the default limits.
    ///
    /// Errors: [`FileError`], with the place. O(bytes).
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, FileError> {
        Self::from_bytes_within(bytes, &ReadLimits::default())
    }

    /// [`Self::from_bytes`] under limits of the caller's choice.
    pub fn from_bytes_within(bytes: &[u8], limits: &ReadLimits) -> Result<Self, FileError> {
        let text = decompress(bytes, limits.file_bytes)?;
        check_nesting(&text, limits.nesting)?;
        let raw = parse(&text)?;
        Reader { limits, tensors: raw.tensors.len(), devices: raw.devices.len(), buffers: raw.buffers.len() }.file(raw)
    }

    /// Reads a graph file from disk, plain or gzip, under the default limits.
    pub fn read_path(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let path = path.as_ref();
        let limits = ReadLimits::default();
        let io = |source| FileError::Io { path: path.to_owned(), source };
        let mut bytes = Vec::new();
        let file = std::fs::File::open(path).map_err(io)?;
        // One byte more than the limit, so that a longer file is told from one of just this length.
        file.take(limits.file_bytes as u64 + 1).read_to_end(&mut bytes).map_err(io)?;
        Self::from_bytes_within(&bytes, &limits)
    }
}

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

fn decompress(bytes: &[u8], limit: usize) -> Result<Cow<'_, [u8]>, FileError> {
    if !bytes.starts_with(&GZIP_MAGIC) {
        return within("file", bytes.len(), limit).map(|()| Cow::Borrowed(bytes));
    }
    let mut text = Vec::new();
    let result = flate2::read::MultiGzDecoder::new(bytes).take(limit as u64 + 1).read_to_end(&mut text);
    if let Err(source) = result {
        return Err(FileError::Gzip { read: text.len(), source });
    }
    within("file after decompression", text.len(), limit)?;
    Ok(Cow::Owned(text))
}

pub(super) fn within(place: &str, found: usize, limit: usize) -> Result<(), FileError> {
    if found > limit { Err(FileError::Limit { place: place.to_owned(), found, limit }) } else { Ok(()) }
}

/// Before parsing, so that no parser recurses deeper than the limit.
fn check_nesting(text: &[u8], limit: usize) -> Result<(), FileError> {
    let mut depth = 0_usize;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => skip_string(&mut bytes),
            _ => {}
        }
        if depth > limit {
            return within("nesting of objects and arrays", depth, limit);
        }
    }
    Ok(())
}

fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
}

fn parse(text: &[u8]) -> Result<RawFile<'_>, FileError> {
    let raw = serde_json::from_slice::<RawFile<'_>>(text).map_err(|error| explain(text, &error))?;
    check_header(&raw.format, raw.version)?;
    Ok(raw)
}

/// A second, slower reading finds the path of what is wrong; a file of another kind or version is told as such.
fn explain(text: &[u8], error: &serde_json::Error) -> FileError {
    if let Ok(header) = serde_json::from_slice::<RawHeader<'_>>(text)
        && let Err(other_kind) = check_header(&header.format, header.version)
    {
        return other_kind;
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let place = match serde_path_to_error::deserialize::<_, RawFile<'_>>(&mut json) {
        Err(located) if located.path().iter().len() > 0 => located.path().to_string(),
        _ => "file".to_owned(),
    };
    FileError::Syntax { place, why: error.to_string() }
}

fn check_header(format: &str, version: u32) -> Result<(), FileError> {
    if format != FORMAT {
        return Err(FileError::Format { found: clip(format), expected: FORMAT });
    }
    if version != VERSION {
        return Err(FileError::Version { found: version, supported: VERSION });
    }
    Ok(())
}

/// Names of strangers in messages: at most 64 characters.
fn clip(name: &str) -> String {
    name.chars().take(64).collect()
}

/// The counts that references are checked against, and the limits.
pub(super) struct Reader<'l> {
    pub(super) limits: &'l ReadLimits,
    tensors: usize,
    devices: usize,
    buffers: usize,
}

impl Reader<'_> {
    fn file(&self, raw: RawFile<'_>) -> Result<GraphFile, FileError> {
        self.check_counts(&raw)?;
        let devices = raw.devices.into_iter().enumerate().map(|(i, d)| self.device(i, d)).collect::<Result<_, _>>()?;
        let buffers = raw.buffers.into_iter().enumerate().map(|(i, b)| self.buffer(i, b)).collect::<Result<_, _>>()?;
        let pinned = raw
            .pinned
            .iter()
            .map(|(&t, &d)| Ok((self.tensor_id("pinned", t)?, self.device_id("pinned", d)?)))
            .collect::<Result<_, FileError>>()?;
        let mut parts = TensorParts::default();
        for (i, tensor) in raw.tensors.into_iter().enumerate() {
            self.tensor(i, tensor, &mut parts)?;
        }
        let nodes = self.tensor_ids::<IdVec<NodeId, _>>("nodes", &raw.nodes)?;
        let leafs = self.tensor_ids::<IdVec<LeafId, _>>("leafs", &raw.leafs)?;
        let file = GraphFile {
            graph: Graph::new(raw.name, parts.tensors, nodes, leafs)?,
            devices,
            n_copies: raw.n_copies,
            op_offload: raw.op_offload,
            buffers,
            pinned,
            buffer_of: parts.buffer_of,
            external: parts.external,
            alloc_sizes: parts.alloc_sizes,
            expected: raw.expected.map(|e| self.expected(e)).transpose()?,
        };
        file.check()?;
        for (id, nbytes) in parts.nbytes {
            file.check_nbytes(id, nbytes)?;
        }
        Ok(file)
    }

    fn check_counts(&self, raw: &RawFile<'_>) -> Result<(), FileError> {
        let limits = self.limits;
        within("name", raw.name.len(), limits.name_len)?;
        within("tensors", raw.tensors.len(), limits.tensors)?;
        within("devices", raw.devices.len(), limits.devices)?;
        within("buffers", raw.buffers.len(), limits.buffers)?;
        within("n_copies", raw.n_copies as usize, limits.copies)
    }

    fn device(&self, index: usize, raw: RawDevice<'_>) -> Result<FileDevice, FileError> {
        let place = |key: &str| format!("device {index} key `{key}`");
        self.check_name(&raw.name, || place("name"))?;
        self.check_name(&raw.buffer_type.name, || place("buffer_type.name"))?;
        let kind =
            FileDeviceKind::from_name(&raw.kind).ok_or_else(|| unknown(place("type"), "device type", &raw.kind))?;
        let alignment = Align::new(raw.buffer_type.alignment).ok_or_else(|| FileError::Value {
            place: place("alignment"),
            why: "an alignment must be a power of two",
        })?;
        Ok(FileDevice {
            name: raw.name.into_owned(),
            kind,
            buffer_type: FileBufferType {
                name: raw.buffer_type.name.into_owned(),
                alignment,
                max_size: raw.buffer_type.max_size.map(Bytes),
                host: raw.buffer_type.host,
            },
        })
    }

    fn buffer(&self, index: usize, raw: RawBuffer<'_>) -> Result<FileBuffer, FileError> {
        let place = |key: &str| format!("buffer {index} key `{key}`");
        check_id(index, raw.id, || place("id"))?;
        self.check_name(&raw.buffer_type, || place("buffer_type"))?;
        within(&place("usable_by"), raw.usable_by.len(), self.limits.devices)?;
        let usage = BufferUsage::from_name(&raw.usage).ok_or_else(|| unknown(place("usage"), "usage", &raw.usage))?;
        let usable_by =
            raw.usable_by.iter().map(|&d| self.device_id(&place("usable_by"), d)).collect::<Result<_, _>>()?;
        Ok(FileBuffer { buffer_type: raw.buffer_type.into_owned(), usage, host: raw.host, usable_by })
    }

    fn tensor(&self, index: usize, raw: RawTensor<'_>, parts: &mut TensorParts) -> Result<(), FileError> {
        let place = |key: &str| format!("tensor {index} key `{key}`");
        check_id(index, raw.id, || place("id"))?;
        self.check_name(&raw.name, || place("name"))?;
        self.check_tensor_lists(index, &raw)?;
        let id = TensorId::new(index);
        let tensor = Tensor {
            dtype: DType::from_name(&raw.dtype).ok_or_else(|| unknown(place("type"), "type", &raw.dtype))?,
            op: Op::from_name(&raw.op).ok_or_else(|| unknown(place("op"), "operation", &raw.op))?,
            ne: raw.ne,
            nb: raw.nb,
            params: trim(&raw.op_params).into(),
            src: raw
                .src
                .iter()
                .map(|s| s.map(|s| self.reference(|| place("src"), s, self.tensors)).transpose())
                .collect::<Result<_, _>>()?,
            view: self.view(index, &raw)?,
            flags: flags(index, &raw.flags)?,
            name: raw.name.into(),
        };
        parts.tensors.push(tensor);
        parts.buffer_of.push(raw.buffer.map(|b| self.reference(|| place("buffer"), b, self.buffers)).transpose()?);
        parts.external.push(raw.external);
        parts.nbytes.extend(raw.nbytes.map(|n| (id, Bytes(n))));
        parts.alloc_sizes.extend(raw.alloc_sizes.map(|sizes| (id, sizes.into_iter().map(Bytes).collect())));
        Ok(())
    }

    fn check_tensor_lists(&self, index: usize, raw: &RawTensor<'_>) -> Result<(), FileError> {
        let lists = [
            ("src", raw.src.len(), self.limits.sources),
            ("op_params", raw.op_params.len(), self.limits.op_params),
            ("flags", raw.flags.len(), Flags::NAMED.len()),
            ("alloc_sizes", raw.alloc_sizes.as_ref().map_or(0, Vec::len), self.limits.devices),
        ];
        for (key, found, limit) in lists {
            if found > limit {
                return Err(FileError::Limit { place: format!("tensor {index} key `{key}`"), found, limit });
            }
        }
        Ok(())
    }

    fn view(&self, index: usize, raw: &RawTensor<'_>) -> Result<Option<View>, FileError> {
        let place = |key: &str| format!("tensor {index} key `{key}`");
        match (raw.view_src, raw.view_offs) {
            (Some(root), offset) => {
                let root = self.reference(|| place("view_src"), root, self.tensors)?;
                Ok(Some(View { root, offset: Bytes(offset.unwrap_or(0)) }))
            }
            (None, None) => Ok(None),
            (None, Some(_)) => Err(FileError::Value { place: place("view_offs"), why: "only a view has an offset" }),
        }
    }

    pub(super) fn tensor_ids<L: FromIterator<TensorId>>(&self, place: &str, raw: &[u32]) -> Result<L, FileError> {
        self.list(place, raw.len())?;
        raw.iter().map(|&t| self.tensor_id(place, t)).collect()
    }

    pub(super) fn device_ids<L: FromIterator<DeviceId>>(&self, place: &str, raw: &[u32]) -> Result<L, FileError> {
        self.list(place, raw.len())?;
        raw.iter().map(|&d| self.device_id(place, d)).collect()
    }

    pub(super) fn tensor_id(&self, place: &str, raw: u32) -> Result<TensorId, FileError> {
        self.reference(|| place.to_owned() + " (a tensor)", raw, self.tensors)
    }

    pub(super) fn device_id(&self, place: &str, raw: u32) -> Result<DeviceId, FileError> {
        self.reference(|| place.to_owned() + " (a device)", raw, self.devices)
    }

    fn reference<K: Id>(&self, place: impl FnOnce() -> String, raw: u32, count: usize) -> Result<K, FileError> {
        if (raw as usize) < count {
            return Ok(K::from_index(raw as usize));
        }
        Err(FileError::Reference { place: place(), index: u64::from(raw), count })
    }

    pub(super) fn list(&self, place: &str, found: usize) -> Result<(), FileError> {
        within(place, found, self.limits.list_len)
    }

    fn check_name(&self, name: &str, place: impl FnOnce() -> String) -> Result<(), FileError> {
        if name.len() > self.limits.name_len {
            return Err(FileError::Limit { place: place(), found: name.len(), limit: self.limits.name_len });
        }
        Ok(())
    }
}

/// What the tensors of a file fill.
#[derive(Default)]
struct TensorParts {
    tensors: IdVec<TensorId, Tensor>,
    buffer_of: IdVec<TensorId, Option<BufferId>>,
    external: IdVec<TensorId, bool>,
    nbytes: Vec<(TensorId, Bytes)>,
    alloc_sizes: std::collections::BTreeMap<TensorId, IdVec<DeviceId, Bytes>>,
}

fn check_id(index: usize, id: u32, place: impl FnOnce() -> String) -> Result<(), FileError> {
    if id as usize == index {
        return Ok(());
    }
    Err(FileError::Value { place: place(), why: "an id must equal the position in the list" })
}

fn flags(index: usize, names: &[Cow<'_, str>]) -> Result<Flags, FileError> {
    names.iter().try_fold(Flags::NONE, |all, name| {
        let named = Flags::NAMED.iter().find(|(_, n)| *n == *name);
        let (flag, _) = named.ok_or_else(|| unknown(format!("tensor {index} key `flags`"), "flag", name))?;
        Ok(all.with(*flag))
    })
}

fn unknown(place: String, what: &'static str, name: &str) -> FileError {
    FileError::UnknownName { place, what, name: clip(name) }
}

fn trim(words: &[u32]) -> &[u32] {
    let len = words.iter().rposition(|&w| w != 0).map_or(0, |last| last + 1);
    &words[..len]
}

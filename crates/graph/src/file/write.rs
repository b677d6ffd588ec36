//! From a [`GraphFile`] to bytes: one line for each tensor and each list, so that files can be read and compared.

use super::raw::{RawAlloc, RawBuffer, RawBufferType, RawDevice, RawEntry, RawPlace, RawSplit, RawTensor};
use super::{
    AllocEntry, BufferUsage, Expected, ExpectedAlloc, ExpectedPlace, FORMAT, FileBuffer, FileDevice, FileDeviceKind,
    FileError, GraphFile, VERSION,
};
use crate::id::{Id, TensorId};
use crate::tensor::Flags;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

impl GraphFile {
    /// The file as JSON text. Deterministic. Errors: what [`Self::check`] finds. O(tensors + lists).
    pub fn to_json(&self) -> Result<String, FileError> {
        self.check()?;
        let mut out = Writer { text: Vec::with_capacity(self.graph.tensors().len() * 200 + 4096) };
        out.file(self);
        // Only serde_json and literals wrote to it.
        Ok(String::from_utf8_lossy(&out.text).into_owned())
    }

    /// The file as gzip. Deterministic (no time, no name in the header).
    pub fn to_gzip(&self) -> Result<Vec<u8>, FileError> {
        let text = self.to_json()?;
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        let compressed = gzip.write_all(text.as_bytes()).and_then(|()| gzip.finish());
        compressed.map_err(|source| FileError::Gzip { read: text.len(), source })
    }

    /// Writes the file to disk: gzip where the path ends in `.gz`, else plain.
    pub fn write_path(&self, path: impl AsRef<Path>) -> Result<(), FileError> {
        let path = path.as_ref();
        let bytes =
            if path.extension().is_some_and(|e| e == "gz") { self.to_gzip()? } else { self.to_json()?.into_bytes() };
        std::fs::write(path, bytes).map_err(|source| FileError::Io { path: path.to_owned(), source })
    }
}

struct Writer {
    text: Vec<u8>,
}

impl Writer {
    fn file(&mut self, file: &GraphFile) {
        let graph = &file.graph;
        self.text.extend_from_slice(b"{\n");
        self.entry("format", &FORMAT, ",\n");
        self.entry("version", &VERSION, ",\n");
        self.entry("name", graph.name(), ",\n");
        self.entry("devices", &file.devices.values().map(device).collect::<Vec<_>>(), ",\n");
        self.entry("n_copies", &file.n_copies, ",\n");
        self.entry("op_offload", &file.op_offload, ",\n");
        self.entry("buffers", &file.buffers.iter().map(|(id, b)| buffer(id.index(), b)).collect::<Vec<_>>(), ",\n");
        let pinned: BTreeMap<u32, u32> = file.pinned.iter().map(|(&t, &d)| (raw(t), raw(d))).collect();
        self.entry("pinned", &pinned, ",\n");
        self.entry("nodes", &raws(graph.nodes().values()), ",\n");
        self.entry("leafs", &raws(graph.leafs().values()), ",\n");
        self.tensors(file);
        if let Some(expected) = &file.expected {
            self.text.extend_from_slice(b",\n\"expected\":{\n");
            self.expected(expected);
            self.text.push(b'}');
        }
        self.text.extend_from_slice(b"}\n");
    }

    fn tensors(&mut self, file: &GraphFile) {
        self.text.extend_from_slice(b"\"tensors\":[\n");
        for id in file.graph.tensors().ids() {
            if id.index() > 0 {
                self.text.extend_from_slice(b",\n");
            }
            self.value(&tensor(file, id));
        }
        self.text.extend_from_slice(b"\n]");
    }

    fn expected(&mut self, expected: &Expected) {
        let splits = expected.splits.values().map(|s| RawSplit {
            device: raw(s.device),
            start: raw(s.start),
            end: raw(s.end),
            inputs: raws(&s.inputs),
        });
        self.entry("node_devices", &raws(expected.node_devices.values()), ",\n");
        self.entry("leaf_devices", &raws(expected.leaf_devices.values()), ",\n");
        self.entry("splits", &splits.collect::<Vec<_>>(), ",\n");
        self.entry("alloc_graph", &alloc_graph(&expected.alloc_graph), "");
        if let Some(sizes) = &expected.buffer_sizes {
            self.more("buffer_sizes", &sizes.values().map(|b| b.get()).collect::<Vec<_>>());
        }
        if let Some(offsets) = &expected.leaf_offsets {
            self.more("leaf_offsets", &places(offsets));
        }
        if let Some(offsets) = &expected.node_offsets {
            self.more("node_offsets", &places(offsets));
        }
        self.text.push(b'\n');
    }

    /// An entry after the last one.
    fn more<T: Serialize + ?Sized>(&mut self, key: &str, value: &T) {
        self.text.extend_from_slice(b",\n");
        self.entry(key, value, "");
    }

    fn entry<T: Serialize + ?Sized>(&mut self, key: &str, value: &T, end: &str) {
        self.value(key);
        self.text.push(b':');
        self.value(value);
        self.text.extend_from_slice(end.as_bytes());
    }

    fn value<T: Serialize + ?Sized>(&mut self, value: &T) {
        // Writing to memory does not fail, and every map written here has string or integer keys.
        let result = serde_json::to_writer(&mut self.text, value);
        debug_assert!(result.is_ok());
    }
}

fn raw<K: Id>(id: K) -> u32 {
    // Ids are 32-bit.
    id.index() as u32
}

fn raws<'a, K: Id + 'a>(ids: impl IntoIterator<Item = &'a K>) -> Vec<u32> {
    ids.into_iter().map(|&id| raw(id)).collect()
}

fn device(device: &FileDevice) -> RawDevice<'_> {
    RawDevice {
        name: (&*device.name).into(),
        kind: device.kind.name().into(),
        buffer_type: RawBufferType {
            name: (&*device.buffer_type.name).into(),
            alignment: device.buffer_type.alignment.get(),
            max_size: device.buffer_type.max_size.map(|b| b.get()),
            host: device.buffer_type.host,
        },
    }
}

fn buffer(index: usize, buffer: &FileBuffer) -> RawBuffer<'_> {
    RawBuffer {
        id: index as u32,
        buffer_type: (&*buffer.buffer_type).into(),
        usage: buffer.usage.name().into(),
        host: buffer.host,
        usable_by: raws(&buffer.usable_by),
    }
}

fn tensor(file: &GraphFile, id: TensorId) -> RawTensor<'_> {
    let tensor = file.graph.tensor(id);
    let flags = Flags::NAMED.iter().filter(|(flag, _)| tensor.flags.contains(*flag));
    RawTensor {
        id: raw(id),
        name: (&*tensor.name).into(),
        dtype: tensor.dtype.name().into(),
        op: tensor.op.name().into(),
        ne: tensor.ne,
        nb: tensor.nb,
        src: tensor.src.iter().map(|s| s.map(raw)).collect(),
        view_src: tensor.view.map(|v| raw(v.root)),
        view_offs: tensor.view.map(|v| v.offset.get()),
        op_params: tensor.params.to_vec(),
        flags: flags.map(|(_, name)| (*name).into()).collect(),
        buffer: file.buffer_of[id].map(raw),
        external: file.external[id],
        nbytes: Some(tensor.nbytes().get()),
        alloc_sizes: file.alloc_sizes.get(&id).map(|sizes| sizes.values().map(|b| b.get()).collect()),
    }
}

fn alloc_graph(alloc: &ExpectedAlloc) -> RawAlloc {
    let changed = |(&id, sources): (&TensorId, &Vec<Option<AllocEntry>>)| {
        (raw(id), sources.iter().map(|s| s.map(|s| entry(&s))).collect())
    };
    RawAlloc {
        nodes: alloc.nodes.iter().map(entry).collect(),
        node_buffer_ids: raws(&alloc.node_buffer_ids),
        leafs: alloc.leafs.iter().map(entry).collect(),
        leaf_buffer_ids: raws(&alloc.leaf_buffer_ids),
        changed_src: alloc.changed_src.iter().map(changed).collect(),
    }
}

fn entry(entry: &AllocEntry) -> RawEntry {
    match *entry {
        AllocEntry::Tensor(id) => RawEntry::Tensor(raw(id)),
        AllocEntry::CopyOf { of, device, copy } => RawEntry::Copy { of: raw(of), device: raw(device), copy },
        AllocEntry::Keep(id) => RawEntry::Keep(raw(id)),
    }
}

fn places(places: &[Option<ExpectedPlace>]) -> Vec<Option<RawPlace>> {
    let one = |p: ExpectedPlace| (raw(p.buffer), p.chunk, p.offset.get(), p.size.get());
    places.iter().map(|p| p.map(one)).collect()
}

macro_rules! names {
    ($type:ident { $($variant:ident = $name:literal),* }) => {
        impl $type {
            /// Its name in files.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
            /// The one of that name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name { $($name => Some(Self::$variant),)* _ => None }
            }
        }
    };
}

names!(FileDeviceKind { Cpu = "cpu", Gpu = "gpu" });
names!(BufferUsage { Weights = "weights", Compute = "compute", Any = "any" });

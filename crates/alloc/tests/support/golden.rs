//! Golden graph files as lowered graphs, taken from what the file says the reference handed to its allocator.

use loadmaster_alloc::{AllocGraph, ArenaId, Arenas, Buffer, BufferType, ItemId, Refused};
use loadmaster_graph::file::{AllocEntry, ExpectedPlace};
use loadmaster_graph::{Align, Bytes, DeviceId, Flags, GraphFile, Tensor, TensorId};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

/// A device's buffer type, with the sizes that the file lists.
#[derive(Debug)]
struct ListedType {
    name: String,
    align: Align,
    max_size: Option<Bytes>,
    host: bool,
    sizes: BTreeMap<TensorId, Bytes>,
}

impl BufferType for ListedType {
    fn name(&self) -> &str {
        &self.name
    }
    fn alignment(&self) -> Align {
        self.align
    }
    fn max_size(&self) -> Option<Bytes> {
        self.max_size
    }
    fn is_host(&self) -> bool {
        self.host
    }
    fn alloc_size(&self, id: TensorId, tensor: &Tensor) -> Bytes {
        self.sizes.get(&id).copied().unwrap_or_else(|| tensor.nbytes())
    }
    fn alloc_buffer(&self, needed: Bytes) -> Result<Arc<dyn Buffer>, Refused> {
        let reason = "golden devices have no memory".to_owned();
        Err(Refused { buffer_type: self.name.clone(), needed, available: None, reason })
    }
}

/// A file's graph as the reference's allocator saw it.
pub struct Golden<'f> {
    pub graph: AllocGraph<'f>,
    pub arenas: Arenas,
    pub node_ids: Vec<ArenaId>,
    pub leaf_ids: Vec<ArenaId>,
    pub places: Option<Vec<(ItemId, Option<ExpectedPlace>)>>,
    pub sizes: Option<Vec<Bytes>>,
}

/// All graph files, by name.
pub fn paths() -> Vec<PathBuf> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/graphs");
    let entries = std::fs::read_dir(dir).unwrap();
    let mut paths: Vec<_> = entries.map(|e| e.unwrap().path()).filter(|p| p.extension().is_some()).collect();
    paths.sort();
    paths
}

pub fn arenas(file: &GraphFile) -> Arenas {
    let mut types: Vec<Arc<dyn BufferType>> = Vec::new();
    for (id, device) in file.devices.iter() {
        let known = types.iter().find(|t| t.name() == device.buffer_type.name).cloned();
        types.push(known.unwrap_or_else(|| {
            Arc::new(ListedType {
                name: device.buffer_type.name.clone(),
                align: device.buffer_type.alignment,
                max_size: device.buffer_type.max_size,
                host: device.buffer_type.host,
                sizes: file.alloc_sizes.iter().map(|(&t, sizes)| (t, sizes[id])).collect(),
            })
        }));
    }
    Arenas::new(types)
}

pub fn lowered(file: &GraphFile) -> Golden<'_> {
    let expected = file.expected.as_ref().unwrap();
    let alloc = &expected.alloc_graph;
    let has_memory = |t: TensorId| file.buffer_of[t].is_some() || file.external[t];
    let mut lowering = Lowering { graph: AllocGraph::overlay(&file.graph, has_memory), copies: BTreeMap::new() };
    let pipelined = file.n_copies > 1;
    let both = Flags::INPUT.with(Flags::OUTPUT);
    if pipelined {
        for &leaf in file.graph.leafs().values().filter(|&&t| file.graph.tensor(t).flags.is_input()) {
            lowering.graph.set_flags(ItemId::of(leaf), file.graph.tensor(leaf).flags.with(both));
        }
    }
    let flags = if pipelined { both } else { Flags::NONE };
    let mut leafs = Vec::new();
    for &entry in &alloc.leafs {
        let item = lowering.item(entry, flags);
        lowering.graph.push_leaf(item);
        leafs.push(item);
    }
    let mut nodes = Vec::new();
    for &entry in &alloc.nodes {
        let item = lowering.item(entry, flags);
        lowering.graph.push_node(item);
        nodes.push(item);
    }
    for (&user, sources) in &alloc.changed_src {
        for (operand, &source) in sources.iter().enumerate() {
            if let Some(entry @ AllocEntry::CopyOf { .. }) = source {
                let item = lowering.item(entry, flags);
                lowering.graph.set_source(ItemId::of(user), operand, item);
            }
        }
    }
    let items = leafs.iter().chain(&nodes).copied();
    let offsets = expected.leaf_offsets.iter().zip(&expected.node_offsets).next();
    let places = offsets.map(|(l, n)| items.zip(l.iter().chain(n).copied()).collect());
    Golden {
        graph: lowering.graph,
        arenas: arenas(file),
        node_ids: ids(&alloc.node_buffer_ids),
        leaf_ids: ids(&alloc.leaf_buffer_ids),
        places,
        sizes: expected.buffer_sizes.as_ref().map(|sizes| sizes.values().copied().collect()),
    }
}

fn ids(devices: &[DeviceId]) -> Vec<ArenaId> {
    devices.iter().map(|d| ArenaId::new(d.index())).collect()
}

struct Lowering<'f> {
    graph: AllocGraph<'f>,
    copies: BTreeMap<(TensorId, DeviceId, u32), ItemId>,
}

impl Lowering<'_> {
    fn item(&mut self, entry: AllocEntry, flags: Flags) -> ItemId {
        match entry {
            AllocEntry::Tensor(t) => ItemId::of(t),
            AllocEntry::Keep(t) => self.graph.add_keep(t),
            AllocEntry::CopyOf { of, device, copy } => {
                let graph = &mut self.graph;
                // Copy 0 of an input leaf is the leaf itself.
                *self.copies.entry((of, device, copy)).or_insert_with(|| graph.add_copy(of, device, copy, flags))
            }
        }
    }
}

/// Splits of the file as runs of steps of the lowered graph: the nodes between its keep and copy nodes.
pub fn runs(file: &GraphFile) -> Vec<std::ops::Range<usize>> {
    let expected = file.expected.as_ref().unwrap();
    let starts: BTreeSet<TensorId> = expected.splits.values().map(|s| file.graph.nodes()[s.start]).collect();
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    let mut open = false;
    for (i, entry) in expected.alloc_graph.nodes.iter().enumerate() {
        let AllocEntry::Tensor(t) = entry else {
            open = false;
            continue;
        };
        if !open || starts.contains(t) {
            runs.push(i..i);
            open = true;
        }
        if let Some(run) = runs.last_mut() {
            run.end = i + 1;
        }
    }
    runs
}

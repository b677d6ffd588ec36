//! ggml's answer for a graph file, and the handles that the timings use.

use crate::ffi;
use crate::file::{AllocGraph, Answer, Entry, GraphFile, Group, Offset, Split};
use crate::rebuilt::{self, Rebuilt};
use crate::world::World;
use anyhow::{Context, ensure};
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;

/// ggml's scheduler over fake devices, with one graph.
pub struct Ggml {
    pub rebuilt: Rebuilt,
    pub sched: *mut ffi::sched,
    pub world: World,
    pinned: Vec<(u32, usize)>,
}

/// ggml's graph allocator.
pub struct Gallocr(pub *mut ffi::gallocr);

impl Drop for Ggml {
    fn drop(&mut self) {
        // SAFETY: made by `ggml_backend_sched_new`, freed once, before the world.
        unsafe { ffi::ggml_backend_sched_free(self.sched) };
    }
}

impl Drop for Gallocr {
    fn drop(&mut self) {
        // SAFETY: made by `ggml_gallocr_new_n`, freed once.
        unsafe { ffi::ggml_gallocr_free(self.0) };
    }
}

impl Ggml {
    /// Builds devices, tensors, graph and scheduler.
    pub fn new(file: &GraphFile) -> anyhow::Result<Self> {
        let mut world = World::new(file, &rebuilt::buffer_sizes(file))?;
        let rebuilt = Rebuilt::new(file, &world)?;
        world.keep(file.keep_until.iter().map(|&(t, until)| (rebuilt.tensor(t), rebuilt.tensor(until))));
        let mut backends = world.backend_pointers();
        let parallel = file.n_copies > 1;
        // The smallest size with room for every tensor, as the callers of ggml choose it at best.
        let graph_size = file.tensors.len().max(file.nodes.len() + file.leafs.len()) + 1;
        // SAFETY: all pointers live as long as `world`, which outlives the scheduler.
        let sched = unsafe {
            ffi::ggml_backend_sched_new(
                backends.as_mut_ptr(),
                world.device_types.as_mut_ptr(),
                backends.len() as c_int,
                graph_size,
                parallel,
                file.op_offload,
            )
        };
        let pinned = file.pinned.iter().map(|(&t, &d)| (t, d as usize)).collect();
        let this = Self { rebuilt, sched, world, pinned };
        // SAFETY: the scheduler is live; the accessors guard against another layout of its struct.
        unsafe {
            ensure!((*sched).n_copies == ffi::ggml_backend_sched_get_n_copies(sched), "ggml_backend_sched differs");
            ensure!((*sched).n_copies as u32 == file.n_copies, "ggml has 1 or {} copies", ffi::MAX_COPIES);
        }
        Ok(this)
    }

    /// Back to the state before the first split: the caller's graph as it was, the pins set again.
    pub fn reset(&mut self) {
        self.rebuilt.restore();
        // SAFETY: live scheduler, tensors and backends.
        unsafe {
            ffi::ggml_backend_sched_reset(self.sched);
            for &(tensor, device) in &self.pinned {
                let backend = &raw mut *self.world.backends[device];
                ffi::ggml_backend_sched_set_tensor_backend(self.sched, self.rebuilt.tensor(tensor), backend);
            }
        }
    }

    /// Splits the graph. Call [`Self::reset`] before.
    pub fn split(&mut self) {
        // SAFETY: live scheduler and graph.
        unsafe { ffi::ggml_backend_sched_split_graph(self.sched, &raw mut self.rebuilt.graph) };
    }

    /// The graph that the scheduler hands to the allocator, with its id arrays.
    pub fn lowered(&mut self) -> (*mut ffi::cgraph, *const c_int, *const c_int) {
        // SAFETY: live scheduler.
        let sched = unsafe { &mut *self.sched };
        (&raw mut sched.graph, sched.node_backend_ids, sched.leaf_backend_ids)
    }

    /// A graph allocator over the devices' buffer types.
    pub fn gallocr(&mut self) -> Gallocr {
        let types = &mut self.world.device_types;
        // SAFETY: the buffer types live as long as the world.
        Gallocr(unsafe { ffi::ggml_gallocr_new_n(types.as_mut_ptr(), types.len() as c_int) })
    }

    /// Everything that `expected` of a graph file holds, from the scheduler and a fresh graph allocator.
    pub fn answer(&mut self, file: &GraphFile) -> anyhow::Result<Answer> {
        self.reset();
        self.split();
        // SAFETY: live scheduler; see `new` for the layout.
        let n_splits = unsafe { ffi::ggml_backend_sched_get_n_splits(self.sched) };
        ensure!(unsafe { (*self.sched).n_splits } == n_splits, "ggml_backend_sched differs");
        let node_devices = self.devices_of(&file.nodes)?;
        let leaf_devices = self.devices_of(&file.leafs)?;
        let splits = self.splits()?;
        let alloc_graph = self.alloc_graph(file)?;
        let mut answer = Answer {
            node_devices,
            leaf_devices,
            splits,
            alloc_graph,
            buffer_sizes: None,
            leaf_offsets: None,
            node_offsets: None,
            groups: None,
        };
        self.allocate(&mut answer)?;
        Ok(answer)
    }

    fn devices_of(&self, tensors: &[u32]) -> anyhow::Result<Vec<i32>> {
        let of = |&id: &u32| {
            // SAFETY: live scheduler and tensor.
            let backend = unsafe { ffi::ggml_backend_sched_get_tensor_backend(self.sched, self.rebuilt.tensor(id)) };
            if backend.is_null() {
                return Ok(-1);
            }
            Ok(self.world.device_of(backend).context("an unknown backend")? as i32)
        };
        tensors.iter().map(of).collect()
    }

    fn splits(&self) -> anyhow::Result<Vec<Split>> {
        // SAFETY: `splits` has `n_splits` entries, each with `n_inputs` inputs.
        let splits = unsafe { slice((*self.sched).splits, (*self.sched).n_splits) };
        let of = |s: &ffi::sched_split| {
            let inputs = unsafe { slice(s.inputs, s.n_inputs) };
            let inputs = inputs.iter().map(|&t| self.rebuilt.id_of(t).context("a foreign split input"));
            anyhow::Ok(Split {
                device: s.backend_id,
                start: s.i_start as u32,
                end: s.i_end as u32,
                inputs: inputs.collect::<Result<_, _>>()?,
            })
        };
        splits.iter().map(of).collect()
    }

    fn alloc_graph(&mut self, file: &GraphFile) -> anyhow::Result<AllocGraph> {
        let copies = self.copies();
        let entry = |t: *mut ffi::ggml_tensor| -> anyhow::Result<Entry> {
            match self.rebuilt.id_of(t) {
                Some(id) => Ok(Entry::Tensor(id)),
                None => copies.get(&t).copied().context("a tensor of unknown origin"),
            }
        };
        // SAFETY: live scheduler; the arrays have the lengths that its graph says.
        let sched = unsafe { &*self.sched };
        let (nodes, leafs, node_ids, leaf_ids) = unsafe {
            (
                slice(sched.graph.nodes, sched.graph.n_nodes),
                slice(sched.graph.leafs, sched.graph.n_leafs),
                slice(sched.node_backend_ids, sched.graph.n_nodes),
                slice(sched.leaf_backend_ids, sched.graph.n_leafs),
            )
        };
        let mut listed = Vec::new();
        let mut node_buffer_ids = Vec::new();
        for (&node, &id) in nodes.iter().zip(node_ids) {
            let entries = if self.is_keep(node, &copies) { self.kept(node)? } else { vec![entry(node)?] };
            node_buffer_ids.extend(entries.iter().map(|_| id));
            listed.extend(entries);
        }
        let mut changed_src = BTreeMap::new();
        for &id in &file.nodes {
            let before = &file.tensors[id as usize].src;
            // SAFETY: a live tensor.
            let after = unsafe { (*self.rebuilt.tensor(id)).src };
            let after = after[..before.len()]
                .iter()
                .map(|&s| if s.is_null() { Ok(None) } else { entry(s).map(Some) })
                .collect::<anyhow::Result<Vec<_>>>()?;
            if before.iter().zip(&after).any(|(b, a)| b.map(Entry::Tensor) != *a) {
                changed_src.insert(id, after);
            }
        }
        Ok(AllocGraph {
            nodes: listed,
            node_buffer_ids,
            leafs: leafs.iter().map(|&t| entry(t)).collect::<anyhow::Result<_>>()?,
            leaf_buffer_ids: leaf_ids.to_vec(),
            changed_src,
        })
    }

    /// Whether a node is one that the scheduler added to keep others alive.
    fn is_keep(&self, node: *mut ffi::ggml_tensor, copies: &HashMap<*mut ffi::ggml_tensor, Entry>) -> bool {
        self.rebuilt.id_of(node).is_none() && !copies.contains_key(&node)
    }

    /// What a keep node keeps: one entry for each, as FORMAT.md has it, where ggml puts up to ten into a node.
    fn kept(&self, node: *mut ffi::ggml_tensor) -> anyhow::Result<Vec<Entry>> {
        // SAFETY: a live view in the scheduler's context.
        let src = unsafe { (*node).src };
        let kept = src.iter().filter(|s| !s.is_null());
        kept.map(|&s| Ok(Entry::Keep { keep: self.rebuilt.id_of(s).context("keeps a tensor of unknown origin")? }))
            .collect()
    }

    /// Every copy that the scheduler made.
    fn copies(&self) -> HashMap<*mut ffi::ggml_tensor, Entry> {
        // SAFETY: live scheduler; `hv_tensor_copies` is [hash slot][backend][copy].
        let sched = unsafe { &*self.sched };
        let (backends, copies) = (sched.n_backends as usize, sched.n_copies as usize);
        let mut found = HashMap::new();
        for slot in 0..sched.hash_set.size {
            let used = unsafe { *sched.hash_set.used.add(slot / 32) } >> (slot % 32) & 1;
            if used == 0 {
                continue;
            }
            let Some(copy_of) = self.rebuilt.id_of(unsafe { *sched.hash_set.keys.add(slot) }) else { continue };
            for device in 0..backends {
                for copy in 0..copies {
                    let t = unsafe { *sched.hv_tensor_copies.add((slot * backends + device) * copies + copy) };
                    if !t.is_null() && self.rebuilt.id_of(t).is_none() {
                        found.insert(t, Entry::Copy { copy_of, device: device as u32, copy: copy as u32 });
                    }
                }
            }
        }
        found
    }

    /// Reserves the lowered graph with a fresh allocator and notes sizes and offsets.
    fn allocate(&mut self, answer: &mut Answer) -> anyhow::Result<()> {
        let galloc = self.gallocr();
        let copies = self.copies();
        let (graph, node_ids, leaf_ids) = self.lowered();
        // SAFETY: live allocator and graph, id arrays as long as the graph says.
        let (g, lowered) = unsafe {
            ensure!(ffi::ggml_gallocr_reserve_n(galloc.0, graph, node_ids, leaf_ids), "reserve_n failed");
            let g = &*galloc.0;
            let sizes = (0..g.n_buffers).map(|i| ffi::ggml_gallocr_get_buffer_size(galloc.0, i) as u64);
            answer.buffer_sizes = Some(sizes.collect());
            (g, slice((*graph).nodes, (*graph).n_nodes))
        };
        // SAFETY: reserved for this graph, so the arrays have these lengths.
        let (nodes, leafs) = unsafe { (slice(g.node_allocs, g.n_nodes), slice(g.leaf_allocs, g.n_leafs)) };
        let mut offsets = Vec::new();
        for (&node, alloc) in lowered.iter().zip(nodes) {
            let entries = if self.is_keep(node, &copies) { self.kept(node)?.len() } else { 1 };
            offsets.extend(std::iter::repeat_n(offset(&alloc.dst), entries));
        }
        answer.node_offsets = Some(offsets);
        answer.leaf_offsets = Some(leafs.iter().map(offset).collect());
        Ok(())
    }

    /// All tensors without memory as one group in the buffer type of each device (rule 6).
    pub fn groups(&mut self, file: &GraphFile) -> anyhow::Result<Vec<Group>> {
        (0..file.devices.len()).map(|device| self.group(file, device)).collect()
    }

    fn group(&mut self, file: &GraphFile, device: usize) -> anyhow::Result<Group> {
        self.rebuilt.restore();
        let belongs = |id: u32| {
            let t = &file.tensors[id as usize];
            let root = &file.tensors[t.view_src.unwrap_or(id) as usize];
            root.buffer.is_none() && !root.external
        };
        let ids = (0..file.tensors.len() as u32).filter(|&id| belongs(id)).collect::<Vec<_>>();
        let mut tensors = ids.iter().map(|&id| self.rebuilt.tensor(id)).collect::<Vec<_>>();
        let buft = self.world.device_types[device];
        // SAFETY: live buffer type and tensors.
        let all = unsafe { ffi::ggml_backend_buft_alloc_buffer_n(buft, tensors.as_mut_ptr(), tensors.len() as c_int) };
        let mut buffers = Vec::new();
        let mut places = vec![None; file.tensors.len()];
        for &id in &ids {
            // SAFETY: a live tensor; its buffer lives until `all` is freed, and `context` is its base.
            unsafe {
                let tensor = &*self.rebuilt.tensor(id);
                let buffer = tensor.buffer.cast::<ffi::buffer>();
                if buffer.is_null() {
                    continue;
                }
                let number = buffers.iter().position(|&b| b == buffer).unwrap_or_else(|| {
                    buffers.push(buffer);
                    buffers.len() - 1
                });
                let offset = tensor.data as usize - (*buffer).context as usize;
                places[id as usize] = Some((number as u32, offset as u64));
            }
        }
        // SAFETY: as above; freed once, with what is in it.
        let sizes = buffers.iter().map(|&b| unsafe { (*b).size as u64 }).collect();
        unsafe { ffi::ggml_backend_buffer_free(all) };
        self.rebuilt.restore();
        Ok((sizes, places))
    }
}

fn offset(alloc: &ffi::tensor_alloc) -> Offset {
    if alloc.buffer_id < 0 {
        return None;
    }
    Some((alloc.buffer_id as u32, alloc.addr.chunk as u32, alloc.addr.offset as u64, alloc.size_max as u64))
}

/// A C array as a slice; null is empty.
///
/// # Safety
/// `data` has `len` live elements that nobody writes meanwhile.
unsafe fn slice<'a, T>(data: *const T, len: c_int) -> &'a [T] {
    if data.is_null() || len <= 0 {
        return &[];
    }
    unsafe { std::slice::from_raw_parts(data, len as usize) }
}

//! Random cases. Whole kinds of thing are switched on or off per case, so that rare combinations meet.
//!
//! Shapes follow from sources only where planning looks at them (views, layouts of in-place operations): neither
//! ggml's planner nor loadmaster's asks whether an operation makes sense.

use crate::file::{Buffer, BufferType, Device, DeviceKind, GraphFile, Tensor, Usage};
use crate::random::Random;
use std::collections::BTreeMap;

/// Operations of the model families, in-place ones and not.
const USUAL: &[&str] = &[
    "ADD",
    "MUL",
    "SUB",
    "DIV",
    "SCALE",
    "SOFT_MAX",
    "ROPE",
    "RMS_NORM",
    "NORM",
    "SILU",
    "GELU",
    "RELU",
    "SWIGLU",
    "GEGLU",
    "MUL_MAT",
    "MUL_MAT_ID",
    "GET_ROWS",
    "FLASH_ATTN_EXT",
    "CPY",
    "CONT",
    "SET_ROWS",
    "CONCAT",
    "ADD_ID",
    "ADD1",
    "ARGSORT",
    "SUM_ROWS",
    "CLAMP",
    "SQR",
    "SIGMOID",
];

/// Everything else that can stand in a graph, to probe the in-place list and the special cases of assignment.
const RARE: &[&str] = &[
    "DUP",
    "ACC",
    "SQRT",
    "LOG",
    "SIN",
    "COS",
    "SUM",
    "CUMSUM",
    "MEAN",
    "ARGMAX",
    "COUNT_EQUAL",
    "REPEAT",
    "REPEAT_BACK",
    "SILU_BACK",
    "RMS_NORM_BACK",
    "GROUP_NORM",
    "L2_NORM",
    "OUT_PROD",
    "SET",
    "GET_ROWS_BACK",
    "DIAG",
    "DIAG_MASK_INF",
    "DIAG_MASK_ZERO",
    "SOFT_MAX_BACK",
    "ROPE_BACK",
    "CONV_TRANSPOSE_1D",
    "IM2COL",
    "IM2COL_BACK",
    "IM2COL_3D",
    "COL2IM_1D",
    "CONV_2D",
    "CONV_3D",
    "CONV_2D_DW",
    "CONV_TRANSPOSE_2D",
    "POOL_1D",
    "POOL_2D",
    "POOL_2D_BACK",
    "UPSCALE",
    "PAD",
    "PAD_REFLECT_1D",
    "ROLL",
    "ARANGE",
    "TIMESTEP_EMBEDDING",
    "TOP_K",
    "LEAKY_RELU",
    "TRI",
    "FILL",
    "FLASH_ATTN_BACK",
    "SSM_CONV",
    "SSM_SCAN",
    "WIN_PART",
    "WIN_UNPART",
    "GET_REL_POS",
    "ADD_REL_POS",
    "RWKV_WKV6",
    "GATED_LINEAR_ATTN",
    "RWKV_WKV7",
    "SOLVE_TRI",
    "GATED_DELTA_NET",
    "LIGHTNING_INDEXER",
    "DSV4_HC_COMB",
    "DSV4_HC_PRE",
    "DSV4_HC_POST",
    "MAP_CUSTOM1",
    "MAP_CUSTOM2",
    "MAP_CUSTOM3",
    "CUSTOM",
    "CROSS_ENTROPY_LOSS",
    "CROSS_ENTROPY_LOSS_BACK",
    "OPT_STEP_ADAMW",
    "OPT_STEP_SGD",
    "ABS",
    "SGN",
    "NEG",
    "STEP",
    "TANH",
    "ELU",
    "GELU_QUICK",
    "HARDSWISH",
    "HARDSIGMOID",
    "EXP",
    "EXPM1",
    "SOFTPLUS",
    "GELU_ERF",
    "XIELU",
    "FLOOR",
    "CEIL",
    "ROUND",
    "TRUNC",
    "REGLU",
    "SWIGLU_OAI",
    "GEGLU_ERF",
    "GEGLU_QUICK",
    "SWIGLU_CLAMP",
];

const VIEWS: &[&str] = &["VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"];

/// Types with elements per block and bytes per block.
const TYPES: &[(&str, u64, u64)] =
    &[("f32", 1, 4), ("f16", 1, 2), ("i32", 1, 4), ("i64", 1, 8), ("q8_0", 32, 34), ("q4_K", 256, 144)];

/// How far cases go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// What ggml plans soundly: loadmaster must agree to the byte.
    Sound,
    /// Also what ggml plans wrongly, where loadmaster deviates on purpose: see README.md.
    Everything,
}

/// What a case may contain.
struct Knobs {
    views: usize,
    view_results: usize,
    holes: usize,
    outputs: usize,
    input_nodes: usize,
    pins: usize,
    rare_ops: usize,
    weights: usize,
    caches: usize,
    same_layout: usize,
    quantized: bool,
    empty: bool,
    resident_nodes: bool,
    own_buffer_of_views: bool,
    external: bool,
    odd_leafs: bool,
    shuffled: bool,
    reach: usize,
    no_op_nodes: bool,
    keep: bool,
    far: Reach,
}

impl Knobs {
    fn new(r: &mut Random, far: Reach) -> Self {
        let mut level = |levels: &[usize]| *r.pick(levels);
        Self {
            views: level(&[0, 10, 25, 50]),
            view_results: level(&[0, 0, 5, 15]),
            holes: level(&[0, 0, 10, 30]),
            outputs: level(&[0, 0, 3, 15]),
            input_nodes: level(&[0, 0, 0, 0, 4]),
            pins: level(&[0, 0, 2, 10]),
            rare_ops: level(&[0, 20, 60]),
            weights: level(&[0, 20, 40]),
            caches: level(&[0, 5, 15]),
            same_layout: level(&[30, 70, 95]),
            quantized: level(&[0, 1]) == 1,
            empty: level(&[0, 0, 0, 0, 0, 0, 0, 1]) == 1,
            resident_nodes: level(&[0, 0, 0, 1]) == 1,
            own_buffer_of_views: level(&[0, 0, 1]) == 1,
            external: level(&[0, 1]) == 1,
            odd_leafs: level(&[0, 0, 0, 1]) == 1,
            shuffled: level(&[0, 0, 1]) == 1,
            reach: level(&[3, 8, 40]),
            no_op_nodes: level(&[0, 0, 0, 1]) == 1,
            keep: level(&[0, 0, 1]) == 1,
            far,
        }
    }
}

struct Generator {
    r: Random,
    k: Knobs,
    file: GraphFile,
    shapes: Vec<[u64; 4]>,
    /// Tensors that are sources of later ones: leafs and nodes.
    pool: Vec<u32>,
    listed: Vec<bool>,
}

/// The case of a seed.
pub fn case(seed: u64, far: Reach) -> GraphFile {
    let mut r = Random::new(seed);
    let k = Knobs::new(&mut r, far);
    let file = GraphFile {
        format: "loadmaster-graph".to_owned(),
        version: 1,
        name: format!("seed {seed}"),
        devices: Vec::new(),
        n_copies: if r.one_in(3) { 4 } else { 1 },
        op_offload: r.percent(60),
        buffers: Vec::new(),
        pinned: BTreeMap::new(),
        nodes: Vec::new(),
        leafs: Vec::new(),
        tensors: Vec::new(),
        keep_until: Vec::new(),
        expected: None,
    };
    let mut g = Generator { r, k, file, shapes: Vec::new(), pool: Vec::new(), listed: Vec::new() };
    g.devices();
    g.buffers();
    g.shapes();
    g.graph();
    g.finish()
}

impl Generator {
    fn devices(&mut self) {
        let gpus = *self.r.pick(&[0, 1, 1, 2, 2, 2, 3, 3, 5, 9, 15]);
        let limits = self.r.one_in(4);
        let odd_types = self.r.one_in(4);
        let unsupported = self.r.one_in(3);
        let cpu = BufferType {
            name: "CPU".to_owned(),
            alignment: *self.r.pick(&[32, 32, 32, 64, 1]),
            max_size: (limits && self.r.one_in(3)).then(|| self.limit()),
            host: true,
        };
        for i in 0..gpus {
            let own = BufferType {
                name: format!("SIM{i}"),
                alignment: *self.r.pick(&[128, 128, 128, 256, 64, 32, 1]),
                max_size: (limits && self.r.percent(70)).then(|| self.limit()),
                host: odd_types && self.r.one_in(4),
            };
            let buffer_type = match self.r.below(6) {
                0 if odd_types && i > 0 => self.file.devices[self.r.below(i)].buffer_type.clone(),
                1 if odd_types => cpu.clone(),
                _ => own,
            };
            let mut device =
                Device { name: format!("SIM{i}"), kind: DeviceKind::Gpu, buffer_type, unsupported: vec![] };
            if unsupported && self.r.percent(60) {
                // As BLAS does: a device that takes a few operations only, or all but a few.
                let few = self.r.one_in(3);
                device.unsupported = USUAL
                    .iter()
                    .chain(RARE)
                    .filter(|_| if few { !self.r.one_in(6) } else { self.r.one_in(6) })
                    .map(|&op| op.to_owned())
                    .collect();
            }
            self.file.devices.push(device);
        }
        self.file.devices.push(Device {
            name: "CPU".to_owned(),
            kind: DeviceKind::Cpu,
            buffer_type: cpu,
            unsupported: Vec::new(),
        });
    }

    fn limit(&mut self) -> u64 {
        self.r.between(1, 40) as u64 * 512
    }

    fn buffers(&mut self) {
        let cpu = self.file.devices.len() as u32 - 1;
        let mut kinds: Vec<(String, bool, Vec<u32>)> = Vec::new();
        for device in &self.file.devices {
            let t = &device.buffer_type;
            if kinds.iter().any(|(name, ..)| *name == t.name) {
                continue;
            }
            let sharing = |d: &Device| d.buffer_type.name == t.name || (t.host && d.kind == DeviceKind::Cpu);
            let usable = (0..=cpu).filter(|&d| sharing(&self.file.devices[d as usize])).collect();
            kinds.push((t.name.clone(), t.host, usable));
        }
        if self.r.one_in(3) {
            kinds.push(("CPU_REPACK".to_owned(), false, vec![cpu]));
        }
        if self.r.one_in(3) {
            kinds.push(("CPU_Mapped".to_owned(), true, vec![cpu]));
        }
        if self.r.one_in(4) {
            // Such as pinned host memory, or a split over GPUs: some devices use it in place, and it is nobody's own.
            let usable = (0..=cpu).filter(|_| self.r.one_in(2)).collect::<Vec<_>>();
            let host = usable.contains(&cpu) && self.r.one_in(2);
            if !usable.is_empty() {
                kinds.push(("SHARED".to_owned(), host, usable));
            }
        }
        for (buffer_type, host, usable_by) in kinds {
            for usage in [Usage::Weights, Usage::Any, Usage::Compute] {
                if usage == Usage::Compute && !self.r.one_in(5) {
                    continue;
                }
                let id = self.file.buffers.len() as u32;
                let (buffer_type, usable_by) = (buffer_type.clone(), usable_by.clone());
                self.file.buffers.push(Buffer { id, buffer_type, usage, host, usable_by });
            }
        }
    }

    fn shapes(&mut self) {
        for _ in 0..self.r.between(2, 6) {
            let shape = [
                self.r.between(1, 80) as u64,
                *self.r.pick(&[1, 2, 7, 31, 32, 40, 64]),
                *self.r.pick(&[1, 1, 1, 2, 33]),
                *self.r.pick(&[1, 1, 1, 2]),
            ];
            self.shapes.push(shape);
        }
    }

    /// A type and extents that fill whole blocks.
    fn layout(&mut self) -> (usize, [u64; 4]) {
        let t = if self.k.quantized && self.r.one_in(4) { self.r.between(4, 5) } else { self.r.between(0, 3) };
        let t = if self.r.percent(60) && !self.k.quantized { 0 } else { t };
        let mut ne = *self.r.pick(&self.shapes);
        ne[0] = ne[0].next_multiple_of(TYPES[t].1);
        if self.k.empty && self.r.one_in(12) {
            ne[self.r.below(4)] = 0;
        }
        (t, ne)
    }

    fn tensor(&mut self, op: &str, t: usize, ne: [u64; 4]) -> Tensor {
        let (dtype, block, size) = TYPES[t];
        let row = size * (ne[0] / block);
        let nb = [size, row, row * ne[1], row * ne[1] * ne[2]];
        let id = self.file.tensors.len() as u32;
        Tensor {
            id,
            name: format!("{}{id}", op.to_lowercase()),
            dtype: dtype.to_owned(),
            op: op.to_owned(),
            ne,
            nb,
            src: Vec::new(),
            view_src: None,
            view_offs: None,
            op_params: Vec::new(),
            flags: Vec::new(),
            buffer: None,
            external: false,
            nbytes: nbytes(dtype, &ne, &nb),
            alloc_sizes: None,
        }
    }

    fn push(&mut self, tensor: Tensor, listed: bool) -> u32 {
        let id = tensor.id;
        self.file.tensors.push(tensor);
        self.pool.push(id);
        self.listed.push(listed);
        id
    }

    fn buffer(&mut self, usage: Usage) -> Option<u32> {
        let of = self.file.buffers.iter().filter(|b| b.usage == usage).map(|b| b.id).collect::<Vec<_>>();
        if of.is_empty() { None } else { Some(*self.r.pick(&of)) }
    }

    fn leaf(&mut self) -> u32 {
        let (t, ne) = self.layout();
        let mut leaf = self.tensor("NONE", t, ne);
        let kind = self.r.below(100);
        if kind < self.k.weights {
            leaf.buffer = self.buffer(Usage::Weights);
        } else if kind < self.k.weights + self.k.caches {
            let usage = if self.r.one_in(6) { Usage::Compute } else { Usage::Any };
            leaf.buffer = self.buffer(usage);
        } else if self.k.odd_leafs && self.r.one_in(3) {
            leaf.external = self.r.one_in(4);
        } else {
            leaf.flags.push("input".to_owned());
        }
        if self.k.odd_leafs && self.r.one_in(8) && leaf.flags.is_empty() {
            leaf.flags.push(self.r.pick(&["input", "output"]).to_string());
        }
        if self.r.percent(self.k.outputs) && !leaf.flags.iter().any(|f| f == "output") {
            leaf.flags.push("output".to_owned());
        }
        let listed = !(self.k.odd_leafs && self.r.one_in(10));
        let id = self.push(leaf, listed);
        if listed {
            self.file.leafs.push(id);
        }
        id
    }

    /// A leaf that is a view, as callers make them for parts of a cache.
    fn leaf_view(&mut self) {
        let Some(base) = self.source() else { return };
        let root = self.file.tensors[base as usize].view_src.unwrap_or(base);
        let root = &self.file.tensors[root as usize];
        if self.k.far == Reach::Sound && root.buffer.is_none() && !root.external {
            // ggml releases the root with the first view of this kind, whoever else reads it.
            return;
        }
        let view = self.view_of(base, "NONE");
        let id = self.push(view, true);
        self.file.leafs.push(id);
    }

    fn source(&mut self) -> Option<u32> {
        if self.pool.is_empty() {
            return None;
        }
        let near = self.pool.len().min(self.k.reach);
        let from = if self.r.percent(80) { near } else { self.pool.len() };
        Some(self.pool[self.pool.len() - 1 - self.r.below(from)])
    }

    /// A view of a tensor (or of its root), inside it.
    fn view_of(&mut self, base: u32, op: &str) -> Tensor {
        let b = self.file.tensors[base as usize].clone();
        let t = TYPES.iter().position(|(name, ..)| *name == b.dtype).expect("a type of the table");
        let root = b.view_src.unwrap_or(base);
        // ggml never places a root that is neither listed nor a source.
        if self.k.far == Reach::Sound && !self.listed[root as usize] {
            self.listed[root as usize] = true;
            self.file.leafs.push(root);
        }
        let mut view = self.tensor(op, t, b.ne);
        view.nb = b.nb;
        view.view_src = Some(root);
        let mut offset = b.view_offs.unwrap_or(0);
        match op {
            "PERMUTE" | "TRANSPOSE" if TYPES[t].1 == 1 => {
                let (i, j) = if op == "TRANSPOSE" { (0, 1) } else { (self.r.below(4), self.r.below(4)) };
                view.ne.swap(i, j);
                view.nb.swap(i, j);
            }
            "VIEW" | "NONE" => {
                // Fewer rows, beginning later.
                let dim = self.r.between(1, 3);
                let keep = self.r.between(usize::from(b.ne[dim] > 0), b.ne[dim] as usize) as u64;
                let skip = self.r.between(0, (b.ne[dim] - keep) as usize) as u64;
                view.ne[dim] = keep;
                offset += skip * b.nb[dim];
            }
            _ => {}
        }
        view.view_offs = Some(offset);
        view.nbytes = nbytes(&view.dtype, &view.ne, &view.nb);
        self.give_buffer(&mut view);
        view
    }

    /// Marks a view of something in memory as such, in the ways that callers do.
    fn give_buffer(&mut self, view: &mut Tensor) {
        let root = &self.file.tensors[view.view_src.expect("a view") as usize];
        let (buffer, in_memory) = (root.buffer, root.buffer.is_some() || root.external);
        if self.k.own_buffer_of_views && self.r.one_in(2) {
            view.buffer = buffer;
        } else if self.k.external && in_memory {
            view.external = true;
        }
    }

    fn node(&mut self) {
        let Some(first) = self.source() else { return };
        // With view operations alone, ggml's only split gets the device of whatever it split before.
        let alone = self.k.far == Reach::Sound && self.file.nodes.is_empty();
        let view_op = self.r.percent(self.k.views) && !alone;
        let op = match () {
            () if view_op => *self.r.pick(VIEWS),
            () if self.k.no_op_nodes && self.r.one_in(12) => "NONE",
            () if self.r.percent(self.k.rare_ops) => *self.r.pick(RARE),
            () => *self.r.pick(USUAL),
        };
        // ggml does not count a view without operation, and then frees its root too early.
        let may_view = op != "NONE" || self.k.far == Reach::Everything;
        let mut node = if view_op || (may_view && self.r.percent(self.k.view_results)) {
            let mut view = self.view_of(first, if view_op { op } else { "RESULT" });
            view.op = op.to_owned();
            view
        } else if self.r.percent(self.k.same_layout) {
            let (t, ne) = self.layout_of(first);
            self.tensor(op, t, ne)
        } else {
            let (t, ne) = self.layout();
            self.tensor(op, t, ne)
        };
        node.src = self.sources(first, view_op);
        node.op_params = family_number(op).into_iter().collect();
        self.mark(&mut node);
        let id = self.push(node, true);
        self.file.nodes.push(id);
    }

    /// The layout of a tensor if that is a contiguous one.
    fn layout_of(&mut self, id: u32) -> (usize, [u64; 4]) {
        let tensor = &self.file.tensors[id as usize];
        let t = TYPES.iter().position(|(name, ..)| *name == tensor.dtype).expect("a type of the table");
        let ne = tensor.ne;
        if ne[0] % TYPES[t].1 != 0 { self.layout() } else { (t, ne) }
    }

    fn sources(&mut self, first: u32, view_op: bool) -> Vec<Option<u32>> {
        let mut src = vec![Some(first)];
        let more = if view_op { 0 } else { *self.r.pick(&[0, 0, 1, 1, 1, 1, 2, 3, 9]) };
        for _ in 0..more {
            let source = if self.r.one_in(15) { Some(first) } else { self.source() };
            src.push(source);
        }
        if self.r.one_in(2) {
            let last = src.len() - 1;
            src.swap(0, last);
        }
        if view_op && !self.r.one_in(20) {
            return src;
        }
        for s in &mut src {
            if self.r.percent(self.k.holes) {
                *s = None;
            }
        }
        // An operand list does not end in a hole.
        while src.last() == Some(&None) {
            src.pop();
        }
        src
    }

    fn mark(&mut self, node: &mut Tensor) {
        if self.r.percent(self.k.outputs) {
            node.flags.push("output".to_owned());
        }
        // ggml counts uses while it places input nodes, so an in-place operation may take what is still read.
        let sound = node.view_src.is_some() || self.k.far == Reach::Everything || !in_place(&node.op);
        if self.r.percent(self.k.input_nodes) && sound {
            node.flags.push("input".to_owned());
        }
        if self.k.resident_nodes && node.view_src.is_none() && self.r.one_in(8) {
            let usage = *self.r.pick(&[Usage::Any, Usage::Any, Usage::Weights]);
            node.buffer = self.buffer(usage);
            node.external = node.buffer.is_none() && self.r.one_in(2);
        }
    }

    fn graph(&mut self) {
        let nodes = match self.r.below(100) {
            0..60 => self.r.between(1, 14),
            60..95 => self.r.between(10, 120),
            _ => self.r.between(100, 900),
        };
        for _ in 0..self.r.between(1, 5) {
            self.leaf();
        }
        for _ in 0..nodes {
            if self.r.percent(25) {
                self.leaf();
            }
            if self.k.odd_leafs && self.r.one_in(15) {
                self.leaf_view();
            }
            self.node();
        }
    }

    fn finish(mut self) -> GraphFile {
        self.use_plain_leafs();
        for id in self.file.nodes.iter().chain(&self.file.leafs) {
            // A view that is pinned away from its root may be copied before the root is computed, by ggml as well.
            if self.k.far == Reach::Sound && self.file.tensors[*id as usize].view_src.is_some() {
                continue;
            }
            let device = self.r.below(self.file.devices.len());
            // ggml moves a pinned node to a higher device with the same buffer type (rule 1.1 says it stays).
            let name = &self.file.devices[device].buffer_type.name;
            let shared = self.file.devices[..device].iter().any(|d| d.buffer_type.name == *name);
            if self.r.percent(self.k.pins) && (!shared || self.k.far == Reach::Everything) {
                self.file.pinned.insert(*id, device as u32);
            }
        }
        if self.k.shuffled {
            self.shuffle();
        }
        if self.k.keep {
            self.keep();
        }
        set_alloc_sizes(&mut self.file);
        self.file
    }

    /// Wishes of back ends: earlier tensors that are needed longer.
    fn keep(&mut self) {
        for (i, &until) in self.file.nodes.iter().enumerate() {
            if !self.r.one_in(6) {
                continue;
            }
            let mut kept = Vec::new();
            for _ in 0..*self.r.pick(&[1, 1, 2, 12]) {
                let back = self.r.below((i + 1).min(12));
                let node = self.file.nodes[i - back];
                let src = self.file.tensors[node as usize].src.iter().flatten().copied().collect::<Vec<_>>();
                kept.push(if src.is_empty() || self.r.one_in(2) { node } else { *self.r.pick(&src) });
            }
            kept.sort_unstable();
            kept.dedup();
            self.file.keep_until.extend(kept.into_iter().map(|t| (t, until)));
        }
    }

    /// Gives leafs without buffer that no operation reads to the caller: ggml finds no device for them and aborts.
    fn use_plain_leafs(&mut self) {
        let mut read = vec![false; self.file.tensors.len()];
        let computes = |t: &&Tensor| !VIEWS.contains(&t.op.as_str()) && t.op != "NONE";
        for t in self.file.tensors.iter().filter(computes) {
            t.src.iter().flatten().for_each(|&s| read[s as usize] = true);
        }
        for t in &mut self.file.tensors {
            let plain = t.op == "NONE" && t.buffer.is_none() && t.view_src.is_none();
            if plain && !read[t.id as usize] && !t.flags.iter().any(|f| f == "input") {
                t.flags.push("input".to_owned());
            }
        }
    }

    /// Another order of the nodes that respects sources and roots, and of the leafs.
    fn shuffle(&mut self) {
        let mut waiting = std::mem::take(&mut self.file.nodes);
        let mut done = vec![true; self.file.tensors.len()];
        waiting.iter().for_each(|&n| done[n as usize] = false);
        while !waiting.is_empty() {
            let window = waiting.len().min(6);
            let ready = |&i: &usize| {
                let t = &self.file.tensors[waiting[i] as usize];
                t.src.iter().flatten().chain(&t.view_src).all(|&s| done[s as usize])
            };
            let ready = (0..window).filter(ready).collect::<Vec<_>>();
            let next = waiting.remove(*self.r.pick(&ready));
            done[next as usize] = true;
            self.file.nodes.push(next);
        }
        for i in (1..self.file.leafs.len()).rev() {
            let j = self.r.below(i + 1);
            self.file.leafs.swap(i, j);
        }
    }
}

/// ggml's size of a tensor.
fn nbytes(dtype: &str, ne: &[u64; 4], nb: &[u64; 4]) -> u64 {
    if ne.contains(&0) {
        return 0;
    }
    let &(_, block, size) = TYPES.iter().find(|(name, ..)| *name == dtype).expect("a type of the table");
    let (first, outer) = if block == 1 { (size, 0) } else { (ne[0] * nb[0] / block, 1) };
    (outer..4).fold(first, |sum, i| sum + (ne[i] - 1) * nb[i])
}

/// Whether ggml may compute an operation in place.
fn in_place(op: &str) -> bool {
    crate::world::op_number(op).is_ok_and(|op| unsafe { crate::ffi::ggml_op_can_inplace(op.0 as i32) })
}

/// The number of an operation in its family, which ggml keeps as the first parameter.
fn family_number(op: &str) -> Option<i64> {
    crate::world::op_number(op).ok().and_then(|op| op.1).map(i64::from)
}

/// Notes where a device takes more than the tensor's own size.
pub fn set_alloc_sizes(file: &mut GraphFile) {
    let padded = file.devices.iter().map(|d| d.kind == DeviceKind::Gpu && !d.buffer_type.host).collect::<Vec<_>>();
    for t in &mut file.tensors {
        let &(_, block, size) = TYPES.iter().find(|(name, ..)| *name == t.dtype).expect("a type of the table");
        let rest = t.ne[0] % 512;
        t.alloc_sizes = (block > 1 && rest != 0 && padded.contains(&true)).then(|| {
            let padding = (512 - rest) / block * size;
            padded.iter().map(|&p| t.nbytes + if p { padding } else { 0 }).collect()
        });
    }
}

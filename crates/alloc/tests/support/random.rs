//! Random graphs, lowered over random devices. Every kind of thing may be switched off, so that the others meet more
//! often. Equal seed, equal world.

use super::device::TestType;
use loadmaster_alloc::{AllocGraph, ArenaId, Arenas, BufferIds, BufferType, ItemId};
use loadmaster_graph::{
    Bytes, DType, DeviceId, Dims, Flags, Graph, IdVec, Op, OpParams, Sources, Step, Tensor, TensorId, View,
    contiguous_strides,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// SplitMix64.
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def0)
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Kinds of things that a world may have.
struct Kinds {
    views: bool,
    writes: bool,
    holes: bool,
    empty: bool,
    limits: bool,
    shared: bool,
    copies: bool,
    pipeline: bool,
    unlisted: bool,
    extra: bool,
}

impl Kinds {
    fn random(rng: &mut Rng) -> Self {
        let mut on = || rng.chance(60);
        Self {
            views: on(),
            writes: on(),
            holes: on(),
            empty: on(),
            limits: on(),
            shared: on(),
            copies: on(),
            pipeline: on(),
            unlisted: on(),
            extra: on(),
        }
    }
}

/// A graph with devices.
pub struct World {
    pub graph: Graph,
    pub memory: Vec<bool>,
    pub arenas: Arenas,
    seed: u64,
    kinds: Kinds,
}

/// A lowered graph with its ids.
pub struct LoweredWorld<'w> {
    pub graph: AllocGraph<'w>,
    pub nodes: Vec<ArenaId>,
    pub leafs: Vec<ArenaId>,
}

impl LoweredWorld<'_> {
    pub fn ids(&self) -> BufferIds<'_> {
        BufferIds::Each { nodes: &self.nodes, leafs: &self.leafs }
    }
}

const SHAPES: [Dims; 7] =
    [[8, 4, 1, 1], [16, 2, 1, 1], [32, 1, 1, 1], [4, 4, 2, 1], [64, 3, 1, 1], [5, 1, 1, 1], [96, 2, 1, 1]];
const UNARY: [Op; 6] = [Op::Silu, Op::RmsNorm, Op::Scale, Op::Rope, Op::SoftMax, Op::Cont];
const BINARY: [Op; 4] = [Op::Add, Op::Mul, Op::Sub, Op::AddId];
const GLU: [Op; 2] = [Op::Swiglu, Op::Geglu];
const PRODUCT: [Op; 3] = [Op::MulMat, Op::GetRows, Op::Concat];

impl World {
    pub fn new(seed: u64, size: usize) -> Self {
        let mut rng = Rng::new(seed);
        let kinds = Kinds::random(&mut rng);
        let mut making =
            Making { rng, kinds, tensors: IdVec::new(), memory: Vec::new(), nodes: IdVec::new(), leafs: IdVec::new() };
        making.add_leafs(2 + size / 8);
        for _ in 0..size {
            making.add_node();
        }
        let arenas = making.arenas();
        let graph = Graph::new("random", making.tensors, making.nodes, making.leafs).unwrap();
        Self { graph, memory: making.memory, arenas, seed, kinds: making.kinds }
    }

    /// Nothing is copied within one kind of memory: both devices can read it in place.
    fn same_memory(&self, a: usize, b: usize) -> bool {
        self.arenas.home(ArenaId::new(a)) == self.arenas.home(ArenaId::new(b))
    }

    /// Assigns the nodes to arenas in runs, and copies sources from other arenas now and then.
    pub fn lowered(&self) -> LoweredWorld<'_> {
        let mut rng = Rng::new(self.seed ^ 0xabcd);
        let arena_count = self.arenas.len();
        let graph = AllocGraph::overlay(&self.graph, |t| self.memory[t.index()]);
        let mut lowered = LoweredWorld { graph, nodes: Vec::new(), leafs: Vec::new() };
        let mut copies = BTreeMap::new();
        let mut arena_of: BTreeMap<TensorId, usize> = BTreeMap::new();
        let mut arena = rng.below(arena_count);
        for &leaf in self.graph.leafs().values() {
            let here = rng.below(arena_count);
            arena_of.insert(leaf, here);
            lowered.graph.push_leaf(ItemId::of(leaf));
            lowered.leafs.push(ArenaId::new(here));
        }
        let mut run = 0;
        for &node in self.graph.nodes().values() {
            if rng.chance(15) {
                arena = rng.below(arena_count);
                lowered.close_run(&mut run);
            }
            for (operand, source) in self.graph.tensor(node).src.iter().enumerate() {
                let Some(source) = *source else { continue };
                // A view is where its root is.
                let (root, _) = root_and_offset(&self.graph.tensors()[source], source);
                let there = *arena_of.entry(root).or_insert(arena);
                if !self.kinds.copies || self.same_memory(there, arena) || source == node {
                    continue;
                }
                let copy = *copies.entry((source, arena)).or_insert_with(|| {
                    lowered.close_run(&mut run);
                    lowered.copy(source, there, arena, self.kinds.pipeline)
                });
                lowered.graph.set_source(ItemId::of(node), operand, copy);
                run = run.max(lowered.nodes.len().saturating_sub(1));
                if lowered.graph.nodes().last() == Some(&copy) {
                    run = lowered.nodes.len();
                }
            }
            arena_of.insert(node, arena);
            lowered.graph.push_node(ItemId::of(node));
            lowered.nodes.push(ArenaId::new(arena));
        }
        lowered.close_run(&mut run);
        lowered
    }
}

impl LoweredWorld<'_> {
    /// Marks what stands since `run` as a group and begins the next one.
    fn close_run(&mut self, run: &mut usize) {
        if *run < self.nodes.len() {
            self.graph.add_group(Step(*run as u32)..Step(self.nodes.len() as u32));
        }
        *run = self.nodes.len();
    }

    fn copy(&mut self, of: TensorId, from: usize, to: usize, pipeline: bool) -> ItemId {
        let flags = if pipeline { Flags::INPUT.with(Flags::OUTPUT) } else { Flags::NONE };
        let keep = self.graph.add_keep(of);
        self.graph.push_node(keep);
        self.nodes.push(ArenaId::new(from));
        let copy = self.graph.add_copy(of, DeviceId::new(to), 0, flags);
        if pipeline {
            self.graph.push_leaf(copy);
            self.leafs.push(ArenaId::new(to));
        }
        self.graph.push_node(copy);
        self.nodes.push(ArenaId::new(to));
        copy
    }
}

fn root_and_offset(tensor: &Tensor, id: TensorId) -> (TensorId, Bytes) {
    tensor.view.map_or((id, Bytes::ZERO), |v| (v.root, v.offset))
}

struct Making {
    rng: Rng,
    kinds: Kinds,
    tensors: IdVec<TensorId, Tensor>,
    memory: Vec<bool>,
    nodes: IdVec<loadmaster_graph::NodeId, TensorId>,
    leafs: IdVec<loadmaster_graph::LeafId, TensorId>,
}

impl Making {
    fn arenas(&mut self) -> Arenas {
        let count = 1 + self.rng.below(4);
        let mut types: Vec<Arc<dyn BufferType>> = Vec::new();
        for i in 0..count {
            if self.kinds.shared && i > 0 && self.rng.chance(40) {
                let known = self.rng.below(i);
                types.push(Arc::clone(&types[known]));
                continue;
            }
            let mut kind = TestType::new(&format!("mem{i}"), self.rng.pick(&[1, 32, 128]));
            if self.kinds.limits && self.rng.chance(60) {
                kind.max_size = Some(Bytes(self.rng.pick(&[256, 700, 2048])));
            }
            if self.kinds.extra {
                kind.extra = Bytes(48);
            }
            types.push(Arc::new(kind));
        }
        Arenas::new(types)
    }

    fn add_leafs(&mut self, count: usize) {
        for _ in 0..count {
            let mut leaf = self.fresh(None);
            let memory = self.rng.chance(40);
            if !memory && self.rng.chance(60) {
                leaf.flags = Flags::INPUT;
            }
            let id = self.push(leaf, memory);
            if !self.kinds.unlisted || self.rng.chance(85) {
                self.leafs.push(id);
            }
        }
    }

    fn push(&mut self, tensor: Tensor, memory: bool) -> TensorId {
        self.memory.push(memory);
        self.tensors.push(tensor)
    }

    fn fresh(&mut self, ne: Option<Dims>) -> Tensor {
        let mut ne = ne.unwrap_or_else(|| self.rng.pick(&SHAPES));
        if self.kinds.empty && self.rng.chance(4) {
            ne[1] = 0;
        }
        Tensor::leaf(format!("x{}", self.tensors.len()), self.rng.pick(&[DType::F32, DType::F32, DType::F16]), ne)
            .unwrap()
    }

    fn source(&mut self) -> TensorId {
        let count = self.tensors.len();
        let from = if self.rng.chance(70) { count.saturating_sub(6) } else { 0 };
        TensorId::new(from + self.rng.below(count - from))
    }

    /// A source of the same shape, if a few tries find one.
    fn alike(&mut self, like: TensorId) -> Option<TensorId> {
        let fits = |this: &Self, id: TensorId| this.tensors[id].same_layout(&this.tensors[like]);
        (0..6).map(|_| self.source()).collect::<Vec<_>>().into_iter().find(|&id| fits(self, id))
    }

    fn add_node(&mut self) {
        let kind = self.rng.below(10);
        let first = self.source();
        let node = match kind {
            0..=2 => {
                let op = self.rng.pick(&UNARY);
                self.result_like(op, first, &[Some(first)])
            }
            3..=4 => {
                let second = self.alike(first).unwrap_or(first);
                let op = self.rng.pick(&BINARY);
                self.result_like(op, first, &[Some(first), Some(second)])
            }
            5 => {
                let second = self.alike(first).unwrap_or(first);
                let op = self.rng.pick(&GLU);
                self.result_like(op, first, &[Some(first), Some(second)])
            }
            6..=7 if self.kinds.views => self.view(first),
            8 if self.kinds.writes => self.write(first),
            _ => {
                let second = self.source();
                let mut node = self.fresh(None);
                node.op = self.rng.pick(&PRODUCT);
                node.src = Sources::from_slice(&[Some(first), Some(second)]);
                node
            }
        };
        let mut node = node;
        if self.kinds.holes && self.rng.chance(20) {
            node.src.insert(self.rng.below(node.src.len() + 1), None);
        }
        if node.view.is_none() && self.rng.chance(5) {
            node.flags = Flags::OUTPUT;
        }
        let memory = node.view.is_some_and(|v| self.memory[v.root.index()]);
        let id = self.push(node, memory);
        self.nodes.push(id);
    }

    fn result_like(&mut self, op: Op, like: TensorId, src: &[Option<TensorId>]) -> Tensor {
        let (dtype, ne) = (self.tensors[like].dtype, self.tensors[like].ne);
        let mut node = Tensor::leaf(format!("n{}", self.tensors.len()), dtype, ne).unwrap();
        node.op = op;
        node.src = Sources::from_slice(src);
        node
    }

    fn view(&mut self, of: TensorId) -> Tensor {
        let (root, offset) = root_and_offset(&self.tensors[of], of);
        let t = self.tensors[of].clone();
        let mut node = Tensor {
            name: format!("v{}", self.tensors.len()).into(),
            op: Op::View,
            params: OpParams::new(),
            src: Sources::from_slice(&[Some(of)]),
            view: Some(View { root, offset }),
            flags: Flags::NONE,
            ..t.clone()
        };
        let same_count = SHAPES.iter().copied().filter(|ne| ne.iter().product::<u64>() == t.elements());
        let shapes: Vec<Dims> = same_count.collect();
        match self.rng.below(3) {
            0 if t.is_contiguous() && !shapes.is_empty() => {
                node.op = Op::Reshape;
                node.ne = self.rng.pick(&shapes);
                node.nb = contiguous_strides(t.dtype, &node.ne).unwrap();
            }
            1 if t.ne[1] > 1 => {
                node.ne[1] -= 1;
                node.view =
                    Some(View { root, offset: Bytes(offset.get() + if self.rng.chance(50) { t.nb[1] } else { 0 }) });
            }
            2 => {
                node.op = Op::Permute;
                node.ne.swap(1, 2);
                node.nb.swap(1, 2);
            }
            _ => {}
        }
        node
    }

    /// A result that lies in an existing tensor: SET_ROWS, CPY, or SCALE in place.
    fn write(&mut self, value: TensorId) -> Tensor {
        let into = self.source();
        let (root, offset) = root_and_offset(&self.tensors[into], into);
        let op = self.rng.pick(&[Op::SetRows, Op::Cpy, Op::Scale]);
        let src: &[Option<TensorId>] = if op == Op::Scale { &[Some(into)] } else { &[Some(value), Some(into)] };
        Tensor {
            name: format!("w{}", self.tensors.len()).into(),
            op,
            src: Sources::from_slice(src),
            view: Some(View { root, offset }),
            flags: Flags::NONE,
            ..self.tensors[into].clone()
        }
    }
}

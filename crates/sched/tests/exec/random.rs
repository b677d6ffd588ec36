//! Random models that compute something: matrix products, norms, gates, caches, experts, views, in random order.

use crate::world::{Inputs, Model, Random};
use loadmaster_graph::{Bytes, DType, GraphBuilder, Op, TensorId};
use loadmaster_sched::Usage;
use std::collections::BTreeMap;

/// Rows of the cache.
const CACHE: u64 = 16;
/// Experts, and how many a token uses.
const EXPERTS: u64 = 6;
const USED: u64 = 2;

pub struct Maker {
    pub builder: GraphBuilder,
    pub random: Random,
    tokens: u64,
    weights: BTreeMap<TensorId, (Vec<u8>, Usage)>,
    pinned: BTreeMap<TensorId, usize>,
    /// Activations `[32, tokens]` and `[64, tokens]`.
    live: [Vec<TensorId>; 2],
    rows: TensorId,
}

/// Width of an activation of a kind.
fn width(kind: usize) -> u64 {
    32 << kind
}

impl Maker {
    pub fn new(seed: u64, tokens: u64) -> Self {
        let mut builder = GraphBuilder::new();
        let rows = builder.leaf("rows", DType::I64, &[tokens]).unwrap();
        builder.set_input(rows).unwrap();
        Self {
            builder,
            random: Random(seed),
            tokens,
            weights: BTreeMap::new(),
            pinned: BTreeMap::new(),
            live: [Vec::new(), Vec::new()],
            rows,
        }
    }

    pub fn input(&mut self, kind: usize) {
        let x = self.builder.leaf("x", DType::F32, &[width(kind), self.tokens]).unwrap();
        self.builder.set_input(x).unwrap();
        self.live[kind].push(x);
    }

    fn weight(&mut self, ne: &[u64], usage: Usage) -> TensorId {
        let dtype = if usage == Usage::Weights && self.random.one_in(2) { DType::Q8_0 } else { DType::F32 };
        let id = self.builder.leaf("weight", dtype, ne).unwrap();
        let elements: u64 = ne.iter().product();
        let bytes = match dtype {
            DType::F32 => self.random.floats(elements),
            _ => (0..elements / 32).flat_map(|_| self.block()).collect(),
        };
        self.weights.insert(id, (bytes, usage));
        id
    }

    /// A block of Q8_0 with a scale of 1/128.
    fn block(&mut self) -> Vec<u8> {
        let mut block = 0x2000_u16.to_le_bytes().to_vec();
        block.extend((0..32).map(|_| self.random.next() as u8));
        block
    }

    fn any(&mut self, kind: usize) -> TensorId {
        let recent = self.live[kind].len().min(6);
        let from = self.live[kind].len() - recent;
        self.live[kind][from + self.random.below(recent)]
    }

    /// One more activation.
    pub fn step(&mut self) {
        let kind = self.random.below(2);
        if self.live[kind].is_empty() {
            let x = self.any(1 - kind);
            let made = self.product(x, kind);
            self.live[kind].push(made);
            return;
        }
        let x = self.any(kind);
        let (made, of) = match self.random.below(12) {
            0 => (self.builder.rms_norm(x, 1e-5).unwrap(), kind),
            1 => {
                let y = self.any(kind);
                (self.builder.add(x, y).unwrap(), kind)
            }
            2 => {
                let y = self.any(kind);
                (self.builder.swiglu_split(x, y).unwrap(), kind)
            }
            3 => (self.builder.unary(Op::Silu, x).unwrap(), kind),
            4 => (self.builder.scale(x, 0.5).unwrap(), kind),
            5 => (self.first_half(x, kind), 0),
            6 => {
                let y = self.any(kind);
                (self.doubled(x, y, kind), 1)
            }
            7 => (self.through_cache(x, kind), kind),
            8 => (self.through_experts(x, kind), kind),
            9 => (self.turned(x, kind), kind),
            _ => {
                let to = self.random.below(2);
                (self.product(x, to), to)
            }
        };
        // A view stays with its root: what it shows is computed there.
        let is_view = self.builder.tensor(made).unwrap().is_view();
        if self.random.one_in(5) && !is_view {
            self.pinned.insert(made, self.random.below(4));
        }
        let made = if self.random.one_in(3) { self.builder.rms_norm(made, 1e-5).unwrap() } else { made };
        self.live[of].push(made);
    }

    fn product(&mut self, x: TensorId, to: usize) -> TensorId {
        let from = self.builder.tensor(x).unwrap().ne[0];
        let w = self.weight(&[from, width(to)], Usage::Weights);
        let product = self.builder.mul_mat(w, x).unwrap();
        self.builder.rms_norm(product, 1e-5).unwrap()
    }

    fn first_half(&mut self, x: TensorId, kind: usize) -> TensorId {
        if kind == 0 {
            return self.builder.scale(x, 0.25).unwrap();
        }
        let strides = [Bytes(width(1) * 4)];
        let offset = Bytes(if self.random.one_in(2) { 0 } else { width(0) * 4 });
        let half = self.builder.view(x, &[width(0), self.tokens], &strides, offset).unwrap();
        self.builder.cont(half).unwrap()
    }

    fn doubled(&mut self, x: TensorId, y: TensorId, kind: usize) -> TensorId {
        if kind == 1 {
            return self.builder.mul(x, y).unwrap();
        }
        self.builder.concat(x, y, 0).unwrap()
    }

    /// Stores rows in a cache and reads others of it.
    fn through_cache(&mut self, x: TensorId, kind: usize) -> TensorId {
        let cache = self.weight(&[width(kind), CACHE], Usage::Any);
        let stored = self.builder.set_rows(cache, x, self.rows).unwrap();
        self.builder.expand(stored).unwrap();
        let strides = [Bytes(width(kind) * 4)];
        let start = Bytes(self.random.below((CACHE - self.tokens) as usize + 1) as u64 * width(kind) * 4);
        let seen = self.builder.view(stored, &[width(kind), self.tokens], &strides, start).unwrap();
        self.builder.add(x, seen).unwrap()
    }

    fn through_experts(&mut self, x: TensorId, kind: usize) -> TensorId {
        let gate = self.weight(&[width(kind), EXPERTS], Usage::Weights);
        let logits = self.builder.mul_mat(gate, x).unwrap();
        let ids = self.builder.argsort_top_k(logits, USED).unwrap();
        let experts = self.weight(&[width(kind), width(kind), EXPERTS], Usage::Weights);
        let rows = self.builder.reshape(x, &[width(kind), 1, self.tokens]).unwrap();
        let all = self.builder.mul_mat_id(experts, rows, ids).unwrap();
        let strides = [Bytes(width(kind) * 4 * USED)];
        let mut part = |i: u64| {
            let offset = Bytes(i * width(kind) * 4);
            self.builder.view(all, &[width(kind), self.tokens], &strides, offset).unwrap()
        };
        let (first, second) = (part(0), part(1));
        let sum = self.builder.add(first, second).unwrap();
        self.builder.rms_norm(sum, 1e-5).unwrap()
    }

    fn turned(&mut self, x: TensorId, kind: usize) -> TensorId {
        let turned = self.builder.transpose(x).unwrap();
        let turned = self.builder.cont(turned).unwrap();
        let turned = self.builder.scale(turned, 2.0).unwrap();
        self.builder.reshape(turned, &[width(kind), self.tokens]).unwrap()
    }

    pub fn finish(mut self) -> Model {
        let mut outputs = Vec::new();
        for kind in 0..2 {
            for _ in 0..2 {
                if self.live[kind].is_empty() {
                    continue;
                }
                let x = self.any(kind);
                let output = self.builder.scale(x, 1.5).unwrap();
                self.builder.set_output(output).unwrap();
                self.builder.expand(output).unwrap();
                outputs.push(output);
            }
        }
        let graph = self.builder.finish("random").unwrap();
        let made = |t: &TensorId| graph.nodes().values().any(|n| n == t);
        self.pinned.retain(|t, _| made(t));
        let used = |t: &TensorId| graph.leafs().values().any(|l| l == t);
        self.weights.retain(|t, _| used(t));
        Model { graph, weights: self.weights, pinned: self.pinned, outputs }
    }
}

/// A random model of about `nodes` activations.
pub fn model(seed: u64, nodes: usize) -> Model {
    let mut maker = Maker::new(seed, 3 + seed % 3);
    maker.input(0);
    maker.input((seed % 2) as usize);
    (0..nodes).for_each(|_| maker.step());
    maker.finish()
}

/// Inputs for one run.
pub fn inputs(model: &Model, seed: u64) -> Inputs {
    let mut random = Random(seed ^ 0xabcd);
    let leafs = model.graph.leafs().values().filter(|t| !model.weights.contains_key(t));
    let mut bytes = |t: &TensorId| {
        let tensor = model.graph.tensor(*t);
        match tensor.dtype {
            DType::F32 => random.floats(tensor.elements()),
            _ => {
                // Distinct rows: which of two rows for one place stays is nobody's promise.
                let first = random.below(CACHE as usize) as u64;
                (0..tensor.elements()).flat_map(|i| ((first + 3 * i) % CACHE).to_le_bytes()).collect()
            }
        }
    };
    leafs.map(|t| (*t, bytes(t))).collect()
}

//! Random cases. Whole kinds of thing are switched on or off per case, so that rare combinations meet.
//!
//! Shapes follow from sources only where planning looks at them (views, layouts of in-place operations): neither
//! ggml's planner nor loadmaster's asks whether an operation makes sense.

mod finish;
mod machine;
mod nodes;
mod ops;
mod tensors;

use crate::file::{DeviceKind, GraphFile};
use crate::random::Random;
use ops::TYPES;
use std::collections::BTreeMap;

/// How far cases go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reach {
    /// What ggml plans by rules: loadmaster must agree to the byte.
    #[default]
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

//! Random machines and graphs, equal for equal seeds.

use super::{Sketch, dev, parts};
use loadmaster_graph::{Bytes, DType, Flags, Op, Tensor, TensorId};
use loadmaster_sched::machine::PoolKind;
use loadmaster_sched::{DeviceSet, Machine, OpSet, ResidentBuffer, Usage};

/// SplitMix64.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Kinds of things that a family of seeds leaves out, so that the others meet more often.
#[derive(Clone, Copy, Debug)]
pub struct Switches {
    pub views: bool,
    pub caches: bool,
    pub pins: bool,
    pub unsupported: bool,
    pub shared_types: bool,
    pub chunks: bool,
}

impl Switches {
    pub fn of(bits: u64) -> Self {
        let on = |bit: u32| bits >> bit & 1 == 0;
        Self { views: on(0), caches: on(1), pins: on(2), unsupported: on(3), shared_types: on(4), chunks: on(5) }
    }
}

const OPS: [Op; 12] = [
    Op::Add,
    Op::Mul,
    Op::MulMat,
    Op::Silu,
    Op::Swiglu,
    Op::RmsNorm,
    Op::Rope,
    Op::GetRows,
    Op::Concat,
    Op::SoftMax,
    Op::FlashAttnExt,
    Op::Cont,
];

pub fn random_machine(rng: &mut Rng, on: Switches) -> Machine {
    let gpus = if rng.one_in(12) { 60 + rng.below(20) } else { rng.below(6) };
    let mut parts = parts(gpus);
    for i in 0..gpus {
        if on.unsupported && rng.one_in(2) {
            let missing = OPS.into_iter().filter(|_| rng.one_in(4));
            parts.devices[dev(i)].ops = missing.fold(OpSet::all(), OpSet::without);
        }
        let own = parts.devices[dev(i)].buffer_type;
        if on.chunks && rng.one_in(3) {
            parts.buffer_types[own].max_size = Some(Bytes(4096 << rng.below(4)));
        }
        if on.shared_types && i > 0 && rng.one_in(3) {
            share(&mut parts, i, rng.below(i));
        } else if rng.one_in(5) {
            // Another device reads this one's memory directly.
            parts.buffer_types[own].usable_by.insert(dev(rng.below(gpus + 1)));
        }
        if rng.one_in(6) {
            parts.devices[dev(i)].offload_min_batch = None;
        }
    }
    if on.shared_types && gpus > 0 && rng.one_in(6) {
        let first = parts.devices[dev(0)].buffer_type;
        parts.pools[parts.buffer_types[first].pool].kind = PoolKind::Unified;
        parts.buffer_types[first].host = true;
        share(&mut parts, gpus, 0);
    }
    Machine::new(parts).unwrap()
}

/// Lets a device compute in another's memory.
fn share(parts: &mut loadmaster_sched::MachineParts, device: usize, with: usize) {
    let shared = parts.devices[dev(with)].buffer_type;
    parts.devices[dev(device)].buffer_type = shared;
    parts.devices[dev(device)].pools = vec![parts.buffer_types[shared].pool];
    parts.buffer_types[shared].usable_by.insert(dev(device));
}

pub fn random_graph(rng: &mut Rng, machine: &Machine, on: Switches, nodes: usize) -> Sketch {
    let mut s = Sketch::default();
    let devices = machine.devices().len();
    let mut buffers = Vec::new();
    for _ in 0..1 + rng.below(6) {
        let usage = if rng.one_in(3) { Usage::Any } else { Usage::Weights };
        buffers.push(s.buffer(machine, rng.below(devices), usage));
    }
    let mut known: Vec<TensorId> = Vec::new();
    let mut caches = Vec::new();
    for i in 0..2 + rng.below(12) {
        let buffer = Some(rng.pick(&buffers));
        match rng.below(4) {
            0 => known.push(s.input(&format!("input{i}"))),
            1 if on.caches => caches.push(s.leaf(&format!("cache{i}"), buffer)),
            2 if rng.one_in(4) => known.push(s.leaf(&format!("loose{i}"), None)),
            _ => known.push(s.leaf(&format!("weight{i}"), buffer)),
        }
    }
    if known.is_empty() {
        known.push(s.input("input"));
    }
    for _ in 0..nodes {
        let node = random_node(rng, &mut s, on, &known, &caches);
        known.push(node);
        // A view that is pinned away from its root would be copied before the root is computed: the reference's rules
        // have no place for that, and the checker says so.
        if on.pins && rng.one_in(20) && !s.tensors[node].op.is_view() {
            s.pin(node, rng.below(devices));
        }
    }
    s
}

fn recent(rng: &mut Rng, known: &[TensorId]) -> TensorId {
    let window = if rng.one_in(3) { known.len() } else { known.len().min(6) };
    known[known.len() - 1 - rng.below(window)]
}

fn random_node(rng: &mut Rng, s: &mut Sketch, on: Switches, known: &[TensorId], caches: &[TensorId]) -> TensorId {
    let source = recent(rng, known);
    if !caches.is_empty() && rng.one_in(6) {
        let cache = rng.pick(caches);
        return s.view(Op::SetRows, cache, &[source, cache]);
    }
    if on.views && rng.one_in(4) {
        let op = rng.pick(&[Op::View, Op::Reshape, Op::Permute]);
        return s.view(op, source, &[source]);
    }
    let op = rng.pick(&OPS);
    let mut sources = vec![source];
    for _ in 0..rng.below(4) {
        sources.push(recent(rng, known));
    }
    let rows = rng.pick(&[1, 8, 31, 32, 64]);
    let node = s.batch_node(op, &sources, rows);
    if rng.one_in(10) {
        s.tensors[node].src.insert(1, None);
    }
    if rng.one_in(12) {
        s.tensors[node].flags = Flags::OUTPUT;
    }
    node
}

/// A tensor that nothing lists: reachable only as a source.
pub fn unlisted(s: &mut Sketch) -> TensorId {
    s.push(Tensor::leaf("unlisted", DType::F32, [32, 1, 1, 1]).unwrap(), None)
}

/// A host buffer type that some devices beside the host use in place.
pub fn shared_host_buffer(parts: &mut loadmaster_sched::MachineParts, users: DeviceSet) -> ResidentBuffer {
    let host = parts.devices[dev(parts.devices.len() - 1)].buffer_type;
    let like = parts.buffer_types[host].clone();
    let desc = loadmaster_sched::machine::BufferTypeDesc { name: "HOST_SHARED".into(), usable_by: users, ..like };
    ResidentBuffer { buffer_type: parts.buffer_types.push(desc), usage: Usage::Weights }
}

//! Small graphs and machines for tests, and the whole chain with its checkers.
#![allow(dead_code, reason = "every test file uses its own part")]

use loadmaster_graph::{BufferId, DType, DeviceId, Dims, Flags, Graph, IdVec, NodeId, Op, Tensor, TensorId, View};
use loadmaster_sched::machine::build::MemorySpec;
use loadmaster_sched::{
    AssignOptions, Assignment, Cause, DeviceSpec, Driver, LowerOptions, Lowered, Machine, MachineParts, Residency,
    ResidentBuffer, SchedError, SplitPlan, Usage, assign, check_lowered, check_splits, lower, split,
};

pub fn dev(index: usize) -> DeviceId {
    DeviceId::new(index)
}

/// A machine of short specs.
pub fn machine(specs: &[&str]) -> Machine {
    let specs: Vec<DeviceSpec> = specs.iter().map(|s| s.parse().unwrap()).collect();
    Machine::from_specs(&specs).unwrap()
}

/// `gpus` virtual GPUs and their host.
pub fn parts(gpus: usize) -> MachineParts {
    let mut parts = MachineParts::default();
    for i in 0..gpus {
        parts.push_gpu(format!("SIM{i}"), Driver::Sim, MemorySpec::device());
    }
    parts.push_host("CPU", MemorySpec::host());
    parts
}

/// A graph under construction. All tensors are F32; `rows` is the batch.
#[derive(Default)]
pub struct Sketch {
    pub tensors: IdVec<TensorId, Tensor>,
    pub nodes: Vec<TensorId>,
    pub leafs: Vec<TensorId>,
    pub buffers: IdVec<BufferId, ResidentBuffer>,
    pub buffer_of: Vec<Option<BufferId>>,
    pub residency: Residency,
}

const WIDTH: u64 = 32;

impl Sketch {
    pub fn push(&mut self, tensor: Tensor, buffer: Option<BufferId>) -> TensorId {
        self.buffer_of.push(buffer);
        self.tensors.push(tensor)
    }

    /// A buffer in the memory that a device computes in.
    pub fn buffer(&mut self, machine: &Machine, device: usize, usage: Usage) -> BufferId {
        let buffer_type = machine.device(dev(device)).buffer_type;
        self.buffers.push(ResidentBuffer { buffer_type, usage })
    }

    pub fn leaf(&mut self, name: &str, buffer: Option<BufferId>) -> TensorId {
        let id = self.push(Tensor::leaf(name, DType::F32, [WIDTH, WIDTH, 1, 1]).unwrap(), buffer);
        self.leafs.push(id);
        id
    }

    pub fn input(&mut self, name: &str) -> TensorId {
        let mut tensor = Tensor::leaf(name, DType::F32, [WIDTH, 1, 1, 1]).unwrap();
        tensor.flags = Flags::INPUT;
        let id = self.push(tensor, None);
        self.leafs.push(id);
        id
    }

    pub fn node(&mut self, op: Op, sources: &[TensorId]) -> TensorId {
        self.batch_node(op, sources, 1)
    }

    pub fn batch_node(&mut self, op: Op, sources: &[TensorId], rows: u64) -> TensorId {
        let name = format!("{}_{}", op.name().to_lowercase(), self.nodes.len());
        self.shaped_node(op, sources, &name, [WIDTH, rows, 1, 1])
    }

    pub fn shaped_node(&mut self, op: Op, sources: &[TensorId], name: &str, ne: Dims) -> TensorId {
        let mut tensor = Tensor::leaf(name, DType::F32, ne).unwrap();
        tensor.op = op;
        tensor.src = sources.iter().copied().map(Some).collect();
        let id = self.push(tensor, None);
        self.nodes.push(id);
        id
    }

    /// A node that is a view of (the root of) a tensor: of view operation `VIEW`, or of one that writes into it.
    pub fn view(&mut self, op: Op, of: TensorId, sources: &[TensorId]) -> TensorId {
        let root = self.tensors[of].view.map_or(of, |v| v.root);
        let id = self.shaped_node(op, sources, "view", self.tensors[of].ne);
        self.tensors[id].view = Some(View { root, offset: loadmaster_graph::Bytes::ZERO });
        id
    }

    pub fn pin(&mut self, tensor: TensorId, device: usize) {
        self.residency.pinned.insert(tensor, dev(device));
    }

    pub fn finish(mut self) -> (Graph, Residency) {
        let count = self.tensors.len();
        let nodes = IdVec::from_vec(self.nodes);
        let graph = Graph::new("sketch", self.tensors, nodes, IdVec::from_vec(self.leafs)).unwrap();
        self.residency.buffers = self.buffers;
        self.residency.buffer_of = IdVec::from_vec(self.buffer_of);
        if self.residency.external.is_empty() {
            self.residency.external = IdVec::filled(false, count);
        }
        (graph, self.residency)
    }
}

/// A graph with devices and splits that the checker accepted.
pub struct Planned {
    pub graph: Graph,
    pub residency: Residency,
    pub assignment: Assignment,
    pub splits: SplitPlan,
}

impl Planned {
    pub fn new(machine: &Machine, sketch: Sketch) -> Self {
        Self::with(machine, sketch, AssignOptions::default())
    }

    pub fn with(machine: &Machine, sketch: Sketch, options: AssignOptions) -> Self {
        let (graph, residency) = sketch.finish();
        let assignment = assign(&graph, machine, &residency, options).unwrap();
        let splits = split(&graph, machine, &residency, &assignment).unwrap();
        check_splits(&graph, machine, &residency, &assignment, &splits).unwrap();
        Self { graph, residency, assignment, splits }
    }

    pub fn lower(&self, options: &LowerOptions) -> Lowered<'_> {
        let lowered = lower(&self.graph, &self.residency, &self.assignment, &self.splits, options).unwrap();
        if options.keep.is_empty() {
            check_lowered(&self.graph, &self.assignment, &self.splits, &lowered).unwrap();
        }
        lowered
    }

    pub fn device(&self, tensor: TensorId) -> usize {
        self.assignment.device(tensor).index()
    }

    pub fn cause(&self, tensor: TensorId) -> Cause {
        self.assignment.cause(tensor)
    }

    /// Device, first node, past the last node, and copied tensors of every split.
    pub fn split_list(&self) -> Vec<(usize, usize, usize, Vec<TensorId>)> {
        let inputs = |s: &loadmaster_sched::Split| s.inputs().map(|c| self.splits.copies()[c].tensor).collect();
        let row = |s: &loadmaster_sched::Split| (s.device.index(), s.start.index(), s.end.index(), inputs(s));
        self.splits.splits().values().map(row).collect()
    }
}

pub fn assign_error(machine: &Machine, sketch: Sketch) -> SchedError {
    let (graph, residency) = sketch.finish();
    assign(&graph, machine, &residency, AssignOptions::default()).unwrap_err()
}

pub fn node(index: usize) -> NodeId {
    NodeId::new(index)
}

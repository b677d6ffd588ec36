//! A machine with real devices, and models whose weights are spread over it.

use loadmaster_alloc::Buffer;
use loadmaster_backends::cpu::{ComputeCtx, Workers};
use loadmaster_backends::{CpuDevice, CpuOptions, Device, DeviceStats, Faults, Peers, SimDevice, SimOptions, Staging};
use loadmaster_graph::{BufferId, Bytes, DeviceId, Graph, IdVec, NodeId, TensorId};
use loadmaster_sched::exec::{ExecError, Executable, Flow, Resident, Runtime, Session, SessionOptions};
use loadmaster_sched::machine::build::MemorySpec;
use loadmaster_sched::{Driver, Machine, MachineParts, Residency, ResidentBuffer, Usage};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device with its faults.
#[derive(Clone, Debug)]
pub enum Opened {
    Cpu(Arc<CpuDevice>),
    Sim(Arc<SimDevice>),
    #[cfg(feature = "cuda")]
    Cuda(Arc<loadmaster_backends::cuda::CudaDevice>),
}

impl Opened {
    pub fn faults(&self) -> &Faults {
        match self {
            Self::Cpu(cpu) => cpu.faults(),
            Self::Sim(sim) => sim.faults(),
            #[cfg(feature = "cuda")]
            Self::Cuda(_) => panic!("its driver is told to fail, not the device"),
        }
    }
    pub fn device(&self) -> Arc<dyn Device> {
        match self {
            Self::Cpu(cpu) => Arc::clone(cpu) as Arc<dyn Device>,
            Self::Sim(sim) => Arc::clone(sim) as Arc<dyn Device>,
            #[cfg(feature = "cuda")]
            Self::Cuda(cuda) => Arc::clone(cuda) as Arc<dyn Device>,
        }
    }
    pub fn stats(&self) -> DeviceStats {
        self.device().stats()
    }
}

pub fn kernels() -> Arc<ComputeCtx> {
    Arc::new(ComputeCtx::new(Workers::single()))
}

/// What the virtual GPUs of a world are like.
#[derive(Clone, Debug)]
pub struct Gpus {
    pub count: usize,
    pub peers: Peers,
    pub staging: Staging,
    pub chunk: Option<Bytes>,
}

impl Gpus {
    pub fn new(count: usize) -> Self {
        Self { count, peers: Peers::All, staging: Staging::Pinned, chunk: None }
    }
}

/// Devices, the last of them the host, and what describes them.
pub struct World {
    pub machine: Machine,
    pub devices: Vec<Opened>,
}

impl World {
    pub fn new(gpus: &Gpus) -> Self {
        let sims = (0..gpus.count).map(|i| {
            let mut options = SimOptions::new(format!("sim{i}"), Bytes::mib(64));
            options.peers = gpus.peers.clone();
            options.staging = gpus.staging;
            options.max_buffer = gpus.chunk;
            options
        });
        Self::of(sims.collect())
    }

    pub fn of(sims: Vec<SimOptions>) -> Self {
        let mut parts = MachineParts::default();
        let mut devices = Vec::new();
        for options in sims {
            let memory =
                MemorySpec { capacity: Some(options.capacity), max_size: options.max_buffer, ..MemorySpec::device() };
            parts.push_gpu(options.name.clone(), Driver::Sim, memory);
            devices.push(Opened::Sim(Arc::new(SimDevice::new(options, kernels()).unwrap())));
        }
        parts.push_host("cpu", MemorySpec::host());
        devices.push(Opened::Cpu(Arc::new(CpuDevice::new(CpuOptions::default(), kernels()).unwrap())));
        Self { machine: Machine::new(parts).unwrap(), devices }
    }

    /// Host devices that compute on each other's memory in place: nothing is copied between them.
    pub fn of_hosts(count: usize) -> Self {
        let mut parts = MachineParts::default();
        let names = (0..count).map(|i| format!("cpu{i}"));
        let options = names.map(|name| CpuOptions { name: name.into(), ..CpuOptions::default() });
        let options: Vec<CpuOptions> = options.collect();
        options.iter().for_each(|o| {
            parts.push_host(o.name.clone(), MemorySpec::host());
        });
        for buffer_type in parts.buffer_types.values_mut() {
            (0..count).for_each(|i| buffer_type.usable_by.insert(DeviceId::new(i)));
        }
        let open = |o| Opened::Cpu(Arc::new(CpuDevice::new(o, kernels()).unwrap()));
        Self { machine: Machine::new(parts).unwrap(), devices: options.into_iter().map(open).collect() }
    }

    pub fn runtime(&self) -> Result<Arc<Runtime>, ExecError> {
        Runtime::new(self.machine.clone(), self.devices.iter().map(Opened::device).collect())
    }

    pub fn session(&self, change: impl FnOnce(&mut SessionOptions)) -> Result<Session, ExecError> {
        let runtime = self.runtime()?;
        let mut options = SessionOptions::new(&runtime);
        change(&mut options);
        Ok(Session::new(runtime, options))
    }

    pub fn host(&self) -> DeviceId {
        DeviceId::new(self.devices.len() - 1)
    }

    /// Buffers that are alive on all devices.
    pub fn live(&self) -> u64 {
        self.devices.iter().map(|d| d.stats().live_buffers).sum()
    }
}

/// A graph with its weights and caches, not yet on any device.
#[derive(Clone, Debug)]
pub struct Model {
    pub graph: Graph,
    /// Leafs with memory of their own: bytes, and what they are.
    pub weights: BTreeMap<TensorId, (Vec<u8>, Usage)>,
    /// Nodes that are fixed to a device, as a number that is taken modulo the devices.
    pub pinned: BTreeMap<TensorId, usize>,
    pub outputs: Vec<TensorId>,
}

/// A model in the memory of a world.
pub struct Loaded {
    residency: Residency,
    buffers: IdVec<BufferId, Arc<dyn Buffer>>,
    offsets: IdVec<TensorId, Bytes>,
}

impl Loaded {
    /// One buffer per device and usage that has something; `device_of` says where each weight goes.
    pub fn new(world: &World, model: &Model, device_of: impl Fn(TensorId) -> DeviceId) -> Result<Self, String> {
        let graph = &model.graph;
        let residency = Residency::nothing(graph);
        let offsets = IdVec::filled(Bytes::ZERO, graph.tensors().len());
        let mut groups: BTreeMap<(DeviceId, bool), Vec<TensorId>> = BTreeMap::new();
        for (&tensor, (_, usage)) in &model.weights {
            groups.entry((device_of(tensor), *usage == Usage::Weights)).or_default().push(tensor);
        }
        let mut this = Self { residency, buffers: IdVec::new(), offsets };
        for ((device, weights), tensors) in groups {
            let usage = if weights { Usage::Weights } else { Usage::Any };
            this.load(world, model, device, usage, &tensors)?;
        }
        for (&tensor, &device) in &model.pinned {
            this.residency.pinned.insert(tensor, DeviceId::new(device % world.devices.len()));
        }
        Ok(this)
    }

    /// As many buffers as the largest size asks for.
    fn load(
        &mut self,
        world: &World,
        model: &Model,
        device: DeviceId,
        usage: Usage,
        tensors: &[TensorId],
    ) -> Result<(), String> {
        let opened = world.devices[device.index()].device();
        let memory = opened.buffer_type();
        let largest = memory.max_size().map_or(u64::MAX, Bytes::get);
        let mut ends: Vec<u64> = Vec::new();
        let mut in_buffer = Vec::new();
        for &tensor in tensors {
            let size = memory.alloc_size(tensor, model.graph.tensor(tensor)).get().next_multiple_of(128);
            match ends.last_mut().filter(|end| **end + size <= largest) {
                Some(end) => *end += size,
                None => ends.push(size),
            }
            self.offsets[tensor] = Bytes(ends[ends.len() - 1] - size);
            in_buffer.push(ends.len() - 1);
        }
        let first = self.buffers.len();
        for end in ends {
            self.buffers.push(memory.alloc_buffer(Bytes(end)).map_err(|e| e.to_string())?);
            let buffer_type = world.machine.device(device).buffer_type;
            self.residency.buffers.push(ResidentBuffer { buffer_type, usage });
        }
        for (&tensor, number) in tensors.iter().zip(in_buffer) {
            let buffer = BufferId::new(first + number);
            self.residency.buffer_of[tensor] = Some(buffer);
            let bytes = &model.weights[&tensor].0;
            let (buffer, offset) = (Arc::clone(&self.buffers[buffer]), self.offsets[tensor]);
            let region = loadmaster_backends::Region { buffer, offset, len: Bytes(bytes.len() as u64) };
            opened.upload(&region, bytes).map_err(|e| e.to_string())?;
        }
        Ok(())
    }

    pub fn resident(&self) -> Resident<'_> {
        Resident { residency: &self.residency, buffers: &self.buffers, offsets: &self.offsets }
    }
}

/// A generator of numbers with a seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 16
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
    /// Floats in [-1, 1), as bytes.
    pub fn floats(&mut self, n: u64) -> Vec<u8> {
        let float = |random: &mut Self| (random.next() % 2048) as f32 / 1024.0 - 1.0;
        (0..n).flat_map(|_| float(self).to_le_bytes()).collect()
    }
}

/// The bytes of the inputs of one run.
pub type Inputs = BTreeMap<TensorId, Vec<u8>>;

/// Writes the inputs that a plan has, and runs it once.
pub fn run_once(exec: &mut Executable, inputs: &Inputs) -> Result<(), ExecError> {
    write_all(exec, inputs)?;
    exec.run()
}

pub fn write_all(exec: &mut Executable, inputs: &Inputs) -> Result<(), ExecError> {
    let wanted: Vec<TensorId> = exec.inputs().collect();
    wanted.iter().try_for_each(|t| exec.write(*t, &inputs[t]))
}

/// The bytes of all outputs.
pub fn outputs(exec: &mut Executable, model: &Model) -> Result<Vec<Vec<u8>>, ExecError> {
    let read = |&output: &TensorId| {
        let mut bytes = vec![0; model.graph.tensor(output).nbytes().get() as usize];
        exec.read(output, &mut bytes).map(|()| bytes)
    };
    model.outputs.iter().map(read).collect()
}

/// Where two lists of outputs differ, in few words.
pub fn difference(found: &[Vec<u8>], expected: &[Vec<u8>]) -> Option<String> {
    let at = found.iter().zip(expected).position(|(f, e)| f != e)?;
    let byte = found[at].iter().zip(&expected[at]).position(|(f, e)| f != e);
    Some(format!("output {at} differs from byte {byte:?} on"))
}

/// Runs once and keeps the bytes of every node.
pub fn trace(exec: &mut Executable, inputs: &Inputs) -> BTreeMap<TensorId, Vec<u8>> {
    let mut seen = BTreeMap::new();
    write_all(exec, inputs).unwrap();
    let mut keep = |_: NodeId, tensor: TensorId, bytes: &[u8]| {
        seen.insert(tensor, bytes.to_vec());
        Flow::Continue
    };
    exec.run_observed(&mut keep).unwrap();
    seen
}

/// The first node, in the graph's order, whose bytes differ.
pub fn first_wrong(model: &Model, found: &mut Executable, expected: &mut Executable, inputs: &Inputs) -> String {
    let (found, expected) = (trace(found, inputs), trace(expected, inputs));
    let wrong = model.graph.nodes().values().find(|t| found.get(t) != expected.get(t));
    wrong.map_or("no node differs when observed".into(), |&t| {
        let tensor = model.graph.tensor(t);
        let sources: Vec<String> =
            tensor.src.iter().flatten().map(|&s| format!("{s} {}", model.graph.tensor(s).op)).collect();
        format!("{t} {} {:?} of {sources:?} differs", tensor.op, tensor.ne)
    })
}

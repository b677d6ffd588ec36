//! A loaded model with its caches, and the plans of the graphs that it has met.

use super::error::EngineError;
use super::load::{GraphMemory, Loaded, Progress};
use super::model::Model;
use super::placed::Placed;
use super::prepare::{Prepared, prepare, prepare_on};
use super::settings::Settings;
use loadmaster_backends::{Device, DeviceStats};
use loadmaster_graph::{Bytes, DeviceId, IdVec, TensorId};
use loadmaster_models::families::{BatchShape, InputKind, ModelGraph};
use loadmaster_models::kv::{KvState, Pos, SequenceId};
use loadmaster_sched::Machine;
use loadmaster_sched::exec::{Executable, PathTable, PlanId, Resident, Runtime, Session, SessionOptions, SessionStats};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// A buffer that is only made to ask whether it could be used.
const SAMPLE: Bytes = Bytes(64);

/// Whether the compute memory for the largest graphs is taken when the model is loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Reserve {
    /// It is: what fits at the start fits to the end.
    #[default]
    Largest,
    /// It grows with the graphs.
    AsNeeded,
}

/// A graph that was planned and bound. Known for as long as the session holds its plan.
pub(super) struct Known {
    pub(super) shape: BatchShape,
    plan: PlanId,
    pub(super) graph: Arc<ModelGraph>,
    /// Inputs that the plan has a place for.
    pub(super) inputs: Arc<[(InputKind, TensorId)]>,
}

/// A model that is ready to run.
pub struct Engine {
    model: Arc<Model>,
    settings: Arc<Settings>,
    prepared: Prepared,
    pub(super) session: Session,
    loaded: Loaded,
    pub(super) state: KvState,
    known: Vec<Known>,
    reused: u64,
    /// Reused for the bytes of inputs and logits.
    pub(super) scratch: Vec<u8>,
}

impl Engine {
    /// Opens the devices of a machine and loads a model there.
    ///
    /// Errors: settings that do not fit, a device that is too small, refuses memory, fails, or whose driver is not here.
    pub fn open(
        model: Arc<Model>,
        machine: &Machine,
        settings: Settings,
        threads: NonZeroUsize,
        progress: &mut Progress<'_>,
    ) -> Result<Self, EngineError> {
        let machine = &loadmaster_sched::exec::described(machine.clone())?;
        let prepared = prepare(&model, machine, &settings)?;
        prepared.check_capacity(machine)?;
        let devices = loadmaster_sched::exec::open(machine, threads)?;
        Self::load(model, machine, devices, settings, prepared, Reserve::Largest, progress)
    }

    /// Loads a prepared model on devices that are open: those of `machine`, in its order.
    pub fn load(
        model: Arc<Model>,
        machine: &Machine,
        devices: Vec<Arc<dyn Device>>,
        settings: Settings,
        prepared: Prepared,
        reserve: Reserve,
        progress: &mut Progress<'_>,
    ) -> Result<Self, EngineError> {
        let _span = tracing::info_span!(target: "loadmaster::engine", "load", model = %model.name).entered();
        check_sharing(machine, &devices)?;
        let runtime = Runtime::new(machine.clone(), devices)?;
        let prepared = prepared_for(prepared, machine, &model, &settings, &runtime)?;
        let mut options = SessionOptions::new(&runtime);
        options.placer = settings.placer.clone();
        options.assign = settings.assign;
        options.n_copies = settings.copies;
        options.outputs = settings.outputs();
        let settings = Arc::new(settings);
        let (loaded, state) = {
            let placed = Placed::new(&model, runtime.machine(), &settings)?;
            let graph = placed.graph(BatchShape::largest(&placed.layout, 1))?;
            let loaded = Loaded::new(&placed, &graph, &runtime, progress)?;
            (loaded, KvState::new(&placed.layout, settings.sequences, model.params.window))
        };
        let session = Session::new(runtime, options);
        let (known, reused, scratch) = (Vec::new(), 0, Vec::new());
        let mut engine = Self { model, settings, prepared, session, loaded, state, known, reused, scratch };
        if reserve == Reserve::Largest {
            engine.reserve()?;
        }
        Ok(engine)
    }

    /// Takes what the largest graphs need, all at once, and binds them.
    fn reserve(&mut self) -> Result<(), EngineError> {
        let (model, settings) = (Arc::clone(&self.model), Arc::clone(&self.settings));
        let runtime = Arc::clone(self.session.runtime());
        self.session.reserve(&self.prepared.session)?;
        for shape in Placed::new(&model, runtime.machine(), &settings)?.reserved_shapes() {
            self.plan(shape)?;
        }
        Ok(())
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &Arc<Model> {
        &self.model
    }
    /// The settings.
    #[must_use]
    pub fn settings(&self) -> &Settings {
        &self.settings
    }
    /// What was prepared.
    #[must_use]
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }
    /// The caches.
    #[must_use]
    pub fn state(&self) -> &KvState {
        &self.state
    }
    /// The caches, to forget and share parts of sequences.
    pub fn state_mut(&mut self) -> &mut KvState {
        &mut self.state
    }

    /// Makes a sequence hold what another one holds; what it held is forgotten. With cells of their own the bytes are
    /// copied, else shared.
    ///
    /// Errors: a sequence that there is not, a device that fails: the target is empty then.
    pub fn copy_sequence(&mut self, from: SequenceId, to: SequenceId) -> Result<(), EngineError> {
        let all = Pos(0)..Pos(u32::MAX);
        if from != to {
            self.state.remove(to, &all)?;
        }
        let Some(copy) = self.state.copy(from, to, &all)? else { return Ok(()) };
        let copied = self.loaded.copy_stream(self.session.runtime(), copy, self.prepared.layout.streams);
        if copied.is_err() {
            self.state.remove(to, &all)?;
        }
        copied
    }
    /// The devices at work.
    #[must_use]
    pub fn runtime(&self) -> &Arc<Runtime> {
        self.session.runtime()
    }
    /// What planning did.
    #[must_use]
    pub fn session_stats(&self) -> SessionStats {
        self.session.stats()
    }
    /// Runs of graphs whose plan was known.
    #[must_use]
    pub fn graphs_reused(&self) -> u64 {
        self.reused
    }
    /// What each device did so far.
    #[must_use]
    pub fn device_stats(&self) -> IdVec<DeviceId, DeviceStats> {
        self.runtime().devices().values().map(|d| d.stats()).collect()
    }

    /// The graph for a shape, planned and bound: a look-up if it is known. Returns its place among the known.
    pub(super) fn plan(&mut self, shape: BatchShape) -> Result<usize, EngineError> {
        if let Some(at) = self.known.iter().position(|k| k.shape == shape)
            && self.session.holds(self.known[at].plan)
        {
            self.reused += 1;
            return Ok(at);
        }
        let known = self.bind(shape)?;
        // What was planned now may have pushed others out.
        self.known.retain(|k| self.session.holds(k.plan));
        self.known.push(known);
        Ok(self.known.len() - 1)
    }

    fn bind(&mut self, shape: BatchShape) -> Result<Known, EngineError> {
        let (model, settings) = (Arc::clone(&self.model), Arc::clone(&self.settings));
        let runtime = Arc::clone(self.session.runtime());
        let placed = Placed::new(&model, runtime.machine(), &settings)?;
        let graph = placed.graph(shape)?;
        let GraphMemory { residency, offsets } = self.loaded.memory_of(&placed, &graph, shape.tokens)?;
        let resident = Resident { residency: &residency, buffers: self.loaded.buffers(), offsets: &offsets };
        let plan = self.session.prepare(&graph.graph, resident)?;
        let placed_inputs: Vec<TensorId> =
            self.session.executable(plan).map(|e| e.inputs().collect()).unwrap_or_default();
        let inputs = graph.inputs.iter().filter(|i| placed_inputs.contains(&i.tensor)).map(|i| (i.kind, i.tensor));
        Ok(Known { shape, plan, inputs: inputs.collect(), graph })
    }

    pub(super) fn known(&self, at: usize) -> &Known {
        &self.known[at]
    }

    /// What a known graph was bound to.
    pub(super) fn executable(&mut self, at: usize) -> Result<&mut Executable, EngineError> {
        let plan = self.known[at].plan;
        // The plan was looked up or bound just before.
        self.session.executable(plan).ok_or_else(|| EngineError::NotLoaded { tensor: "the plan of the graph".into() })
    }
}

/// What was prepared for `planned`, once more where copies take other paths than its description has, or GPUs are others.
fn prepared_for(
    prepared: Prepared,
    planned: &Machine,
    model: &Model,
    settings: &Settings,
    runtime: &Runtime,
) -> Result<Prepared, EngineError> {
    let machine = runtime.machine();
    let is_described = machine.devices().ids().all(|d| machine.gpu(d) == planned.gpu(d));
    if is_described && *runtime.paths() == PathTable::expected(machine) {
        return Ok(prepared);
    }
    let prepared = prepare_on(model, machine, settings, runtime.paths())?;
    prepared.check_capacity(machine)?;
    Ok(prepared)
}

/// Where the machine says that a device uses another's memory in place, the device must be able to: a machine can be
/// planned for that this program has no such devices for.
fn check_sharing(machine: &Machine, devices: &[Arc<dyn Device>]) -> Result<(), EngineError> {
    for (user, device) in machine.devices().ids().zip(devices) {
        for (owner, other) in machine.devices().ids().zip(devices) {
            let memory = machine.device(owner).buffer_type;
            if user == owner || !machine.can_use(user, memory) {
                continue;
            }
            let sample = other.buffer_type().alloc_buffer(SAMPLE);
            if sample.is_ok_and(|buffer| !device.can_use(&*buffer)) {
                let (user, owner) = (device.name(), other.name());
                return Err(EngineError::Settings(format!(
                    "the machine says that {user} uses the memory of {owner} in place, which it cannot here: \
                     such a machine can be planned for, but not run on"
                )));
            }
        }
    }
    Ok(())
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Engine({}, {} graphs)", self.model.name, self.known.len())
    }
}

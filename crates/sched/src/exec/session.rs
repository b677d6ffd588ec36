//! Several plans over one arena.

use super::bind::Buffers;
use super::build::{ExpertUpload, Outputs, Planned, ScheduleOptions};
use super::error::ExecError;
use super::executable::Executable;
use super::place::ResidentPlace;
use super::runtime::Runtime;
use super::scratch::{Scratch, ScratchNeeds};
use crate::assign::AssignOptions;
use crate::error::SchedError;
use crate::lower::{LowerOptions, Lowered};
use crate::plan::{Cut, cut, place_in};
use crate::residency::Residency;
use loadmaster_alloc::place::{BestOptions, InPlaceTables};
use loadmaster_alloc::{Allocation, ArenaId, Arenas, Buffer, GraphAllocator, Placer};
use loadmaster_graph::{BufferId, Bytes, Graph, IdVec, StructuralHash, TensorId};
use std::num::NonZeroU32;
use std::sync::Arc;
use tracing::info;

/// Plans that are kept bound; the one that was not used for longest goes first. A service with eight slots meets a
/// hundred shapes of batches for each length of context: 36 runs of neighbouring slots that take a step, and eight sizes
/// of pieces of prompts in each slot.
const MAX_PLANS: usize = 256;

/// How a session plans and runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionOptions {
    /// How devices are chosen.
    pub assign: AssignOptions,
    /// Pipeline copies of every input: runs that overlap.
    pub n_copies: NonZeroU32,
    /// How lifetimes become offsets.
    pub placer: Placer,
    /// What becomes of outputs.
    pub outputs: Outputs,
    /// What is uploaded of experts in host memory.
    pub experts: ExpertUpload,
    /// Smallest piece of a staged copy.
    pub piece: Bytes,
}

impl SessionOptions {
    /// No pipelining, the smallest plans that the devices' kernels allow, outputs in place.
    #[must_use]
    pub fn new(runtime: &Runtime) -> Self {
        let in_place = InPlaceTables::Each(runtime.devices().values().map(|d| d.in_place()).collect());
        let piece = ScheduleOptions::new(runtime.paths().clone()).piece;
        Self {
            assign: AssignOptions::default(),
            n_copies: NonZeroU32::MIN,
            placer: Placer::Best(BestOptions { in_place, ..BestOptions::default() }),
            outputs: Outputs::default(),
            experts: ExpertUpload::default(),
            piece,
        }
    }
}

/// What the plans of a session need together.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SessionNeeds {
    /// Bytes of the chunks of every arena.
    pub chunks: IdVec<ArenaId, Vec<Bytes>>,
    /// What is needed beside arenas.
    pub scratch: ScratchNeeds,
}

/// What is in memory before a graph runs, with the buffers.
#[derive(Clone, Copy, Debug)]
pub struct Resident<'a> {
    /// Which buffer each tensor is in, and what kind each buffer is.
    pub residency: &'a Residency,
    /// The buffers.
    pub buffers: &'a IdVec<BufferId, Arc<dyn Buffer>>,
    /// By tensor that is in a buffer itself: its first byte there.
    pub offsets: &'a IdVec<TensorId, Bytes>,
}

impl Resident<'_> {
    fn place(&self, tensor: TensorId) -> Option<ResidentPlace> {
        let buffer = self.residency.buffer_of.get(tensor).copied().flatten()?;
        Some((buffer.index() as u32, *self.offsets.get(tensor)?))
    }

    /// What distinguishes two plans for equal graphs. O(tensors).
    fn key(&self, graph: &Graph) -> StructuralHash {
        let mut hasher = graph.structural_hash().extend();
        for (tensor, buffer) in self.residency.buffer_of.iter() {
            let Some(buffer) = buffer else { continue };
            hasher.word((tensor.index() as u64) << 32 | buffer.index() as u64);
            hasher.word(self.offsets.get(tensor).map_or(0, |o| o.get()));
        }
        hasher.word(self.buffers.len() as u64);
        for (buffer, kind) in self.buffers.values().zip(self.residency.buffers.values()) {
            // The buffers are held by what is bound, so an address in use is not given to another.
            hasher.word(Arc::as_ptr(buffer).addr() as u64);
            hasher.word((kind.buffer_type.index() as u64) << 8 | kind.usage as u64);
        }
        for (tensor, device) in &self.residency.pinned {
            hasher.word((tensor.index() as u64) << 32 | device.index() as u64);
        }
        hasher.finish()
    }
}

/// A plan that a session keeps. Valid until [`Session::executable`] no longer knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PlanId(u64);

/// What a session did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SessionStats {
    /// Graphs that were planned.
    pub planned: u64,
    /// Plans that were bound.
    pub bound: u64,
    /// Graphs whose plan was known.
    pub found: u64,
    /// Times that an arena grew.
    pub grown: u64,
}

#[derive(Debug)]
struct Entry {
    id: PlanId,
    key: StructuralHash,
    used: u64,
    executable: Executable,
}

/// Plans, the arena that they share (as large as the largest needs), and what is bound.
#[derive(Debug)]
pub struct Session {
    runtime: Arc<Runtime>,
    options: SessionOptions,
    arenas: Arenas,
    allocator: GraphAllocator,
    scratch_needs: ScratchNeeds,
    scratch: Arc<Scratch>,
    entries: Vec<Entry>,
    clock: u64,
    stats: SessionStats,
}

impl Session {
    /// A session without plans. It takes no memory yet.
    #[must_use]
    pub fn new(runtime: Arc<Runtime>, options: SessionOptions) -> Self {
        let types = runtime.devices().values().map(|d| d.buffer_type()).collect();
        let allocator = GraphAllocator::new_n(types).with_placer(options.placer.clone());
        let arenas = runtime.arenas();
        let stats = SessionStats::default();
        let (scratch_needs, scratch) = (ScratchNeeds::default(), Arc::default());
        Self { runtime, options, arenas, allocator, scratch_needs, scratch, entries: Vec::new(), clock: 0, stats }
    }

    /// The devices.
    #[must_use]
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }
    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> SessionStats {
        self.stats
    }
    /// Bytes that the arena holds, by device; zero for a device that shares the memory of an earlier one.
    #[must_use]
    pub fn arena_bytes(&self) -> IdVec<ArenaId, Bytes> {
        self.arenas.ids().map(|arena| self.allocator.buffer_size(arena)).collect()
    }

    /// Takes all memory that several plans need together, so that none of them takes any when it is bound and growing
    /// never holds two buffers for one. What was bound is let go.
    ///
    /// Errors: memory that is refused; the session is as it was then.
    pub fn reserve(&mut self, needs: &SessionNeeds) -> Result<(), ExecError> {
        let mut all = self.scratch_needs.clone();
        all.raise_to(&needs.scratch);
        let scratch = Scratch::take(&self.runtime, &all, &self.scratch)?;
        let before = self.arena_bytes();
        let held = self.allocator.hold(&needs.chunks);
        held.map_err(|e| ExecError::Planning(Box::new(SchedError::Alloc(e))))?;
        self.tell_growth(&before, &self.arena_bytes());
        self.stats.grown += 1;
        self.forget_plans()?;
        (self.scratch, self.scratch_needs) = (Arc::new(scratch), all);
        Ok(())
    }

    /// The plan for a graph: a look-up if a graph of the same structure with the same memory is known, else it is planned,
    /// the arena grows if it must, and the plan is bound. A plan that does not fit beside the known ones lets them go.
    ///
    /// Errors: what cannot be planned, memory that is refused, a device that fails. The plans that were known stay.
    pub fn prepare(&mut self, graph: &Graph, resident: Resident<'_>) -> Result<PlanId, ExecError> {
        let key = resident.key(graph);
        self.clock += 1;
        if let Some(entry) = self.entries.iter_mut().find(|e| e.key == key) {
            entry.used = self.clock;
            self.stats.found += 1;
            return Ok(entry.id);
        }
        let executable = self.plan_and_bind(graph, resident)?;
        if self.entries.len() >= MAX_PLANS
            && let Some((oldest, _)) = self.entries.iter().enumerate().min_by_key(|(_, e)| e.used)
        {
            self.entries.remove(oldest);
        }
        let id = PlanId(self.clock);
        self.entries.push(Entry { id, key, used: self.clock, executable });
        Ok(id)
    }

    /// What a plan was bound to; `None` if it was let go. Who asks uses it: it goes later than those that nobody asks for.
    pub fn executable(&mut self, plan: PlanId) -> Option<&mut Executable> {
        let entry = self.entries.iter_mut().find(|e| e.id == plan)?;
        self.clock += 1;
        entry.used = self.clock;
        Some(&mut entry.executable)
    }

    /// Whether a plan is still bound. Does not use it.
    #[must_use]
    pub fn holds(&self, plan: PlanId) -> bool {
        self.entries.iter().any(|e| e.id == plan)
    }

    /// Lets all plans go; the arena stays. Errors: what failed in runs that were not waited for.
    pub fn forget_plans(&mut self) -> Result<(), ExecError> {
        let outcomes: Vec<_> = self.entries.iter_mut().map(|e| e.executable.synchronize()).collect();
        self.entries.clear();
        outcomes.into_iter().collect()
    }

    fn plan_and_bind(&mut self, graph: &Graph, resident: Resident<'_>) -> Result<Executable, ExecError> {
        let runtime = Arc::clone(&self.runtime);
        let machine = runtime.machine();
        let residency = resident.residency;
        let lower_options = LowerOptions { n_copies: self.options.n_copies, keep: Vec::new() };
        let Cut { assignment, splits, lowered } = cut(graph, machine, residency, self.options.assign, &lower_options)?;
        let allocation = self.allocate(&lowered)?;
        let (arenas, place) = (self.arenas.clone(), |tensor| resident.place(tensor));
        let planned = Planned {
            machine,
            residency,
            assignment: &assignment,
            splits: &splits,
            lowered: &lowered,
            plan: allocation.plan(),
            arenas: &arenas,
            resident: &place,
        };
        let options = self.schedule_options();
        self.reserve_scratch(&ScratchNeeds::of(&planned, &options))?;
        let buffers = Buffers {
            chunk: &|arena, chunk| allocation.buffer(arena, chunk).cloned(),
            resident: resident.buffers.as_slice(),
            scratch: &self.scratch,
        };
        let executable = Executable::bind(&runtime, &planned, buffers, &options)?;
        self.stats.bound += 1;
        Ok(executable)
    }

    fn tell_growth(&self, before: &IdVec<ArenaId, Bytes>, after: &IdVec<ArenaId, Bytes>) {
        for ((device, from), to) in self.runtime.devices().values().zip(before.values()).zip(after.values()) {
            if from != to {
                let (device, from, to) = (device.name(), from.get(), to.get());
                info!(target: "loadmaster::plan", device, from, to, "grow");
            }
        }
    }

    fn schedule_options(&self) -> ScheduleOptions {
        let SessionOptions { outputs, experts, piece, .. } = self.options;
        ScheduleOptions { outputs, experts, piece, ..ScheduleOptions::new(self.runtime.paths().clone()) }
    }

    /// Takes the memory beside arenas that a plan needs, if what there is does not do.
    fn reserve_scratch(&mut self, needs: &ScratchNeeds) -> Result<(), ExecError> {
        if self.scratch.holds(needs) {
            return Ok(());
        }
        let mut all = self.scratch_needs.clone();
        all.raise_to(needs);
        let scratch = Scratch::take(&self.runtime, &all, &self.scratch)?;
        // What is bound would hold the old buffers.
        self.forget_plans()?;
        (self.scratch, self.scratch_needs) = (Arc::new(scratch), all);
        self.stats.grown += 1;
        Ok(())
    }

    /// Places a graph. If the arena grows, what is bound to the old one is let go: it would hold the memory.
    fn allocate(&mut self, lowered: &Lowered<'_>) -> Result<Allocation, ExecError> {
        let before = self.arena_bytes();
        let placed = place_in(&mut self.allocator, lowered);
        let placed = placed.map_err(|e| ExecError::Planning(Box::new(SchedError::Alloc(e))))?;
        self.stats.planned += u64::from(!placed.was_known);
        let after = self.arena_bytes();
        if after != before {
            self.stats.grown += 1;
            self.tell_growth(&before, &after);
            self.forget_plans()?;
        }
        Ok(placed.allocation)
    }
}

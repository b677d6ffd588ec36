//! From a schedule and memory to something that runs.

use super::build::{Planned, ScheduleOptions, operand_places, schedule};
use super::error::{At, ExecError, Named};
use super::executable::{Executable, NodeCommand, Pair, Run, State};
use super::experts::Experts;
use super::failure::Labels;
use super::hazards::{Waits, waits};
use super::noted::Notes;
use super::place::{Memory, MemoryId, Place, Places};
use super::runtime::Runtime;
use super::schedule::{Action, Move, Schedule, StepId};
use super::scratch::{Scratch, ScratchUse};
use loadmaster_alloc::pack::ChunkId;
use loadmaster_alloc::{ArenaId, Buffer};
use loadmaster_backends::{
    CommandId, Compiled, CopyCommand, DeviceError, Event, Operand as Layout, Program, Region, Stream, Workspace,
};
use loadmaster_graph::{Bytes, DeviceId, IdVec, NodeId, Op, SplitId, TensorId};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tracing::{field::Empty, info_span};

/// The buffers behind a plan.
#[derive(Clone, Copy)]
pub(super) struct Buffers<'a> {
    /// The buffer of a chunk of an arena.
    pub(super) chunk: &'a dyn Fn(ArenaId, ChunkId) -> Option<Arc<dyn Buffer>>,
    /// Resident buffers, by the number that [`Planned::resident`] gives.
    pub(super) resident: &'a [Arc<dyn Buffer>],
    /// Host memory for fetched outputs and staged copies.
    pub(super) scratch: &'a Arc<Scratch>,
}

/// A step that is ready to be put into its queue.
#[derive(Debug)]
pub(super) enum Ready {
    /// The caller writes here.
    Write(Region),
    /// A copy.
    Copy(CopyCommand),
    /// Nodes of a program.
    Compute {
        program: Arc<dyn Compiled>,
        range: Range<CommandId>,
        /// The nodes of the range, in [`Executable::commands`].
        nodes: Range<usize>,
    },
    /// The host reads ids here.
    Ids { of: usize, from: Region },
    /// The experts that were read last are copied.
    Experts { of: usize, whole: CopyCommand },
}

impl Executable {
    /// Binds a plan to memory and devices: derives steps and waits, compiles a program per split and turn, makes events.
    ///
    /// Takes no memory. Errors: parts that do not belong together, memory without a buffer, a device that fails; a
    /// device's error names split and node.
    pub(super) fn bind(
        runtime: &Arc<Runtime>,
        planned: &Planned<'_, '_>,
        buffers: Buffers<'_>,
        options: &ScheduleOptions,
    ) -> Result<Self, ExecError> {
        let span =
            info_span!(target: "loadmaster::exec", "bind", steps = Empty, waits = Empty, turns = Empty).entered();
        let schedule = schedule(planned, options)?;
        if !buffers.scratch.holds(&schedule.scratch) {
            return Err(ExecError::NoBuffer { what: "slots for staged copies and fetched outputs".into() });
        }
        let waits = waits(&schedule);
        span.record("steps", schedule.steps().len()).record("waits", waits.len()).record("turns", schedule.turns());
        let labels = labels(runtime, planned);
        let notes = Notes::new(runtime, planned, &schedule);
        let scratch = &**buffers.scratch;
        let mut binder =
            Binder { runtime, scratch, planned, schedule: &schedule, labels: &labels, memories: IdVec::new() };
        binder.find_memories(buffers)?;
        let (programs, commands) = binder.compile_all()?;
        let ready = binder.ready(&programs)?;
        let events = binder.events(&waits)?;
        let pace = binder.pace()?;
        let experts = schedule.experts.iter().map(|e| Experts::new(planned.graph(), e)).collect();
        let streams = binder.streams()?;
        let kept = binder.kept();
        let inputs = binder.inputs();
        let output_turns = binder.output_regions()?;
        Ok(Self {
            runtime: Arc::clone(runtime),
            owner: runtime.enter(),
            scratch: Arc::clone(buffers.scratch),
            labels,
            notes,
            ready,
            commands,
            events,
            streams,
            pace,
            experts,
            kept,
            inputs,
            output_turns,
            state: State { is_written: vec![false; schedule.steps().len()], ..State::default() },
            schedule,
            waits,
        })
    }
}

fn labels(runtime: &Runtime, planned: &Planned<'_, '_>) -> Labels {
    let graph = planned.graph();
    let mut node_of = IdVec::<TensorId, Option<NodeId>>::filled(None, graph.tensors().len());
    for (node, &tensor) in graph.nodes().iter() {
        node_of[tensor] = Some(node);
    }
    let splits = planned.splits.splits();
    let split_of = splits.iter().flat_map(|(id, split)| split.nodes().map(move |_| id)).collect();
    Labels {
        names: graph.tensors().values().map(|t| t.name.clone()).collect(),
        node_of,
        split_of,
        copies: planned.splits.copies().values().map(|c| (c.tensor, c.to, c.split)).collect(),
        devices: runtime.devices().values().map(|d| d.name().into()).collect(),
    }
}

struct Binder<'a, 'g> {
    runtime: &'a Arc<Runtime>,
    scratch: &'a Scratch,
    planned: &'a Planned<'a, 'g>,
    schedule: &'a Schedule,
    labels: &'a Labels,
    memories: IdVec<MemoryId, Arc<dyn Buffer>>,
}

/// The programs of one turn, by split.
type Programs = IdVec<SplitId, Bound>;

/// A compiled split.
struct Bound {
    program: Arc<dyn Compiled>,
    /// By position in the schedule's order, from the split's first: commands before it.
    before: Vec<usize>,
    first_position: usize,
    /// Where the turn's commands of this split begin in the list of all.
    first_command: usize,
}

impl Binder<'_, '_> {
    fn find_memories(&mut self, buffers: Buffers<'_>) -> Result<(), ExecError> {
        let found = self.schedule.memories.values().map(|&memory| match memory {
            Memory::Chunk(arena, chunk) => {
                (buffers.chunk)(arena, chunk).ok_or_else(|| ExecError::NoBuffer { what: format!("{chunk} of {arena}") })
            }
            Memory::Resident(number) => buffers
                .resident
                .get(number as usize)
                .cloned()
                .ok_or_else(|| ExecError::NoBuffer { what: format!("resident buffer {number}") }),
            Memory::Staging(pair) => {
                let staging = self.schedule.staging[pair as usize];
                let (from, to) = (staging.from, staging.to);
                self.scratch(buffers.scratch, Some(ScratchUse::Staging { from, to }))
            }
            Memory::Outputs => self.scratch(buffers.scratch, self.schedule.scratch_of_outputs),
        });
        self.memories = IdVec::from_vec(found.collect::<Result<Vec<_>, _>>()?);
        Ok(())
    }

    fn scratch(&self, scratch: &Scratch, use_: Option<ScratchUse>) -> Result<Arc<dyn Buffer>, ExecError> {
        use_.and_then(|u| scratch.buffer(u)).ok_or_else(|| ExecError::NoBuffer { what: format!("{use_:?}") })
    }

    fn region(&self, place: Place) -> Result<Region, ExecError> {
        Ok(Region { buffer: Arc::clone(self.memory(place.memory)?), offset: place.offset, len: place.len })
    }

    fn memory(&self, memory: MemoryId) -> Result<&Arc<dyn Buffer>, ExecError> {
        self.memories.get(memory).ok_or_else(|| ExecError::NoBuffer { what: format!("{memory} of the schedule") })
    }

    fn places(&self) -> Places<'_, '_> {
        let p = self.planned;
        let mut places = Places::new(p.lowered, p.plan, p.arenas, p.resident);
        places.adopt(&self.schedule.memories);
        places
    }

    fn compile_all(&self) -> Result<(Vec<Programs>, Vec<NodeCommand>), ExecError> {
        let mut commands = Vec::new();
        let mut turns = Vec::new();
        for turn in 0..self.schedule.turns() {
            let mut programs = IdVec::new();
            for split in self.planned.splits.splits().ids() {
                programs.push(self.compile(split, turn, &mut commands)?);
            }
            turns.push(programs);
        }
        Ok((turns, commands))
    }

    fn compile(&self, split: SplitId, turn: u32, commands: &mut Vec<NodeCommand>) -> Result<Bound, ExecError> {
        let record = self.planned.splits.splits()[split];
        let mut places = self.places();
        let mut program = Program::new();
        let mut before = Vec::with_capacity(record.nodes().len() + 1);
        let (first_position, first_command) = (record.start.index(), commands.len());
        for position in first_position..record.end.index() {
            before.push(program.commands().len());
            let node = self.schedule.order[position];
            let tensor = self.planned.tensor_of(node);
            let op = self.planned.graph().tensor(tensor).op;
            if op != Op::None && !op.is_view() {
                let place = self.push_command(&mut program, &mut places, node, turn)?;
                commands.push(NodeCommand { node, tensor, place: self.region(place)? });
            }
        }
        before.push(program.commands().len());
        let workspace = self.scratch.buffer(ScratchUse::Workspace { of: record.device });
        program.set_workspace(workspace.map_or(Workspace::None, Workspace::Given));
        let compiled = self.runtime.device(record.device).compile(program);
        let program = compiled.map_err(|e| self.compile_error(record.device, split, e))?;
        Ok(Bound { program, before, first_position, first_command })
    }

    fn push_command(
        &self,
        program: &mut Program,
        places: &mut Places<'_, '_>,
        node: NodeId,
        turn: u32,
    ) -> Result<Place, ExecError> {
        let graph = self.planned.graph();
        let tensor = self.planned.tensor_of(node);
        let record = graph.tensor(tensor);
        let sources = operand_places(self.planned, places, node, turn)?;
        let dst = places.of_tensor(tensor, turn)?;
        let mut layout = |tensor: TensorId, place: Place| {
            let slot = program.slot(self.memory(place.memory)?);
            Ok::<_, ExecError>(Layout::of(graph.tensor(tensor), slot, place.offset))
        };
        let sources = record.src.iter().zip(&sources).map(|(s, p)| s.zip(*p));
        let operands = sources.map(|source| source.map(|(tensor, place)| layout(tensor, place)).transpose());
        let operands = operands.collect::<Result<Vec<_>, _>>()?;
        let result = layout(tensor, dst)?;
        program.push(tensor, record.op, record.params.clone(), operands, result);
        Ok(dst)
    }

    fn compile_error(&self, device: DeviceId, split: SplitId, error: DeviceError) -> ExecError {
        match self.labels.error(device, &error) {
            ExecError::Device { device, at, error } => {
                ExecError::device(device, At { split: Some(split), ..*at }, *error)
            }
            other => other,
        }
    }

    fn ready(&self, programs: &[Programs]) -> Result<Vec<IdVec<StepId, Ready>>, ExecError> {
        let turn = |turn: u32| {
            let steps = self.schedule.steps.ids();
            steps.map(|step| self.ready_step(step, turn, &programs[turn as usize])).collect::<Result<Vec<_>, _>>()
        };
        (0..self.schedule.turns()).map(|t| turn(t).map(IdVec::from_vec)).collect()
    }

    fn ready_step(&self, step: StepId, turn: u32, programs: &Programs) -> Result<Ready, ExecError> {
        let record = self.schedule.steps[step];
        let experts = |copy| self.schedule.experts.iter().position(|e| e.copy == copy);
        match (record.action, self.schedule.moved(step, turn)) {
            (Action::Write { .. }, Some(moved)) => self.region(moved.to).map(Ready::Write),
            (Action::Copy { copy, .. }, Some(moved)) => {
                self.copy(moved, self.planned.splits.copies()[copy].tensor).map(Ready::Copy)
            }
            (Action::Fetch { output }, Some(moved)) => self.copy(moved, output).map(Ready::Copy),
            (Action::Ids { copy }, Some(moved)) => {
                let of = experts(copy).ok_or_else(|| self.broken(step))?;
                Ok(Ready::Ids { of, from: self.region(moved.from)? })
            }
            (Action::Experts { copy }, Some(moved)) => {
                let of = experts(copy).ok_or_else(|| self.broken(step))?;
                Ok(Ready::Experts { of, whole: self.copy(moved, self.schedule.experts[of].weights)? })
            }
            (Action::Compute { first, end }, _) => {
                let bound = record.split.map(|s| &programs[s]).ok_or_else(|| self.broken(step))?;
                let at = |position: u32| bound.before[position as usize - bound.first_position];
                let range = at(first)..at(end);
                let nodes = bound.first_command + range.start..bound.first_command + range.end;
                let range = CommandId::new(range.start)..CommandId::new(range.end);
                Ok(Ready::Compute { program: Arc::clone(&bound.program), range, nodes })
            }
            (_, None) => Err(self.broken(step)),
        }
    }

    /// A step without what its action needs: our own fault.
    fn broken(&self, step: StepId) -> ExecError {
        ExecError::NoBuffer { what: format!("{step} of the schedule") }
    }

    fn copy(&self, moved: Move, tensor: TensorId) -> Result<CopyCommand, ExecError> {
        Ok(CopyCommand { from: self.region(moved.from)?, to: self.region(moved.to)?, tensor: Some(tensor) })
    }

    /// By step that is waited for, by other steps or by who reads a fetched output: an event per turn.
    fn events(&self, waits: &Waits) -> Result<IdVec<StepId, Vec<Arc<dyn Event>>>, ExecError> {
        let of_step = |step: StepId| {
            let record = self.schedule.steps[step];
            let recorded = waits.is_recorded(step) || matches!(record.action, Action::Fetch { .. });
            let queue = self.schedule.queues[record.queue];
            let Some(device) = queue.device().filter(|_| recorded) else { return Ok(Vec::new()) };
            let make = |_| self.runtime.device(device).create_event();
            let made: Result<Vec<_>, _> = (0..self.schedule.turns()).map(make).collect();
            made.map_err(|error| ExecError::device(device, At::default(), error))
        };
        self.schedule.steps.ids().map(of_step).collect::<Result<Vec<_>, _>>().map(IdVec::from_vec)
    }

    /// By queue: two events.
    fn pace(&self) -> Result<Vec<Option<Pair>>, ExecError> {
        let of_device = |device: DeviceId| {
            let make = || self.runtime.device(device).create_event();
            let pair = make().and_then(|first| Ok([first, make()?]));
            pair.map_err(|error| ExecError::device(device, At::default(), error))
        };
        let queues = self.schedule.queues.values();
        queues.map(|queue| queue.device().map(of_device).transpose()).collect()
    }

    fn streams(&self) -> Result<Vec<Option<Arc<dyn Stream>>>, ExecError> {
        self.schedule.queues.values().map(|&queue| self.runtime.stream(queue)).collect()
    }

    /// What still holds its value when a run has ended: outputs, and nodes with memory of their own.
    fn kept(&self) -> BTreeMap<TensorId, (DeviceId, Vec<Region>)> {
        let graph = self.planned.graph();
        let mut places = self.places();
        let mut kept = BTreeMap::new();
        for &tensor in graph.nodes().values() {
            let root = graph.tensor(tensor).view.map_or(tensor, |v| v.root);
            let is_output = |t: TensorId| graph.tensor(t).flags.is_output();
            if !self.planned.residency.has_memory(root) && !is_output(tensor) && !is_output(root) {
                continue;
            }
            let turns = (0..self.schedule.turns()).map(|turn| self.region(places.of_tensor(tensor, turn)?));
            // What no step touches, a view that nobody reads, has no memory here and is not kept.
            if let Ok(turns) = turns.collect::<Result<Vec<_>, ExecError>>() {
                kept.insert(tensor, (self.planned.assignment.device(tensor), turns));
            }
        }
        kept
    }

    /// The write step and device of every input.
    fn inputs(&self) -> BTreeMap<TensorId, (StepId, DeviceId)> {
        let writes = self.schedule.steps.iter().filter_map(|(step, record)| match record.action {
            Action::Write { leaf } => Some((leaf, (step, self.planned.assignment.device(leaf)))),
            _ => None,
        });
        writes.collect()
    }

    /// By fetched output: its slot in each turn.
    fn output_regions(&self) -> Result<BTreeMap<TensorId, Vec<Region>>, ExecError> {
        let slot = self.schedule.output_slot.get();
        let of_turn = |place: Place, turn: u32| {
            let offset = place.offset.saturating_add(Bytes(slot * u64::from(turn)));
            self.region(Place { offset, ..place })
        };
        let turns = |place: Place| -> Result<Vec<Region>, ExecError> {
            (0..self.schedule.turns()).map(|turn| of_turn(place, turn)).collect()
        };
        self.schedule.outputs.iter().map(|&(tensor, place)| Ok((tensor, turns(place)?))).collect()
    }
}

impl Run {
    /// The run after this.
    pub(super) fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Executable {
    pub(super) fn named(&self, tensor: TensorId) -> Named {
        self.labels.named(tensor)
    }
}

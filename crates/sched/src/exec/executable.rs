//! A bound plan: what a caller writes, runs and reads.

use super::bind::Ready;
use super::error::ExecError;
use super::experts::Experts;
use super::failure::Labels;
use super::hazards::Waits;
use super::noted::{HostCopy, Notes};
use super::runtime::{Owner, Runtime};
use super::schedule::{Schedule, StepId};
use super::scratch::Scratch;
use loadmaster_backends::{DeviceKind, Event, HostBuffer, Region, Stream};
use loadmaster_graph::{Bytes, DeviceId, IdVec, NodeId, TensorId};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// The number of a run of an executable, from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Run(pub u64);

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "run {}", self.0)
    }
}

/// Two events that are recorded in turn.
pub(super) type Pair = [Arc<dyn Event>; 2];

/// A node that computes, and where its result goes.
#[derive(Debug)]
pub(super) struct NodeCommand {
    pub(super) node: NodeId,
    pub(super) tensor: TensorId,
    pub(super) place: Region,
}

/// How far an executable is.
#[derive(Debug, Default)]
pub(super) struct State {
    /// The run that is prepared or issued next.
    pub(super) next: Run,
    /// The first run whose steps may not have ended: earlier ones are not waited for.
    pub(super) oldest_open: Run,
    /// Inputs that were written for the next run.
    pub(super) written: u32,
    /// By write step: whether it was.
    pub(super) is_written: Vec<bool>,
    /// Whether the last run went to its end, as far as is known.
    pub(super) has_results: bool,
}

/// A plan bound to memory and devices.
///
/// Inputs are written before each run ([`Self::write`]); [`Self::run`] runs to the end, [`Self::run_async`] issues and returns.
/// With several turns, runs overlap. Steady running allocates nothing.
pub struct Executable {
    pub(super) runtime: Arc<Runtime>,
    pub(super) owner: Owner,
    pub(super) schedule: Schedule,
    pub(super) waits: Waits,
    pub(super) labels: Labels,
    pub(super) notes: Notes,
    /// By turn and step.
    pub(super) ready: Vec<IdVec<StepId, Ready>>,
    /// The nodes that compute, turn by turn, in order.
    pub(super) commands: Vec<NodeCommand>,
    /// By step that is waited for and turn.
    pub(super) events: IdVec<StepId, Vec<Arc<dyn Event>>>,
    /// By queue; none for the host.
    pub(super) streams: Vec<Option<Arc<dyn Stream>>>,
    /// By queue: two events that mark the ends of every so many runs.
    pub(super) pace: Vec<Option<Pair>>,
    pub(super) experts: Vec<Experts>,
    /// Device and places by turn of what can be read after a run.
    pub(super) kept: BTreeMap<TensorId, (DeviceId, Vec<Region>)>,
    /// Write step and device of every input.
    pub(super) inputs: BTreeMap<TensorId, (StepId, DeviceId)>,
    /// Host slots by turn of fetched outputs.
    pub(super) output_turns: BTreeMap<TensorId, Vec<Region>>,
    /// Where those slots are; other plans of the session use them too.
    pub(super) scratch: Arc<Scratch>,
    pub(super) state: State,
}

impl Executable {
    /// The steps of a run.
    #[must_use]
    pub fn schedule(&self) -> &Schedule {
        &self.schedule
    }
    /// The waits between them.
    #[must_use]
    pub fn waits(&self) -> &Waits {
        &self.waits
    }
    /// Leaves out the wait at `index` of [`Waits::iter`]: a fault for tests, which must notice that it is missed.
    pub fn remove_wait(&mut self, index: usize) {
        self.waits = self.waits.without(index);
    }
    /// The devices that it runs on.
    #[must_use]
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }
    /// The inputs: leafs without memory of their own, to be written before each run.
    pub fn inputs(&self) -> impl Iterator<Item = TensorId> {
        self.inputs.keys().copied()
    }
    /// The run that is prepared or issued next.
    #[must_use]
    pub fn next_run(&self) -> Run {
        self.state.next
    }

    pub(super) fn turn_of(&self, run: Run) -> u32 {
        // The remainder is less than a `u32`.
        (run.0 % u64::from(self.schedule.turns())) as u32
    }

    /// Reads a tensor after its run has ended: an output, or what has memory of its own, as the last run left it. Waits for
    /// everything issued.
    ///
    /// Errors: a failed run, a tensor whose memory is used again during the run, another length than the tensor's.
    pub fn read(&mut self, tensor: TensorId, bytes: &mut [u8]) -> Result<(), ExecError> {
        self.synchronize()?;
        if !self.state.has_results {
            return Err(ExecError::NoResults);
        }
        let not_kept = || ExecError::NotKept(self.labels.named(tensor));
        let (device, turns) = self.kept.get(&tensor).ok_or_else(not_kept)?;
        let last = Run(self.state.next.0.saturating_sub(1));
        let region = &turns[self.turn_of(last) as usize];
        self.check_len(tensor, region.len, bytes.len())?;
        let name = self.labels.names.get(tensor).map_or("", |n| &**n);
        let span = self.notes.host_copy(HostCopy::Read, *device, region, name);
        let outcome = self.runtime.device(*device).download(region, bytes);
        drop(span);
        outcome.map_err(|error| self.labels.error(*device, &error))
    }

    /// The fetched output of a run, as soon as it has arrived. Waits for that run's copy of it only.
    ///
    /// Errors: a failed run, a tensor that is not fetched, a run whose slot was used again (by a
    /// later run, or by another plan of the session), another length than the tensor's.
    pub fn read_fetched(&mut self, run: Run, tensor: TensorId, bytes: &mut [u8]) -> Result<(), ExecError> {
        let turns = self.schedule.turns();
        if !self.state.has_results {
            return Err(ExecError::NoResults);
        }
        let is_kept = run < self.state.next && run.0 + u64::from(turns) >= self.state.next.0;
        if !is_kept || !self.scratch.is_of(self.owner) {
            return Err(ExecError::Overwritten { run: run.0, kept: turns });
        }
        self.await_fetch(run, tensor)?;
        let not_kept = || ExecError::NotKept(self.labels.named(tensor));
        let region = &self.output_turns.get(&tensor).ok_or_else(not_kept)?[self.turn_of(run) as usize];
        self.check_len(tensor, region.len, bytes.len())?;
        let host = region.buffer.as_any().downcast_ref::<HostBuffer>().ok_or_else(not_kept)?;
        host.read(region.offset, bytes).map_err(|_| not_kept())
    }

    pub(super) fn check_len(&self, tensor: TensorId, expected: Bytes, found: usize) -> Result<(), ExecError> {
        let found = Bytes(found as u64);
        if found == expected { Ok(()) } else { Err(ExecError::Length { tensor: self.named(tensor), expected, found }) }
    }

    /// Whether all devices that it uses are of the host.
    #[must_use]
    pub fn is_host_only(&self) -> bool {
        let used = self.schedule.queues().values().filter_map(|q| q.device());
        used.map(|d| self.runtime.device(d).kind()).all(|kind| kind == DeviceKind::Cpu)
    }
}

impl fmt::Debug for Executable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (steps, waits) = (self.schedule.steps().len(), self.waits.len());
        write!(f, "Executable({steps} steps, {waits} waits, {} turns)", self.schedule.turns())
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        self.runtime.leave(self.owner);
    }
}

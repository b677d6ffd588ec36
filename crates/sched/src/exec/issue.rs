//! Running: the host's part of the protocol.

use super::bind::Ready;
use super::error::ExecError;
use super::executable::{Executable, Run};
use super::noted::HostCopy;
use super::observe::{Flow, Observer, Unobserved};
use super::runtime::{Runtime, Turn};
use super::schedule::{Action, QueueId, StepId};
use loadmaster_backends::{CommandId, Compiled, DeviceError, Stream};
use loadmaster_graph::{DeviceId, TensorId};
use std::ops::Range;
use std::sync::Arc;

/// After so many runs the host waits for those before: twice as many are open at most.
const PACE: u64 = 32;

impl Executable {
    /// Writes an input of the next run. Waits until the runs that still read this turn's slot have done so.
    ///
    /// Errors: no input, another length than the tensor's, a device or an earlier run that failed.
    pub fn write(&mut self, tensor: TensorId, bytes: &[u8]) -> Result<(), ExecError> {
        let Some(&(step, device)) = self.inputs.get(&tensor) else {
            return Err(ExecError::NotAnInput(self.named(tensor)));
        };
        let runtime = Arc::clone(&self.runtime);
        let turn = self.begin(&runtime);
        let slot = &self.ready[self.turn_of(self.state.next) as usize][step];
        let Ready::Write(region) = slot else { return Err(ExecError::NotAnInput(self.named(tensor))) };
        self.check_len(tensor, region.len, bytes.len())?;
        let outcome = self.wait_to_write(step).and_then(|()| {
            let name = self.labels.names.get(tensor).map_or("", |n| &**n);
            let span = self.notes.host_copy(HostCopy::Write, device, region, name);
            let upload = self.runtime.device(device).upload(region, bytes);
            drop(span);
            upload.map_err(|error| (device, DeviceError { tensor: Some(tensor), ..error }))
        });
        drop(turn);
        outcome.or_else(|failure| self.fail(Some(failure)))?;
        let first_time = !std::mem::replace(&mut self.state.is_written[step.index()], true);
        self.state.written += u32::from(first_time);
        Ok(())
    }

    /// Runs once and waits for the end. Errors: an input that was not written, a device that failed.
    pub fn run(&mut self) -> Result<(), ExecError> {
        self.run_async()?;
        self.synchronize()
    }

    /// Issues a run and returns; with several turns, the next inputs can be written at once.
    ///
    /// Errors: an input that was not written, a device that failed, in this run or in one issued earlier.
    pub fn run_async(&mut self) -> Result<Run, ExecError> {
        self.issue(&mut Unobserved).map(|(run, _)| run)
    }

    /// Runs once, shows the observer the nodes that it wants as soon as each is computed, and waits for the end. A run that
    /// the observer stops has no outputs.
    ///
    /// Errors: as [`Self::run`].
    pub fn run_observed(&mut self, observer: &mut dyn Observer) -> Result<Flow, ExecError> {
        let (_, flow) = self.issue(observer)?;
        self.synchronize()?;
        Ok(flow)
    }

    /// Waits for all runs. Errors: what failed first in any of them; all of them are then lost.
    pub fn synchronize(&mut self) -> Result<(), ExecError> {
        self.state.oldest_open = self.state.next;
        let span = self.notes.host_sync();
        let failures = self.runtime.settle(self.owner);
        drop(span);
        let Some((device, error)) = failures.first() else { return Ok(()) };
        self.state.has_results = false;
        self.forget_inputs();
        Err(self.report(*device, error))
    }

    /// Takes the turn. If others ran meanwhile, they may have used the memory of inputs that were written.
    fn begin<'a>(&mut self, runtime: &'a Runtime) -> Turn<'a> {
        let turn = runtime.take_turn(self.owner);
        if turn.is_new {
            self.state.oldest_open = self.state.next;
            self.forget_inputs();
        }
        turn
    }

    fn forget_inputs(&mut self) {
        self.state.written = 0;
        self.state.is_written.fill(false);
    }

    fn issue(&mut self, observer: &mut dyn Observer) -> Result<(Run, Flow), ExecError> {
        let runtime = Arc::clone(&self.runtime);
        let turn = self.begin(&runtime);
        self.check_inputs()?;
        self.scratch.used_by(self.owner);
        let outcome = self.issue_steps(observer).and_then(|flow| self.pace().map(|()| flow));
        drop(turn);
        let run = self.state.next;
        self.forget_inputs();
        self.state.has_results = matches!(outcome, Ok(Flow::Continue));
        match outcome {
            Ok(flow) => {
                self.state.next = run.next();
                Ok((run, flow))
            }
            Err(Interrupt::Failed(device, error)) => self.fail(Some((device, error))).map(|()| (run, Flow::Stop)),
            Err(Interrupt::Refused(error)) => self.fail(None).and(Err(error)),
        }
    }

    fn check_inputs(&self) -> Result<(), ExecError> {
        if self.state.written as usize == self.inputs.len() {
            return Ok(());
        }
        let missing = self.inputs.iter().find(|(_, (step, _))| !self.state.is_written[step.index()]);
        missing.map_or(Ok(()), |(&tensor, _)| Err(ExecError::InputMissing(self.named(tensor))))
    }

    fn issue_steps(&mut self, observer: &mut dyn Observer) -> Result<Flow, Interrupt> {
        for step in self.schedule.steps().ids() {
            let queue = self.schedule.steps()[step].queue;
            let flow = match self.stream_of(queue) {
                None => self.host_step(step)?,
                Some((device, stream)) => self.device_step((step, queue), device, &stream, observer)?,
            };
            if flow == Flow::Stop {
                return Ok(Flow::Stop);
            }
        }
        Ok(Flow::Continue)
    }

    /// Marks the end of every [`PACE`]-th run in all queues, and waits for the mark before.
    fn pace(&mut self) -> Result<(), Interrupt> {
        let issued = self.state.next.0 + 1;
        if !issued.is_multiple_of(PACE) {
            return Ok(());
        }
        let half = (issued / PACE % 2) as usize;
        for (queue, events) in self.schedule.queues().ids().zip(&self.pace) {
            let Some((device, stream)) = self.stream_of(queue) else { continue };
            let failed = |error| Interrupt::Failed(device, error);
            let Some(events) = events else { continue };
            if issued - self.state.oldest_open.0 > PACE {
                events[1 - half].synchronize().map_err(failed)?;
            }
            stream.record(&events[half]).map_err(failed)?;
        }
        self.state.oldest_open = self.state.oldest_open.max(Run(issued.saturating_sub(PACE)));
        Ok(())
    }

    fn stream_of(&self, queue: QueueId) -> Option<(DeviceId, Arc<dyn Stream>)> {
        let device = self.schedule.queues()[queue].device()?;
        Some((device, Arc::clone(self.streams[queue.index()].as_ref()?)))
    }

    fn host_step(&mut self, step: StepId) -> Result<Flow, Interrupt> {
        let turn = self.turn_of(self.state.next) as usize;
        if let Ready::Ids { of, from } = &self.ready[turn][step] {
            self.wait_on_host(step)?;
            let experts = &mut self.experts[*of];
            experts.read(&self.runtime, from)?;
            experts.find_used(&self.labels).map_err(Interrupt::Refused)?;
        }
        // What the caller writes was written, and waited for, before the run was issued.
        Ok(Flow::Continue)
    }

    fn device_step(
        &self,
        (step, queue): (StepId, QueueId),
        device: DeviceId,
        stream: &Arc<dyn Stream>,
        observer: &mut dyn Observer,
    ) -> Result<Flow, Interrupt> {
        let failed = |error| Interrupt::Failed(device, error);
        let telling = self.notes.of(step, queue);
        telling.waits(stream, self.awaited(step).count()).map_err(failed)?;
        self.wait_in_stream(step, stream).map_err(failed)?;
        telling.works(stream).map_err(failed)?;
        let turn = self.turn_of(self.state.next) as usize;
        let mut flow = Flow::Continue;
        match &self.ready[turn][step] {
            Ready::Copy(copy) => stream.copy(copy).map_err(failed)?,
            Ready::Experts { of, whole } => self.experts[*of].copy(stream, whole).map_err(failed)?,
            Ready::Compute { program, range, nodes } => {
                flow = self.compute(device, stream, (program, range), nodes.clone(), observer)?;
            }
            Ready::Write(_) | Ready::Ids { .. } => {}
        }
        telling.ends(stream).map_err(failed)?;
        if let Some(event) = self.events[step].get(turn) {
            stream.record(event).map_err(failed)?;
        }
        Ok(flow)
    }

    /// Puts nodes into a stream, stopping after each that the observer wants to see.
    fn compute(
        &self,
        device: DeviceId,
        stream: &Arc<dyn Stream>,
        (program, range): (&Arc<dyn Compiled>, &Range<CommandId>),
        nodes: Range<usize>,
        observer: &mut dyn Observer,
    ) -> Result<Flow, Interrupt> {
        let failed = |error| Interrupt::Failed(device, error);
        let mut first = range.start;
        if observer.sees_nodes() {
            for (i, command) in self.commands[nodes].iter().enumerate() {
                if !observer.wants(command.node, command.tensor) {
                    continue;
                }
                let end = CommandId::new(range.start.index() + i + 1);
                stream.execute(program, first..end).and_then(|()| stream.synchronize()).map_err(failed)?;
                first = end;
                let mut bytes = vec![0; command.place.len.get() as usize];
                self.runtime.device(device).download(&command.place, &mut bytes).map_err(failed)?;
                if observer.seen(command.node, command.tensor, &bytes) == Flow::Stop {
                    return Ok(Flow::Stop);
                }
            }
        }
        if first < range.end {
            stream.execute(program, first..range.end).map_err(failed)?;
        }
        Ok(Flow::Continue)
    }

    /// The events that a step of the next run waits for.
    fn awaited(&self, step: StepId) -> impl Iterator<Item = &Arc<dyn loadmaster_backends::Event>> {
        let (next, oldest) = (self.state.next, self.state.oldest_open);
        self.waits.of(step).iter().filter_map(move |wait| {
            let run = next.0.checked_sub(u64::from(wait.runs_back)).filter(|&run| run >= oldest.0)?;
            self.events[wait.on].get(self.turn_of(Run(run)) as usize)
        })
    }

    fn wait_in_stream(&self, step: StepId, stream: &Arc<dyn Stream>) -> Result<(), DeviceError> {
        self.awaited(step).try_for_each(|event| stream.wait(event))
    }

    fn wait_on_host(&self, step: StepId) -> Result<(), (DeviceId, DeviceError)> {
        let device = |error: &DeviceError| {
            let found = self.labels.devices.iter().find(|(_, name)| **name == error.device);
            found.map_or(self.runtime.machine().fallback(), |(id, _)| id)
        };
        self.awaited(step).try_for_each(|event| event.synchronize()).map_err(|error| (device(&error), error))
    }

    /// Waits until an input may be written. The waits of a step leave out what the writes before it have waited for, and
    /// the caller may write in another order.
    fn wait_to_write(&self, step: StepId) -> Result<(), (DeviceId, DeviceError)> {
        let earlier = self.schedule.steps().ids().take_while(|&s| s <= step);
        let open = earlier.filter(|&s| !self.state.is_written[s.index()]);
        let is_write = |s: &StepId| matches!(self.schedule.steps()[*s].action, Action::Write { .. });
        open.filter(is_write).try_for_each(|s| self.wait_on_host(s))
    }

    /// Waits until a fetched output of a run has arrived.
    pub(super) fn await_fetch(&mut self, run: Run, tensor: TensorId) -> Result<(), ExecError> {
        if run < self.state.oldest_open {
            return Ok(());
        }
        let fetch = Action::Fetch { output: tensor };
        let step = self.schedule.steps().iter().find(|(_, step)| step.action == fetch).map(|(id, _)| id);
        let event = step.and_then(|step| self.events[step].get(self.turn_of(run) as usize));
        match event.map(|event| event.synchronize()) {
            Some(Err(_)) => self.synchronize(),
            // A device that finds failures later than its events tell may have some that this run began with.
            Some(Ok(())) if self.runtime.is_in_doubt() => self.synchronize(),
            Some(Ok(())) => Ok(()),
            None => Err(ExecError::NotKept(self.named(tensor))),
        }
    }

    /// Drains everything after a failure and says what began it.
    fn fail(&mut self, known: Option<(DeviceId, DeviceError)>) -> Result<(), ExecError> {
        self.state.oldest_open = self.state.next;
        self.state.has_results = false;
        self.forget_inputs();
        let mut failures = self.runtime.settle(self.owner);
        failures.extend(known);
        super::failure::sort(&mut failures);
        match failures.first() {
            Some((device, error)) => Err(self.report(*device, error)),
            None => Ok(()),
        }
    }

    fn report(&self, device: DeviceId, error: &DeviceError) -> ExecError {
        let told = self.labels.error(device, error);
        tracing::error!(target: "loadmaster::exec", device = error.root().device.as_ref(), error = %told, "failure");
        told
    }
}

/// Why issuing stopped.
pub(super) enum Interrupt {
    /// A device failed.
    Failed(DeviceId, DeviceError),
    /// The host cannot go on.
    Refused(ExecError),
}

impl From<(DeviceId, DeviceError)> for Interrupt {
    fn from((device, error): (DeviceId, DeviceError)) -> Self {
        Self::Failed(device, error)
    }
}

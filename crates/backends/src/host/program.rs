//! Programs with addresses instead of buffers.

use crate::clock::SimTime;
use crate::cpu::{NodeArgs, TensorMut, TensorRef};
use crate::error::{Call, DeviceError, Fault};
use crate::host::core::{Arithmetic, Core};
use crate::host::faults::Faults;
use crate::program::{Command, Compiled, Operand, Program, computes};
use crate::stats::Counters;
use loadmaster_alloc::Buffer;
use loadmaster_graph::{Bytes, Op};
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A compiled program. The buffers in `program` keep the addresses valid.
#[derive(Debug)]
pub(crate) struct HostProgram {
    core: Arc<Core>,
    program: Program,
    nodes: Vec<Node>,
    sources: Vec<Option<TensorRef>>,
}

#[derive(Debug)]
struct Node {
    dst: TensorMut,
    sources: Range<usize>,
    time: SimTime,
}

/// Where a device finds a buffer's bytes: an address, or `None` where it has no bytes.
pub(crate) type Resolve<'a> = &'a dyn Fn(&dyn Buffer, Bytes, Bytes) -> Result<Option<*mut u8>, Fault>;

impl HostProgram {
    /// Checks a program and resolves its operands. Errors name the tensor.
    pub(crate) fn new(core: &Arc<Core>, program: Program, resolve: Resolve<'_>) -> Result<Self, DeviceError> {
        program
            .check(&core.kernels.in_place())
            .map_err(|(tensor, fault)| core.error(Call::Compile, Some(tensor), fault))?;
        let mut nodes = Vec::with_capacity(program.commands().len());
        let mut sources = Vec::new();
        for command in program.commands() {
            let named = |fault| core.error(Call::Compile, Some(command.tensor), fault);
            let first = sources.len();
            for source in program.sources(command) {
                let source = source.map(|s| tensor_mut(&program, &s, resolve)).transpose().map_err(named)?;
                sources.push(source.map(|s| TensorRef { dtype: s.dtype, ne: s.ne, nb: s.nb, data: s.data }));
            }
            let dst = tensor_mut(&program, &command.dst, resolve).map_err(named)?;
            check_written(&program, command).map_err(named)?;
            let model = core.timing.as_ref().map(|t| &t.model);
            let time = model.map(|m| m.node(command.op, program.sources(command), &command.dst)).unwrap_or_default();
            nodes.push(Node { dst, sources: first..sources.len(), time });
        }
        Counters::add(&core.counters.compiled, 1);
        Ok(Self { core: Arc::clone(core), program, nodes, sources })
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Simulated time of some commands.
    pub(crate) fn time(&self, range: &Range<usize>) -> SimTime {
        self.nodes[range.clone()].iter().fold(SimTime::default(), |sum, n| sum.plus(n.time))
    }

    /// Computes some commands in order. Errors: the first that fails; a kernel that panics is one that fails.
    pub(crate) fn run(&self, range: Range<usize>) -> Result<(), DeviceError> {
        let mut at = range.start;
        let mut stop = None;
        let mut next = || {
            while at < range.end {
                at += 1;
                let command = &self.program.commands()[at - 1];
                if computes(command.op) {
                    return self.admit(at - 1).map_err(|fault| stop = Some(fault)).ok().flatten();
                }
            }
            None
        };
        // SAFETY: every operand was checked to lie inside its buffer, which `program` keeps alive; the executor's
        // protocol orders each node after all earlier uses of the result's bytes and after the writes of its sources,
        // and in-place sharing follows the kernels' own table.
        let outcome = catch_unwind(AssertUnwindSafe(|| unsafe { self.core.kernels.run(&mut next) }));
        let why = match (stop, outcome) {
            (Some(fault), _) => return Err(self.failed(at, |_| fault)),
            (None, Ok(Ok(()))) => return Ok(()),
            (None, Ok(Err(error))) => error.to_string(),
            (None, Err(panic)) => format!("it panicked: {}", panic_text(panic.as_ref())),
        };
        Err(self.failed(at, |op| Fault::Kernel { op, why }))
    }

    /// The operands of a node that may run now; `None` where only time is simulated. Errors: a fault on demand.
    fn admit(&self, index: usize) -> Result<Option<NodeArgs<'_>>, Fault> {
        let core = &self.core;
        if core.faults.death.trips() {
            core.faults.die();
        }
        core.faults.check_alive()?;
        if core.faults.kernels.trips() {
            return Err(Faults::injected("node"));
        }
        Counters::add(&core.counters.kernels, 1);
        if core.arithmetic == Arithmetic::TimeOnly {
            return Ok(None);
        }
        let (node, command) = (&self.nodes[index], &self.program.commands()[index]);
        let src = &self.sources[node.sources.clone()];
        Ok(Some(NodeArgs { op: command.op, params: &command.params, src, dst: node.dst }))
    }

    /// The error of the command before `end`.
    fn failed(&self, end: usize, fault: impl FnOnce(Op) -> Fault) -> DeviceError {
        let command = end.checked_sub(1).and_then(|i| self.program.commands().get(i));
        let fault = fault(command.map_or(Op::None, |c| c.op));
        self.core.error(Call::Execute, command.map(|c| c.tensor), fault)
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

fn tensor_mut(program: &Program, operand: &Operand, resolve: Resolve<'_>) -> Result<TensorMut, Fault> {
    let buffer = &program.buffers()[operand.slot.index()];
    let len = operand.span().unwrap_or(Bytes::MAX);
    let ptr = resolve(buffer.as_ref(), operand.offset, len)?;
    let data = ptr.unwrap_or(std::ptr::null_mut());
    let (address, align) = (data.addr() as u64, operand.element_align());
    if !address.is_multiple_of(align) {
        return Err(Fault::Misaligned { offset: Bytes(address % align), align });
    }
    Ok(TensorMut { dtype: operand.dtype, ne: operand.ne, nb: operand.nb, data })
}

/// A command that computes must not write memory that may only be read.
fn check_written(program: &Program, command: &Command) -> Result<(), Fault> {
    if !computes(command.op) {
        return Ok(());
    }
    let buffer = &program.buffers()[command.dst.slot.index()];
    match buffer.as_any().downcast_ref::<super::HostBuffer>() {
        Some(host) => host.check_writable(),
        None => Ok(()),
    }
}

impl Compiled for HostProgram {
    fn len(&self) -> usize {
        self.nodes.len()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

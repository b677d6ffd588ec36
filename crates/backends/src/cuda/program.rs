//! Programs as kernels and products with addresses.

use super::core::{Core, ScratchUser};
use super::handles::RawStream;
use super::launch::types::{
    Base, Launch, Launches, Layout, LmArgs, LmTensor, NODE_CODE, NodeView, Place, Product, WATCH_SOURCE, Work,
};
use super::launch::{self, sources};
use super::memory::CudaBuffer;
use super::modules::Function;
use super::products::{Entered, ReadyProduct};
use super::replay::Replays;
use super::watch::{self, Indexed, Watch, Word};
use crate::error::{Call, DeviceError, Fault};
use crate::program::{Command, Compiled, Operand, Program, Workspace, computes};
use crate::stats::Counters;
use loadmaster_alloc::Buffer;
use loadmaster_graph::{Bytes, TensorId};
use parking_lot::{Mutex, MutexGuard};
use smallvec::SmallVec;
use std::any::Any;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::ops::Range;
use std::sync::Arc;

/// A compiled program. The buffers in `program` keep the addresses valid.
#[derive(Debug)]
pub(crate) struct CudaProgram {
    core: Arc<Core>,
    program: Program,
    work: Vec<Ready>,
    /// By command: its work.
    of_command: Vec<Range<usize>>,
    scratch: Option<Arc<dyn Buffer>>,
    /// Its address.
    scratch_at: u64,
    watch: Option<Arc<Watch>>,
    /// By which streams know that it can still be launched.
    _alive: Arc<()>,
    replays: Mutex<Replays>,
}

/// Work that is ready to be put into a stream.
#[derive(Debug)]
enum Ready {
    Kernel(Box<ReadyKernel>),
    Product(ReadyProduct),
}

/// A kernel that is ready to be launched.
#[derive(Debug)]
struct ReadyKernel {
    function: Function,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    args: LmArgs,
}

/// A kernel that could not be put into a stream.
pub(crate) struct Refusal {
    /// The tensor that it computes, if it is one kernel.
    pub(crate) tensor: Option<TensorId>,
    /// Why.
    pub(crate) fault: Fault,
}

impl From<Fault> for Refusal {
    fn from(fault: Fault) -> Self {
        Self { tensor: None, fault }
    }
}

/// The right to use scratch memory.
type Turn<'a> = MutexGuard<'a, ScratchUser>;

/// The addresses that a command's launches refer to.
struct Addresses {
    dst: u64,
    src: SmallVec<[u64; 8]>,
    scratch: u64,
    watch: u64,
    /// The node's number in the word there.
    code: u32,
}

impl Addresses {
    fn of(&self, place: Place) -> Option<u64> {
        let base = match place.base {
            Base::Absent => return Some(0),
            Base::Dst => self.dst,
            Base::Source(i) => *self.src.get(usize::from(i))?,
            Base::Scratch => self.scratch,
            Base::Watch => self.watch,
        };
        base.checked_add(place.offset)
    }
}

/// What a program takes of its device.
pub(crate) struct Supply<'a> {
    /// Scratch memory of at least so many bytes.
    pub(crate) scratch: &'a dyn Fn(Bytes) -> Result<Arc<CudaBuffer>, Fault>,
    /// A word in which kernels note an index that names no row.
    pub(crate) word: &'a dyn Fn() -> Result<Word, Fault>,
}

impl CudaProgram {
    /// Checks a program, finds its kernels and resolves its operands. Errors name the tensor.
    pub(crate) fn new(core: &Arc<Core>, program: Program, supply: &Supply<'_>) -> Result<Self, DeviceError> {
        let failed = |tensor, fault| core.error(Call::Compile, tensor, fault);
        program.check(&launch::in_place()).map_err(|(tensor, fault)| failed(Some(tensor), fault))?;
        let mut plans = Vec::with_capacity(program.commands().len());
        let mut scratch_bytes = 0;
        for command in program.commands() {
            let plan = plan(core, &program, command).map_err(|fault| failed(Some(command.tensor), fault))?;
            scratch_bytes = scratch_bytes.max(plan.scratch_bytes);
            plans.push(plan);
        }
        let taken =
            (scratch_bytes > 0).then(|| workspace(core, &program, Bytes(scratch_bytes), supply.scratch)).transpose();
        let scratch = taken.map_err(|fault| failed(None, fault))?;
        let scratch_at =
            scratch.as_ref().map_or(Ok(0), |buffer| address_in(core, buffer, Bytes::ZERO, Bytes(scratch_bytes)));
        let scratch_at = scratch_at.map_err(|fault| failed(None, fault))?;
        let alive = Arc::new(());
        let watch = watch(&program, &plans, supply, &alive).map_err(|fault| failed(None, fault))?;
        load(core, &program, &plans)?;
        let (mut work, mut of_command) = (Vec::new(), Vec::with_capacity(plans.len()));
        for (code, (command, plan)) in (1..).zip(program.commands().iter().zip(plans)) {
            let first = work.len();
            let named = |fault| failed(Some(command.tensor), fault);
            let addresses = addresses(core, &program, command, scratch_at).map_err(named)?;
            let watch = watch.as_ref().map_or(Ok(0), |watch| watch.address()).map_err(named)?;
            let addresses = Addresses { watch, code, ..addresses };
            for one in plan.list {
                work.push(ready(core, one, &addresses).map_err(named)?);
            }
            of_command.push(first..work.len());
        }
        Counters::add(&core.counters.compiled, 1);
        Ok(Self {
            core: Arc::clone(core),
            program,
            work,
            of_command,
            scratch,
            scratch_at,
            watch,
            _alive: alive,
            replays: Mutex::default(),
        })
    }

    /// The device that it was compiled for.
    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// What its kernels note, if any look at indices.
    pub(crate) fn watch(&self) -> Option<&Arc<Watch>> {
        self.watch.as_ref()
    }

    /// Puts the kernels of some commands into a stream. Errors: the tensor whose kernel could not be put in, and why.
    pub(crate) fn launch(&self, stream: &Arc<RawStream>, range: Range<usize>) -> Result<(), Refusal> {
        let commands = &self.program.commands()[range.clone()];
        let of_command = &self.of_command[range];
        let (Some(first), Some(last)) = (of_command.first(), of_command.last()) else { return Ok(()) };
        let turn = self.scratch.as_ref().map(|_| self.core.enter_scratch(stream)).transpose()?;
        let put = || {
            let mut library = None;
            commands.iter().zip(of_command).try_for_each(|(command, work)| {
                let ready = &self.work[work.clone()];
                let mut outcome = || {
                    if library.is_none() && ready.iter().any(|ready| matches!(ready, Ready::Product(_))) {
                        library = self.enter_library(turn.as_ref(), stream)?;
                    }
                    ready.iter().try_for_each(|ready| self.put_one(stream, ready, library.as_ref()))
                };
                outcome().map_err(|fault| Refusal { tensor: Some(command.tensor), fault })
            })
        };
        self.replays.lock().launch(&self.core.context, stream, first.start..last.end, put)?;
        let computed = commands.iter().filter(|command| computes(command.op)).count();
        Counters::add(&self.core.counters.kernels, computed as u64);
        Ok(())
    }

    /// cuBLAS in the program's scratch memory, for whoever has that.
    fn enter_library(&self, turn: Option<&Turn<'_>>, stream: &RawStream) -> Result<Option<Entered<'_>>, Fault> {
        let (Some(turn), Ok(library)) = (turn, &self.core.products) else { return Ok(None) };
        library.enter(turn, stream, self.scratch_at).map(Some)
    }

    fn put_one(&self, stream: &RawStream, ready: &Ready, library: Option<&Entered<'_>>) -> Result<(), Fault> {
        match ready {
            Ready::Kernel(kernel) => self.launch_one(stream, kernel),
            Ready::Product(product) => {
                // A product has scratch memory for the library, whose device has one.
                let library = library.ok_or_else(|| nowhere("cuBLAS", "the library"))?;
                library.multiply(product)
            }
        }
    }

    fn launch_one(&self, stream: &RawStream, ready: &ReadyKernel) -> Result<(), Fault> {
        let ([gx, gy, gz], [bx, by, bz]) = (ready.grid, ready.block);
        let (function, shared) = (ready.function.raw(), ready.shared_bytes);
        let mut parameters = [(&raw const ready.args).cast_mut().cast::<c_void>()];
        let list = parameters.as_mut_ptr();
        self.core.context.call(|driver| {
            // SAFETY: every kernel takes one `LmArgs`, which the driver copies before it returns. Every operand was
            // checked to lie inside its buffer, which `program` keeps alive until no GPU runs anything; the executor's
            // protocol orders the kernel with all other uses of these bytes.
            unsafe { driver.launch(function, gx, gy, gz, bx, by, bz, shared, stream.raw(), list, std::ptr::null_mut()) }
        })
    }
}

/// The word for a program's nodes that look at indices, if there are any.
fn watch(
    program: &Program,
    plans: &[Launches],
    supply: &Supply<'_>,
    alive: &Arc<()>,
) -> Result<Option<Arc<Watch>>, Fault> {
    let looks = |plan: &Launches| plan.kernels().any(|launch| launch.src[WATCH_SOURCE].base == Base::Watch);
    let watched = (1..).zip(program.commands().iter().zip(plans)).filter(|(_, (_, plan))| looks(plan));
    let node = |(code, (command, _)): (u32, (&Command, &Launches))| {
        let src = layouts(program, command);
        let (operand, rows) = watch::indices(&view(command, &src))?;
        Some(Indexed { code, tensor: command.tensor, op: command.op, operand, rows })
    };
    let nodes: Vec<_> = watched.filter_map(node).collect();
    if nodes.is_empty() {
        return Ok(None);
    }
    Ok(Some(Arc::new(Watch::new((supply.word)()?, nodes, alive))))
}

/// Loads all kernels of a program that are not loaded. Errors name a tensor that needs what could not be had.
fn load(core: &Core, program: &Program, plans: &[Launches]) -> Result<(), DeviceError> {
    let part = |launch: &Launch| sources::part(launch.source, launch.kernel);
    let parts: BTreeSet<_> = plans.iter().flat_map(Launches::kernels).map(part).collect();
    let loaded = core.context.modules().load(&core.context, &parts, core.target.arch);
    loaded.map_err(|(missing, fault)| {
        let needs = |plan: &Launches| plan.kernels().any(|launch| part(launch) == missing);
        let command = plans.iter().position(needs).and_then(|at| program.commands().get(at));
        core.error(Call::Compile, command.map(|command| command.tensor), fault)
    })
}

fn layouts(program: &Program, command: &Command) -> SmallVec<[Option<Layout>; 8]> {
    program.sources(command).iter().map(|s| s.as_ref().map(Into::into)).collect()
}

fn view<'a>(command: &'a Command, src: &'a [Option<Layout>]) -> NodeView<'a> {
    NodeView { op: command.op, params: &command.params, src, dst: (&command.dst).into() }
}

fn plan(core: &Core, program: &Program, command: &Command) -> Result<Launches, Fault> {
    if !computes(command.op) || command.dst.elements() == 0 {
        return Ok(Launches::default());
    }
    let src = layouts(program, command);
    launch::launches(&view(command, &src), &core.target).map_err(|e| Fault::Unsupported { op: command.op, why: e.why })
}

/// The program's own workspace, or the device's where the program leaves it to the device. Errors: less than is needed.
fn workspace(
    core: &Core,
    program: &Program,
    needed: Bytes,
    of_device: &dyn Fn(Bytes) -> Result<Arc<CudaBuffer>, Fault>,
) -> Result<Arc<dyn Buffer>, Fault> {
    let given = match program.workspace() {
        Workspace::OfDevice => return of_device(needed).map(|buffer| buffer as Arc<dyn Buffer>),
        Workspace::Given(buffer) if buffer.size() >= needed => return Ok(Arc::clone(buffer)),
        Workspace::Given(buffer) => buffer.size(),
        Workspace::None => Bytes::ZERO,
    };
    Err(Fault::Workspace { target: core.target.to_string(), needed, given })
}

fn addresses(core: &Arc<Core>, program: &Program, command: &Command, scratch: u64) -> Result<Addresses, Fault> {
    let address = |operand: &Operand| address(core, program, operand);
    let src = program.sources(command).iter().map(|s| s.as_ref().map_or(Ok(0), address));
    Ok(Addresses { watch: 0, code: 0, dst: address(&command.dst)?, src: src.collect::<Result<_, _>>()?, scratch })
}

fn address(core: &Arc<Core>, program: &Program, operand: &Operand) -> Result<u64, Fault> {
    let buffer = &program.buffers()[operand.slot.index()];
    address_in(core, buffer, operand.offset, operand.span().unwrap_or(Bytes::MAX))
}

fn address_in(core: &Arc<Core>, buffer: &Arc<dyn Buffer>, offset: Bytes, len: Bytes) -> Result<u64, Fault> {
    let own = buffer.as_any().downcast_ref::<CudaBuffer>().filter(|b| Arc::ptr_eq(b.core(), core));
    let own = own.ok_or_else(|| Fault::WrongMemory { buffer_type: format!("{buffer:?}") })?;
    own.address(offset, len)
}

fn nowhere(module: &str, what: impl std::fmt::Debug) -> Fault {
    Fault::Module { module: module.into(), why: format!("{what:?} is nowhere") }
}

fn ready(core: &Core, work: Work, addresses: &Addresses) -> Result<Ready, Fault> {
    match work {
        Work::Kernel(launch) => Ok(Ready::Kernel(Box::new(ready_kernel(core, *launch, addresses)?))),
        Work::Product(product) => ready_product(product, addresses).map(Ready::Product),
    }
}

fn ready_product(product: Product, addresses: &Addresses) -> Result<ReadyProduct, Fault> {
    let address = |place| addresses.of(place).ok_or_else(|| nowhere("cuBLAS", place));
    let (weights, x, dst) = (address(product.weights.place)?, address(product.x.place)?, address(product.dst.place)?);
    Ok(ReadyProduct { product, weights, x, dst })
}

fn ready_kernel(core: &Core, launch: Launch, addresses: &Addresses) -> Result<ReadyKernel, Fault> {
    let function = core.context.modules().function(&core.context, &launch, core.target.arch)?;
    let Launch { grid, block, shared_bytes, mut args, .. } = launch;
    let set = |tensor: &mut LmTensor, place: Place| {
        tensor.data = addresses.of(place).ok_or_else(|| nowhere(launch.source, place))?;
        Ok(())
    };
    set(&mut args.dst, launch.dst)?;
    args.src.iter_mut().zip(launch.src).try_for_each(|(tensor, place)| set(tensor, place))?;
    if launch.src[WATCH_SOURCE].base == Base::Watch {
        args.l[NODE_CODE] = addresses.code.into();
    }
    Ok(ReadyKernel { function, grid, block, shared_bytes, args })
}

impl Compiled for CudaProgram {
    fn len(&self) -> usize {
        self.of_command.len()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

//! Launches: checks, what a kernel touches, and running it on the bytes behind the device addresses.

use crate::code::{Code, Outcome};
use crate::memory::{Astray, Place};
use crate::race::{Access, Space};
use crate::registry::{Args, HostKernel, Ran, Tensor, run};
use crate::report::Kind;
use crate::shadow::Mode;
use crate::state::{Sort, State};
use crate::task::Task;

/// Separate pieces into which a strided operand is taken apart for race detection; beyond, its whole span counts.
const MOST_PIECES: i64 = 256;

/// A kernel with its parameters, still by device address.
#[derive(Clone)]
pub struct Launch {
    pub name: &'static str,
    pub module: u64,
    pub kernel: &'static HostKernel,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
    pub args: Args,
}

impl std::fmt::Debug for Launch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} over {:?} blocks of {:?}", self.name, self.grid, self.block)
    }
}

/// How a launch is cut into threads.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared: u32,
}

/// Elements and bytes of a block of a ggml type.
fn block_of(ty: i32) -> Option<(i64, i64)> {
    let block = match ty {
        0 | 26 => (1, 4),
        1 | 25 | 30 => (1, 2),
        24 => (1, 1),
        27 | 28 => (1, 8),
        2 | 20 => (32, 18),
        3 => (32, 20),
        6 => (32, 22),
        7 => (32, 24),
        8 => (32, 34),
        9 => (32, 36),
        10 => (256, 84),
        11 => (256, 110),
        12 => (256, 144),
        13 => (256, 176),
        14 => (256, 210),
        15 => (256, 292),
        23 => (256, 136),
        39 => (32, 17),
        _ => return None,
    };
    Some(block)
}

/// Half-open byte ranges of a tensor relative to its data. None if its shape makes no sense.
fn pieces(tensor: &Tensor) -> Option<Vec<(i64, i64)>> {
    let (elements, bytes) = block_of(tensor.ty)?;
    if tensor.ne.iter().any(|n| *n < 0) || tensor.nb.iter().any(|s| *s < 0) || tensor.ne[0] % elements != 0 {
        return None;
    }
    if tensor.ne.contains(&0) {
        return Some(Vec::new());
    }
    let blocks = tensor.ne[0] / elements;
    let mut run = bytes;
    let mut steps = Vec::new();
    for (count, stride) in [
        (blocks, tensor.nb[0]),
        (tensor.ne[1], tensor.nb[1]),
        (tensor.ne[2], tensor.nb[2]),
        (tensor.ne[3], tensor.nb[3]),
    ] {
        if count == 1 {
            continue;
        }
        if steps.is_empty() && stride == run {
            run = run.checked_mul(count)?;
        } else {
            steps.push((count, stride));
        }
    }
    let number = steps.iter().try_fold(1i64, |n, (count, _)| n.checked_mul(*count))?;
    let span =
        steps.iter().try_fold(run, |s, (count, stride)| s.checked_add(count.checked_sub(1)?.checked_mul(*stride)?))?;
    if number > MOST_PIECES {
        return Some(vec![(0, span)]);
    }
    let mut starts = vec![0];
    for (count, stride) in steps {
        starts = (0..count).flat_map(|i| starts.iter().map(move |s| s + i * stride)).collect();
    }
    Some(starts.into_iter().map(|s| (s, s + run)).collect())
}

impl State {
    /// Checks a launch and queues it.
    pub(crate) fn queue_launch(&mut self, function: u64, shape: Shape, stream: u64, args: &Args) -> Outcome<()> {
        let here = self.here()?;
        let stream = self.stream(stream)?;
        let Some(found) = self.functions.get(&function) else {
            return Err(self.bad_handle(Sort::Function, function));
        };
        let (name, module, kernel) = (found.kernel.name(), found.module, found.kernel);
        let (device, shared) = (found.device, found.shared);
        let place = self.known(stream)?.device;
        if place != device || here != device {
            let text = format_args!("{name} of cuda:{device} launched in cuda:{place} while cuda:{here} is current");
            return Err(self.invalid(Code::INVALID_HANDLE, text));
        }
        self.check_shape(name, shape, shared)?;
        let Shape { grid, block, shared } = shape;
        let launch = Launch { name, module, kernel, grid, block, shared, args: *args };
        if let Err(astray) = self.kernel_accesses(&launch, device) {
            self.report.add(Kind::Memory, format_args!("kernel {name} is given {astray}"));
        }
        self.submit(stream, Task::Kernel(Box::new(launch)))?;
        Ok(())
    }

    fn check_shape(&mut self, name: &str, shape: Shape, most_shared: u32) -> Outcome<()> {
        const GRID: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
        const BLOCK: [u32; 3] = [1024, 1024, 64];
        let within = |size: [u32; 3], most: [u32; 3]| size.iter().zip(most).all(|(n, most)| (1..=most).contains(n));
        let threads = shape.block.iter().map(|n| u64::from(*n)).product::<u64>();
        if !within(shape.grid, GRID) || !within(shape.block, BLOCK) || threads > 1024 {
            let text = format_args!("{name} over {:?} blocks of {:?} threads", shape.grid, shape.block);
            return Err(self.invalid(Code::INVALID_VALUE, text));
        }
        if shape.shared > most_shared {
            let text = format_args!("{name} with {} bytes of shared memory, allowed {most_shared}", shape.shared);
            return Err(self.invalid(Code::INVALID_VALUE, text));
        }
        Ok(())
    }

    /// What a kernel touches on `device`.
    pub(crate) fn kernel_accesses(&self, launch: &Launch, device: u32) -> Result<Vec<Access>, Astray> {
        let mut found = Vec::new();
        let operands = std::iter::once(&launch.args.dst).chain(&launch.args.src);
        for (bit, tensor) in operands.enumerate() {
            let mask = 1u32 << bit;
            let modes = [(launch.kernel.reads, Mode::Read), (launch.kernel.writes, Mode::Write)];
            let modes = modes.iter().filter(|(bits, _)| bits & mask != 0).map(|(_, mode)| *mode);
            let modes: Vec<Mode> = modes.collect();
            if tensor.data.is_null() || modes.is_empty() {
                continue;
            }
            self.operand_accesses(device, bit, tensor, &modes, &mut found)?;
        }
        Ok(found)
    }

    /// Adds what is touched of an operand, which has a place.
    pub(crate) fn operand_accesses(
        &self,
        device: u32,
        bit: usize,
        tensor: &Tensor,
        modes: &[Mode],
        found: &mut Vec<Access>,
    ) -> Result<(), Astray> {
        let shape = || Astray::new(format!("operand {bit} of no sensible shape: {tensor:?}"));
        let ranges = pieces(tensor).ok_or_else(shape)?;
        let data = tensor.data as u64;
        let Some(span) = ranges.iter().map(|(_, to)| *to).max() else { return Ok(()) };
        let space = self.operand(device, bit, data, data.wrapping_add(span as u64))?;
        for (from, to) in ranges {
            let (start, end) = (data + from as u64, data + to as u64);
            found.extend(modes.iter().map(|mode| Access { space, start, end, mode: *mode }));
        }
        Ok(())
    }

    fn operand(&self, device: u32, bit: usize, start: u64, end: u64) -> Result<Space, Astray> {
        let bytes = end.checked_sub(start).ok_or_else(|| Astray::new(format!("operand {bit} beyond all addresses")))?;
        match self.resolve(start, bytes).map_err(|astray| Astray::new(format!("operand {bit}: {astray}")))? {
            Place::Pinned { space } => Ok(space),
            Place::Pageable => Err(Astray::new(format!("operand {bit}: host address {start:#x}"))),
            Place::Device { space, device: other } => {
                if other == device || self.devices[device as usize].peers.contains(&other) {
                    return Ok(space);
                }
                Err(Astray::new(format!("operand {bit} on cuda:{other}, which cuda:{device} has no access to")))
            }
        }
    }

    /// Runs a kernel whose accesses were just checked.
    pub(crate) fn launch(&mut self, launch: &Launch, device: u32, label: &str) {
        let mut args = launch.args;
        let mut touched = Vec::new();
        for tensor in std::iter::once(&mut args.dst).chain(&mut args.src) {
            if tensor.data.is_null() {
                continue;
            }
            let address = tensor.data as u64;
            touched.extend(self.memory.containing(address).map(|(base, _)| base));
            // What the kernel neither reads nor writes may point nowhere.
            tensor.data = self.memory.real(address).unwrap_or(std::ptr::null_mut()).cast();
        }
        let before = self.snapshot(&touched);
        // SAFETY: `kernel_accesses` found every operand that the kernel uses inside live memory just now, and the
        // addresses were translated to the bytes behind them.
        let ran = unsafe { run(launch.kernel, launch.grid, launch.block, launch.shared, &args) };
        if ran != Ran::Whole {
            self.report.add(Kind::Invalid, format_args!("{label}: {ran:?}"));
            self.kill(device, Code::LAUNCH_FAILED);
        }
        self.compare(launch, device, label, &before);
        for base in touched {
            let Some(allocation) = self.memory.allocation(base) else { continue };
            if allocation.bytes.guards_intact() {
                continue;
            }
            allocation.bytes.mend();
            let name = allocation.name.clone();
            self.report.add(Kind::Memory, format_args!("{label} wrote outside {name}"));
            self.kill(device, Code::ILLEGAL_ADDRESS);
        }
    }
}

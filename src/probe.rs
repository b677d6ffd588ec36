//! Measures how fast the devices of a machine read, multiply and copy: what [`crate::plan::fit`] predicts from.
//!
//! Everything is the best of a few repetitions, on one device at a time; nothing else should run meanwhile. What a
//! virtual GPU shows is the speed of the processor that stands in for it.

use crate::config::{Config, FileSpeed};
use loadmaster_alloc::{Buffer, BufferType};
use loadmaster_backends::program::{Operand, Program};
use loadmaster_backends::stream::CommandId;
use loadmaster_backends::{CopyCommand, Device, DeviceError, DeviceKind, PeerAccess, Region, Stream};
use loadmaster_graph::{Bytes, DType, DeviceId, IdVec, Op, TensorId};
use loadmaster_sched::Machine;
use loadmaster_sched::machine::{Link, LinkPath, MachineError};
use std::sync::Arc;
use std::time::Instant;

/// Elements of a row of the measured matrix.
const ROW: u64 = 4096;
/// Bytes of the matrix that is read as for one token; more than processors keep in their caches.
const MATRIX_BYTES: u64 = 128 << 20;
/// Rows of the matrix that many columns are multiplied with.
const PRODUCT_ROWS: u64 = 1024;
/// Columns, each tried until one takes [`LONG`].
const COLUMNS: [u64; 3] = [32, 128, 512];
/// Seconds after which no larger product is tried.
const LONG: f64 = 0.05;
/// Bytes of a long copy, and of a short one.
const COPY_BYTES: [u64; 2] = [32 << 20, 64];
/// Repetitions, of which the fastest counts.
const TIMES: usize = 3;
/// Largest share of a device's free memory that is used: one part in so many.
const SHARE: u64 = 4;

/// Why a machine cannot be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// A device failed.
    #[error("{device}: {source}")]
    Device {
        /// Its name.
        device: Box<str>,
        /// What it reports.
        source: DeviceError,
    },
    /// A device has no memory for the measurement.
    #[error("{device}: {needed} to measure with: {why}")]
    Memory {
        /// Its name.
        device: Box<str>,
        /// What was asked for.
        needed: Bytes,
        /// What it says.
        why: String,
    },
    /// The machine with its links contradicts itself.
    #[error(transparent)]
    Machine(#[from] MachineError),
}

/// The machine as a file, with the speeds of its devices and links as measured. `devices` are those of the machine, in
/// its order. A link between devices that share their memory is kept as it was.
pub fn probe(name: &str, machine: &Machine, devices: &[Arc<dyn Device>]) -> Result<Config, ProbeError> {
    let probes: Vec<Probe<'_>> = devices
        .iter()
        .zip(machine.devices().values())
        .map(|(d, m)| Probe::new(d, &m.name))
        .collect::<Result<_, _>>()?;
    let speeds: IdVec<DeviceId, FileSpeed> = probes.iter().map(Probe::speed).collect::<Result<_, _>>()?;
    let mut parts = machine.parts().clone();
    for (device, probe) in machine.devices().ids().zip(&probes) {
        let pool = &mut parts.pools[machine.compute_type(device).pool];
        pool.capacity = pool.capacity.or(probe.device.memory().total);
    }
    let kept: Vec<Link> = parts.links.iter().filter(|l| l.path == LinkPath::Shared).copied().collect();
    let host = &probes[machine.fallback().index()];
    let mut links = kept.clone();
    for from in machine.devices().ids() {
        for to in machine.devices().ids().filter(|&to| to != from && !machine.can_read(to, from)) {
            if kept.iter().all(|l| (l.from, l.to) != (from, to)) {
                links.push(measure_link((from, &probes[from.index()]), (to, &probes[to.index()]), host)?);
            }
        }
    }
    parts.links = links;
    parts.fallback = Some(machine.fallback());
    Ok(Config { name: name.to_owned(), machine: Machine::new(parts)?, speeds })
}

/// A device to be measured.
struct Probe<'a> {
    name: &'a str,
    device: &'a Arc<dyn Device>,
    stream: Arc<dyn Stream>,
}

impl<'a> Probe<'a> {
    fn new(device: &'a Arc<dyn Device>, name: &'a str) -> Result<Self, ProbeError> {
        let failed = |source| ProbeError::Device { device: name.into(), source };
        Ok(Self { name, device, stream: device.create_stream().map_err(failed)? })
    }

    fn failed(&self, source: DeviceError) -> ProbeError {
        ProbeError::Device { device: self.name.into(), source }
    }

    /// Bytes that a measurement may take.
    fn room(&self) -> u64 {
        let memory = self.device.memory();
        let largest = self.device.buffer_type().max_size();
        let free = memory.free.or(memory.total).map_or(u64::MAX, |b| b.get() / SHARE);
        free.min(largest.map_or(u64::MAX, Bytes::get))
    }

    fn take(&self, memory: &Arc<dyn BufferType>, size: Bytes) -> Result<Arc<dyn Buffer>, ProbeError> {
        let failed = |why: String| ProbeError::Memory { device: self.name.into(), needed: size, why };
        memory.alloc_buffer(size).map_err(|e| failed(e.to_string()))
    }

    /// A buffer of zeros in its own memory.
    fn zeros(&self, size: Bytes) -> Result<Arc<dyn Buffer>, ProbeError> {
        let buffer = self.take(&self.device.buffer_type(), size)?;
        let whole = Region { buffer: Arc::clone(&buffer), offset: Bytes::ZERO, len: size };
        self.device.upload(&whole, &vec![0; size.get() as usize]).map_err(|e| self.failed(e))?;
        Ok(buffer)
    }

    fn speed(&self) -> Result<FileSpeed, ProbeError> {
        let row = ROW * 2;
        let rows = (MATRIX_BYTES.min(self.room() / 2) / row).max(1);
        let seconds = self.product(rows, 1)?;
        let bandwidth = (rows * row) as f64 / seconds;
        let rows = rows.min(PRODUCT_ROWS);
        let mut flops = 0.0f64;
        for columns in COLUMNS {
            if flops > 0.0 && (ROW + rows) * columns * 4 > self.room() {
                break;
            }
            let seconds = self.product(rows, columns)?;
            flops = flops.max((2 * ROW * rows * columns) as f64 / seconds);
            if seconds > LONG {
                break;
            }
        }
        Ok(FileSpeed { bandwidth: Some(Bytes(bandwidth as u64)), flops: Some(flops.round()) })
    }

    /// Seconds of a product of an F16 matrix `[ROW, rows]` with `[ROW, columns]`.
    fn product(&self, rows: u64, columns: u64) -> Result<f64, ProbeError> {
        let shapes = [(DType::F16, [ROW, rows]), (DType::F32, [ROW, columns]), (DType::F32, [rows, columns])];
        let mut program = Program::new();
        let mut operands = Vec::new();
        for (dtype, ne) in shapes {
            let element = dtype.block_size().get();
            let row = element * ne[0];
            let buffer = self.zeros(Bytes(row * ne[1]))?;
            let (slot, offset) = (program.slot(&buffer), Bytes::ZERO);
            let (ne, nb) = ([ne[0], ne[1], 1, 1], [element, row, row * ne[1], row * ne[1]]);
            operands.push(Operand { slot, offset, dtype, ne, nb });
        }
        let sources = operands[..2].iter().copied().map(Some);
        let command = program.push(TensorId::new(2), Op::MulMat, Default::default(), sources, operands[2]);
        let range = command..CommandId::new(command.index() + 1);
        let compiled = self.device.compile(program).map_err(|e| self.failed(e))?;
        self.fastest(&|| self.stream.execute(&compiled, range.clone()).and_then(|()| self.stream.synchronize()))
    }

    /// Seconds of the fastest of some repetitions, after one that warms up; never 0.
    fn fastest(&self, work: &dyn Fn() -> Result<(), DeviceError>) -> Result<f64, ProbeError> {
        work().map_err(|e| self.failed(e))?;
        (0..TIMES).try_fold(f64::INFINITY, |best, _| {
            let start = Instant::now();
            work().map_err(|e| self.failed(e))?;
            Ok(best.min(start.elapsed().as_secs_f64().max(1e-9)))
        })
    }
}

/// Measures copies from one device to another: directly where it can, else through the host.
fn measure_link(
    from: (DeviceId, &Probe<'_>),
    to: (DeviceId, &Probe<'_>),
    host: &Probe<'_>,
) -> Result<Link, ProbeError> {
    let is_host = |p: &Probe<'_>| p.device.kind() == DeviceKind::Cpu;
    let pinned = from.1.device.staging_type().or_else(|| to.1.device.staging_type());
    let through_host = if pinned.is_some() { LinkPath::Pinned } else { LinkPath::Pageable };
    let host_memory = pinned.unwrap_or_else(|| host.device.buffer_type());
    let direct = from.1.device.peer(to.1.device.as_ref()) == PeerAccess::Direct;
    let path = if direct && !is_host(from.1) && !is_host(to.1) { LinkPath::Peer } else { through_host };
    let seconds = |size: u64| {
        let size = Bytes(size.min(from.1.room()).min(to.1.room()).max(1));
        let end = |probe: &Probe<'_>| match is_host(probe) {
            true => probe.take(&host_memory, size),
            false => probe.zeros(size),
        };
        let (source, target) = (end(from.1)?, end(to.1)?);
        let whole = |buffer: &Arc<dyn Buffer>| Region { buffer: Arc::clone(buffer), offset: Bytes::ZERO, len: size };
        let copy = |a, b| CopyCommand { from: whole(a), to: whole(b), tensor: None };
        let middle = host.take(&host_memory, size)?;
        let run = |by: &Probe<'_>, c: &CopyCommand| by.stream.copy(c).and_then(|()| by.stream.synchronize());
        let taken = if path == LinkPath::Peer || is_host(from.1) || is_host(to.1) {
            let by = if is_host(from.1) { to.1 } else { from.1 };
            let whole = copy(&source, &target);
            by.fastest(&|| run(by, &whole))?
        } else {
            let (out, back) = (copy(&source, &middle), copy(&middle, &target));
            from.1.fastest(&|| run(from.1, &out).and_then(|()| run(to.1, &back)))?
        };
        Ok::<_, ProbeError>((size.get() as f64, taken))
    };
    let ((long, long_seconds), (short, short_seconds)) = (seconds(COPY_BYTES[0])?, seconds(COPY_BYTES[1])?);
    let moving = (long_seconds - short_seconds).max(long_seconds * 0.5).max(1e-9);
    let bandwidth = Bytes(((long - short).max(1.0) / moving).max(1.0) as u64);
    Ok(Link { from: from.0, to: to.0, path, bandwidth, latency_ns: (short_seconds * 1e9) as u64 })
}

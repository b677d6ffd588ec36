//! Short descriptions of devices, as given on a command line: `cpu`, `sim:24GiB,chunk=256MiB`, `cuda:0`,
//! `cuda:0:8GiB`.

use super::build::MemorySpec;
use super::{Driver, Machine, MachineParts, SpecError, parse_size};
use crate::error::SchedError;
use loadmaster_backends::cuda::GpuTarget;
use loadmaster_graph::{Align, Bytes};
use std::str::FromStr;

const ALLOWED: &str = "allowed are cpu[:SIZE], sim:SIZE and cuda:N[:SIZE], each with ,name=NAME ,chunk=SIZE ,align=N \
                       (and ,memory=SIZE for cuda; ,arch=N,multiprocessors=N for a GPU that is planned for)";

/// Largest architecture and number of multiprocessors of a description.
pub const MAX_GPU_FIGURE: u32 = 9999;

/// A device in short form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceSpec {
    /// Which back end drives it.
    pub driver: Driver,
    /// Its name; `None`: `SIM0`, `SIM1`, …, `CUDA` and the ordinal (`CUDA0.1` for the second device on GPU 0), or `CPU`.
    pub name: Option<String>,
    /// Its memory (of a CUDA device: the most that is taken of it); `None`: not known.
    pub memory: Option<Bytes>,
    /// The largest single buffer.
    pub chunk: Option<Bytes>,
    /// The alignment; `None`: the usual one.
    pub align: Option<Align>,
    /// The GPU whose kernels will compute; `None`: not known (of a CUDA device), or none.
    pub gpu: Option<GpuTarget>,
}

/// A GPU of which one figure is given.
#[derive(Clone, Copy, Default)]
struct Gpu {
    arch: Option<u32>,
    multiprocessors: Option<u32>,
}

impl Gpu {
    /// Both figures, or none. Errors: one of them.
    fn target(self) -> Result<Option<GpuTarget>, String> {
        match (self.arch, self.multiprocessors) {
            (Some(arch), Some(multiprocessors)) => Ok(Some(GpuTarget::described(arch, multiprocessors))),
            (None, None) => Ok(None),
            _ => Err("a GPU is described by arch and multiprocessors together, such as arch=89,multiprocessors=128"
                .to_owned()),
        }
    }
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let fault = |why: String| SpecError { spec: text.to_owned(), why };
        let mut fields = text.split(',');
        let head = fields.next().unwrap_or_default();
        let (kind, argument) = head.split_once(':').map_or((head, None), |(k, a)| (k, Some(a)));
        let size = |s: &str| parse_size(s).map_err(|e| fault(e.to_string()));
        let (driver, memory) = match (kind, argument) {
            ("cpu", None) => (Driver::Host, None),
            ("cpu", Some(bytes)) => (Driver::Host, Some(size(bytes)?)),
            ("sim", Some(bytes)) => (Driver::Sim, Some(size(bytes)?)),
            ("sim", None) => return Err(fault("a virtual GPU needs a size, such as sim:24GiB".to_owned())),
            ("cuda", Some(argument)) => {
                let (n, limit) = argument.split_once(':').map_or((argument, None), |(n, limit)| (n, Some(limit)));
                let ordinal = n.parse().map_err(|_| fault(format!("`{n}` is no device number; write cuda:0")))?;
                (Driver::Cuda { ordinal }, limit.map(size).transpose()?)
            }
            ("cuda", None) => return Err(fault("a CUDA device needs its number, such as cuda:0".to_owned())),
            _ => return Err(fault(format!("`{kind}` is no kind of device; {ALLOWED}"))),
        };
        let mut spec = Self { driver, name: None, memory, chunk: None, align: None, gpu: None };
        let mut gpu = Gpu::default();
        for field in fields {
            spec.set(field, &mut gpu).map_err(fault)?;
        }
        spec.gpu = gpu.target().map_err(fault)?;
        spec.check().map_err(fault)?;
        Ok(spec)
    }
}

fn count(key: &str, value: &str) -> Result<u32, String> {
    let found = value.parse().ok().filter(|&n| n > 0 && n <= MAX_GPU_FIGURE);
    found.ok_or_else(|| format!("{key}: `{value}` is no number from 1 to {MAX_GPU_FIGURE}"))
}

impl DeviceSpec {
    /// A device of which nothing is said but what drives it.
    #[must_use]
    pub const fn of(driver: Driver) -> Self {
        Self { driver, name: None, memory: None, chunk: None, align: None, gpu: None }
    }

    fn set(&mut self, field: &str, gpu: &mut Gpu) -> Result<(), String> {
        let (key, value) = field.split_once('=').ok_or(format!("`{field}` is no KEY=VALUE; {ALLOWED}"))?;
        let size = || parse_size(value).map_err(|e| format!("{key}: {e}"));
        let repeated = match key {
            "name" if value.is_empty() => return Err("the name is empty".to_owned()),
            "name" => self.name.replace(value.to_owned()).is_some(),
            "chunk" => self.chunk.replace(size()?).is_some(),
            "memory" | "limit" if matches!(self.driver, Driver::Cuda { .. }) => self.memory.replace(size()?).is_some(),
            "memory" => return Err("its memory stands after the colon, such as sim:24GiB".to_owned()),
            "align" => {
                let align = value.parse().ok().and_then(Align::new);
                self.align.replace(align.ok_or(format!("align: `{value}` is no power of two"))?).is_some()
            }
            "arch" if self.driver != Driver::Host => gpu.arch.replace(count(key, value)?).is_some(),
            "multiprocessors" if self.driver != Driver::Host => {
                gpu.multiprocessors.replace(count(key, value)?).is_some()
            }
            _ => return Err(format!("`{key}` is no option; {ALLOWED}")),
        };
        if repeated { Err(format!("`{key}` is given twice")) } else { Ok(()) }
    }

    fn check(&self) -> Result<(), String> {
        if self.memory == Some(Bytes::ZERO) {
            return Err("a device without memory holds nothing".to_owned());
        }
        let Some(chunk) = self.chunk else { return Ok(()) };
        if self.memory.is_some_and(|m| chunk > m) {
            return Err(format!("chunk: {chunk} is more than the device has"));
        }
        let align = self.layout().alignment;
        if chunk.get() < align.get() {
            return Err(format!("chunk: {chunk} is less than the alignment, {align} bytes"));
        }
        Ok(())
    }

    fn layout(&self) -> MemorySpec {
        let usual = if self.driver == Driver::Host { MemorySpec::host() } else { MemorySpec::device() };
        let alignment = self.align.unwrap_or(usual.alignment);
        MemorySpec { capacity: self.memory, max_size: self.chunk, alignment }
    }
}

impl Machine {
    /// A machine of devices in priority order. The host processor is always the last: it is added where no `cpu` is
    /// given, and refused anywhere else. A CUDA device may be given several times: each takes a part of its memory.
    ///
    /// Errors: that, two equal names, a CUDA device that is given twice without saying how much each may take.
    pub fn from_specs(specs: &[DeviceSpec]) -> Result<Self, SchedError> {
        let mut parts = MachineParts::default();
        let mut sims = 0;
        for (i, spec) in specs.iter().enumerate() {
            let fault = |why: &str| SpecError { spec: spec.title(), why: why.to_owned() };
            if spec.driver == Driver::Host && i + 1 != specs.len() {
                return Err(fault("the host processor takes what no other device does, so it must come last").into());
            }
            let alike = |specs: &[DeviceSpec]| specs.iter().filter(|s| s.driver == spec.driver).count();
            if matches!(spec.driver, Driver::Cuda { .. }) && alike(specs) > 1 && spec.memory.is_none() {
                return Err(fault("it is given twice: say how much memory each takes, such as cuda:0:8GiB").into());
            }
            let id = match (spec.driver, &spec.name) {
                (Driver::Host, name) => parts.push_host(name.as_deref().unwrap_or("CPU"), spec.layout()),
                (driver, Some(name)) => parts.push_gpu(name.as_str(), driver, spec.layout()),
                (Driver::Cuda { ordinal }, None) => {
                    let name = match alike(&specs[..i]) {
                        0 => format!("CUDA{ordinal}"),
                        n => format!("CUDA{ordinal}.{n}"),
                    };
                    parts.push_gpu(name, spec.driver, spec.layout())
                }
                (Driver::Sim, None) => parts.push_gpu(format!("SIM{sims}"), spec.driver, spec.layout()),
            };
            parts.devices[id].gpu = spec.gpu;
            sims += usize::from(spec.driver == Driver::Sim);
        }
        if specs.last().is_none_or(|s| s.driver != Driver::Host) {
            parts.push_host("CPU", MemorySpec::host());
        }
        Ok(Self::new(parts)?)
    }
}

impl DeviceSpec {
    fn title(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.driver.to_string().replace("host", "cpu"))
    }
}

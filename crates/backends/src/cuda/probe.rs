//! What GPUs there are.

use super::code::Code;
use super::context::{Context, driver_fault};
use super::driver::{Driver, NoDriver};
use super::launch::types::Target;
use crate::error::Fault;
use cudarc::driver::sys::CUdevice;
use loadmaster_graph::Bytes;
use std::ffi::{c_char, c_int};
use std::fmt;

/// A GPU as the driver describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GpuInfo {
    /// The driver's number of it: the N of `cuda:N`.
    pub ordinal: u32,
    /// Its model.
    pub name: String,
    /// Where it is plugged in (`0000:3b:00.0`).
    pub bus: String,
    /// Compute capability, major and minor.
    pub compute: (u32, u32),
    /// Number of multiprocessors.
    pub multiprocessors: u32,
    /// Its memory.
    pub total: Bytes,
    /// What could be allocated now, if the driver says.
    pub free: Option<Bytes>,
    /// Bytes of shared memory that a block of threads may ask for.
    pub shared_bytes: u32,
}

impl fmt::Display for GpuInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = self.compute;
        write!(f, "{}, {}, compute capability {major}.{minor}, {}", self.name, self.bus, self.total)
    }
}

impl GpuInfo {
    pub(crate) fn target(&self) -> Target {
        let arch = self.compute.0 * 10 + self.compute.1;
        Target { arch, multiprocessors: self.multiprocessors, library: None }
    }
}

/// What the driver is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DriverInfo {
    /// Its version, major and minor.
    pub version: (u32, u32),
    /// Whether it is the stand-in of the tests.
    pub is_simulator: bool,
}

/// The driver, if there is one. Errors: why there is none.
pub fn driver() -> Result<DriverInfo, NoDriver> {
    let driver = Driver::get()?;
    Ok(DriverInfo { version: version(driver), is_simulator: driver.is_simulator() })
}

/// Version of CUDA that a driver is of, major and minor; zeros if it does not say.
pub(crate) fn version(driver: &Driver) -> (u32, u32) {
    let mut version = 0;
    // SAFETY: the pointer is to an int.
    let known = unsafe { driver.driver_version(&raw mut version) }.is_ok();
    let version = if known { unsigned(version) } else { 0 };
    (version / 1000, version % 1000 / 10)
}

/// What the launches of kernels depend on, of the driver's GPU of that number, for a device that is opened as usual. No
/// context is made.
///
/// Errors: there is no driver, or no such GPU, in words.
pub fn target_of(ordinal: u32) -> Result<Target, String> {
    let driver = Driver::get().map_err(|why| why.to_string())?;
    let target = asked_for(driver, ordinal)?.target();
    Ok(Target { library: super::products::expected(driver, target.arch), ..target })
}

/// Bytes that could be allocated now on the driver's GPU of that number; all of its memory if the driver does not say. No
/// other GPU is touched.
///
/// Errors: there is no driver, no such GPU, or it does not answer, in words.
pub fn free_memory_of(ordinal: u32) -> Result<Bytes, String> {
    let driver = Driver::get().map_err(|why| why.to_string())?;
    let info = asked_for(driver, ordinal)?;
    let free = free(driver, ordinal).map_err(|fault| format!("GPU {ordinal} does not answer: {fault}"))?;
    Ok(free.unwrap_or(info.total))
}

/// A GPU that somebody asked for by its number. Errors: how many there are, or why it does not answer.
fn asked_for(driver: &'static Driver, ordinal: u32) -> Result<GpuInfo, String> {
    describe(driver, ordinal).map_err(|fault| match count(driver) {
        Ok(count) if ordinal >= count => format!("the driver has {count} GPUs, no GPU {ordinal}"),
        _ => format!("GPU {ordinal} does not answer: {fault}"),
    })
}

fn count(driver: &Driver) -> Result<u32, Code> {
    let mut count = 0;
    // SAFETY: the pointer is to an int.
    unsafe { driver.device_count(&raw mut count) }.map(|()| unsigned(count))
}

/// All GPUs, in the driver's order. Each is asked for its free memory, which needs a context: about a tenth of a second.
///
/// Errors: there is no driver. A GPU that does not answer is left out, with a warning in the log.
pub fn probe() -> Result<Vec<GpuInfo>, NoDriver> {
    let driver = Driver::get()?;
    let count = count(driver).map_err(|code| NoDriver::NotStarted { code: code.0, reason: driver.words(code) })?;
    let found = (0..count).filter_map(|ordinal| {
        let info = describe(driver, ordinal).and_then(|info| Ok(GpuInfo { free: free(driver, ordinal)?, ..info }));
        info.inspect_err(|why| tracing::warn!(gpu = ordinal, %why, "does not answer")).ok()
    });
    Ok(found.collect())
}

fn free(driver: &'static Driver, ordinal: u32) -> Result<Option<Bytes>, Fault> {
    let context = Context::open(driver, ordinal)?;
    let (mut free, mut total) = (0, 0);
    // SAFETY: the pointers are to numbers.
    context.call(|driver| unsafe { driver.memory_info(&raw mut free, &raw mut total) })?;
    Ok(Some(Bytes(free as u64)))
}

/// One GPU, its free memory left open. Errors: the driver's, of which "no such device" is one.
pub(crate) fn describe(driver: &'static Driver, ordinal: u32) -> Result<GpuInfo, Fault> {
    const MULTIPROCESSORS: c_int = 16;
    const SHARED_MOST: c_int = 97;
    const MAJOR: c_int = 75;
    const MINOR: c_int = 76;
    let says = |code| driver_fault(driver, code);
    let mut device: CUdevice = 0;
    let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
    // SAFETY: the pointer is to a handle.
    unsafe { driver.device_get(&raw mut device, number) }.map_err(says)?;
    let attribute = |attribute| {
        let mut value = 0;
        // SAFETY: the pointer is to an int.
        unsafe { driver.device_attribute(&raw mut value, attribute, device) }.map_err(says)?;
        Ok::<_, Fault>(unsigned(value))
    };
    let mut bytes = 0;
    // SAFETY: the pointer is to a number.
    unsafe { driver.device_memory(&raw mut bytes, device) }.map_err(says)?;
    // SAFETY: the driver writes at most `len` characters.
    let name = text(|to, len| unsafe { driver.device_name(to, len, device) }).map_err(says)?;
    // SAFETY: as above.
    let bus = text(|to, len| unsafe { driver.device_bus(to, len, device) }).map_err(says)?;
    Ok(GpuInfo {
        ordinal,
        name,
        bus,
        compute: (attribute(MAJOR)?, attribute(MINOR)?),
        multiprocessors: attribute(MULTIPROCESSORS)?,
        total: Bytes(bytes as u64),
        free: None,
        shared_bytes: attribute(SHARED_MOST)?,
    })
}

fn unsigned(value: c_int) -> u32 {
    u32::try_from(value).unwrap_or(0)
}

fn text<E>(get: impl FnOnce(*mut c_char, c_int) -> Result<(), E>) -> Result<String, E> {
    const LEN: usize = 256;
    let mut bytes = [0u8; LEN];
    get(bytes.as_mut_ptr().cast(), LEN as c_int)?;
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(LEN);
    Ok(String::from_utf8_lossy(&bytes[..end]).into_owned())
}

//! The stand-in driver of the tests: how it is chosen, told what to be, and asked what it found.
//!
//! It is a library that no search finds (`libloadmaster_cudasim.so`, crate `loadmaster-cudasim`): a process uses it if
//! [`super::DRIVER_VARIABLE`] names it or if it calls [`Simulator::open`] before anything else asks for a driver.

use super::context::Context;
use super::driver::{Driver, NoDriver};
use super::launch::sources::{SOURCES, part};
use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};

/// File name of the stand-in.
const LIBRARY: &str = "libloadmaster_cudasim.so";

/// One user at a time: a configuration goes for the whole process.
static USERS: Mutex<()> = Mutex::new(());

type Texts = unsafe extern "C" fn(*mut c_char, usize) -> usize;

/// A machine that the stand-in simulates, as long as this lives. Others who want one wait.
#[derive(Debug)]
pub struct Simulator {
    driver: &'static Driver,
    _turn: MutexGuard<'static, ()>,
}

/// Why there is no simulated machine.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoSimulator {
    /// The library was not built.
    #[error("{LIBRARY} is not beside this program")]
    NotBuilt,
    /// It cannot be opened.
    #[error(transparent)]
    NotOpened(#[from] NoDriver),
    /// It was built without a C++ compiler.
    #[error("the stand-in driver has no kernels: it was built without a C++ compiler")]
    NoKernels,
    /// Another driver is in use.
    #[error("this process uses another CUDA driver already")]
    OtherDriver,
    /// It does not take the configuration.
    #[error("it does not take `{config}`")]
    BadConfig {
        /// The configuration.
        config: String,
    },
}

impl Simulator {
    /// Where cargo puts the library: beside the running program, or beside the tests' directory.
    #[must_use]
    pub fn find() -> Option<PathBuf> {
        let program = std::env::current_exe().ok()?;
        let dirs = [program.parent(), program.parent().and_then(Path::parent)];
        let places = dirs.into_iter().flatten().flat_map(|dir| [dir.join(LIBRARY), dir.join("deps").join(LIBRARY)]);
        places.into_iter().find(|place| place.exists())
    }

    /// A machine as `config` says (the stand-in's documentation lists the words). Everything of the machine before is
    /// void: nothing of it may be alive.
    ///
    /// Errors: the library is not there, the process uses another driver, the configuration is not understood.
    pub fn open(config: &str) -> Result<Self, NoSimulator> {
        let turn = USERS.lock();
        let path = Self::find().ok_or(NoSimulator::NotBuilt)?;
        Driver::choose(&path);
        let driver = Driver::get()?;
        if !driver.is_simulator() {
            return Err(NoSimulator::OtherDriver);
        }
        let simulator = Self { driver, _turn: turn };
        simulator.configure(config)?;
        Ok(simulator)
    }

    /// The same, where kernels can run. Errors: they cannot.
    pub fn open_with_kernels(config: &str) -> Result<Self, NoSimulator> {
        let simulator = Self::open("")?;
        if !simulator.has_kernels() {
            return Err(NoSimulator::NoKernels);
        }
        simulator.configure(config)?;
        Ok(simulator)
    }

    /// Whether the first of the kernels' sources can be loaded. A machine without GPUs has none.
    fn has_kernels(&self) -> bool {
        let Some(&(source, _)) = SOURCES.first() else { return false };
        let Ok(context) = Context::open(self.driver, 0) else { return false };
        context.modules().load(&context, &BTreeSet::from([part(source, "")]), 0).is_ok()
    }

    fn configure(&self, config: &str) -> Result<(), NoSimulator> {
        let bad = || NoSimulator::BadConfig { config: config.to_owned() };
        let text = CString::new(config).map_err(|_| bad())?;
        type Configure = unsafe extern "C" fn(*const c_char) -> c_int;
        let configure = self.driver.extra::<Configure>(c"loadmaster_cudasim_configure").ok_or_else(bad)?;
        // SAFETY: the function is the stand-in's, of this type; the text ends with a zero byte; `_turn` keeps others of this
        // process from being in the driver, as far as they use it through this type.
        if unsafe { configure(text.as_ptr()) } != 0 {
            return Err(bad());
        }
        // A machine without GPUs says so here, and again to whoever asks for one.
        let _ = self.driver.start();
        Ok(())
    }

    /// What was found so far, a line each: races, leaks, bad arguments, bad addresses. Empty is good.
    #[must_use]
    pub fn report(&self) -> String {
        report(self.driver)
    }

    /// What is alive in the driver, a line each. Empty after everything was given back.
    #[must_use]
    pub fn live(&self) -> String {
        self.text(c"loadmaster_cudasim_live")
    }

    /// Driver calls so far: a name and a number, a line each.
    #[must_use]
    pub fn calls(&self) -> Vec<(String, u64)> {
        let text = self.text(c"loadmaster_cudasim_call_list");
        let line = |line: &str| line.rsplit_once(' ').and_then(|(name, n)| Some((name.to_owned(), n.parse().ok()?)));
        text.lines().filter_map(line).collect()
    }

    fn text(&self, symbol: &std::ffi::CStr) -> String {
        text(self.driver, symbol)
    }
}

/// What the stand-in found so far, if it is the driver of this process.
#[must_use]
pub fn findings() -> Option<String> {
    let driver = Driver::loaded().filter(|driver| driver.is_simulator())?;
    Some(report(driver))
}

/// What a stand-in found so far.
pub(crate) fn report(driver: &Driver) -> String {
    text(driver, c"loadmaster_cudasim_report")
}

fn text(driver: &Driver, symbol: &std::ffi::CStr) -> String {
    let Some(get) = driver.extra::<Texts>(symbol) else { return String::new() };
    // SAFETY: the function is the stand-in's, of this type; a null place asks for the length.
    let len = unsafe { get(std::ptr::null_mut(), 0) };
    let mut bytes = vec![0u8; len.max(1)];
    // SAFETY: as above, with room for as many bytes as it said.
    unsafe { get(bytes.as_mut_ptr().cast(), bytes.len()) };
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

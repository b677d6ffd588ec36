//! A GPU's primary context: what all devices on that GPU share, and what makes it current.
//!
//! Lock order: the table of contexts, then a context's peers or modules. No lock is held while the host waits for the
//! GPU but [`NOTING`], a leaf: what the GPU has queued waits for nobody who notes. Contexts are made current by whoever calls, at every call, so any thread may call.

use super::code::Code;
use super::driver::{Driver, NoDriver};
use super::modules::Modules;
use crate::error::Fault;
use cudarc::driver::sys::{CUcontext, CUdevice};
use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

/// The contexts that are open, by the GPU's number.
static OPEN: Mutex<BTreeMap<u32, Weak<Context>>> = Mutex::new(BTreeMap::new());

/// Held by those who note what is put into a stream, and alone by who waits for whole contexts: the driver refuses that
/// wait, and spoils what is noted, as long as any stream of the context is being noted.
static NOTING: RwLock<()> = RwLock::new(());

/// A GPU's primary context. Given back when the last that holds it is dropped.
pub(crate) struct Context {
    driver: &'static Driver,
    ordinal: u32,
    device: CUdevice,
    raw: CUcontext,
    /// How it was lost, once it is.
    dead: OnceLock<String>,
    /// By number of the other GPU.
    peers: Mutex<BTreeMap<u32, Peer>>,
    modules: Mutex<Modules>,
}

/// What was found out about the way to another GPU.
struct Peer {
    /// The context that was asked about: access to it ends with it.
    context: Weak<Context>,
    /// Whether its memory is reached, or why not.
    reached: Result<(), String>,
}

// SAFETY: a context handle has no thread affinity: the driver allows any thread to make it current, and is itself
// synchronised.
unsafe impl Send for Context {}
// SAFETY: as above; what is ours is behind locks.
unsafe impl Sync for Context {}

impl Context {
    /// The context of a GPU: the one that is open, or a new one. Errors: the driver refuses.
    pub(crate) fn open(driver: &'static Driver, ordinal: u32) -> Result<Arc<Self>, Fault> {
        let mut open = OPEN.lock();
        if let Some(context) = open.get(&ordinal).and_then(Weak::upgrade) {
            return Ok(context);
        }
        let says = |code| driver_fault(driver, code);
        let number = c_int::try_from(ordinal).unwrap_or(c_int::MAX);
        let (mut device, mut raw): (CUdevice, CUcontext) = (0, std::ptr::null_mut());
        // SAFETY: the pointers are to values of the right types.
        unsafe { driver.device_get(&raw mut device, number) }.map_err(says)?;
        // SAFETY: as above; the device is the driver's.
        unsafe { driver.context_retain(&raw mut raw, device) }.map_err(says)?;
        let context = Arc::new(Self {
            driver,
            ordinal,
            device,
            raw,
            dead: OnceLock::new(),
            peers: Mutex::default(),
            modules: Mutex::default(),
        });
        open.insert(ordinal, Arc::downgrade(&context));
        Ok(context)
    }

    /// The driver.
    pub(crate) fn driver(&self) -> &'static Driver {
        self.driver
    }
    /// The GPU's number.
    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }
    /// The driver's handle.
    pub(crate) fn raw(&self) -> CUcontext {
        self.raw
    }
    /// The kernels that are loaded. Dropped last, with the context current.
    pub(crate) fn modules(&self) -> MutexGuard<'_, Modules> {
        self.modules.lock()
    }

    /// Calls the driver with this context current. Errors: the driver's, or how the context was lost.
    pub(crate) fn call(&self, call: impl FnOnce(&Driver) -> Result<(), Code>) -> Result<(), Fault> {
        self.alive()?;
        self.try_call(call).map_err(|code| self.fault(code))
    }

    /// Calls the driver with this context current, be it lost or not.
    pub(crate) fn try_call(&self, call: impl FnOnce(&Driver) -> Result<(), Code>) -> Result<(), Code> {
        // SAFETY: the context is retained while `self` lives.
        unsafe { self.driver.context_set(self.raw) }?;
        call(self.driver)
    }

    /// Gives something back. What fails here is lost with the context, which fails at every other call too, or was
    /// refused by the driver, which then still has it: nobody is left who could do anything about it.
    pub(crate) fn give_back(&self, what: &str, call: impl FnOnce(&Driver) -> Result<(), Code>) {
        if let Err(code) = self.end(call) {
            tracing::warn!(gpu = self.ordinal, what, reason = self.driver.words(code), "could not be given back");
        }
    }

    /// Ends something, be this context lost or not. What only fails to become current is tried once more: nothing was
    /// ended yet.
    pub(crate) fn end(&self, call: impl FnOnce(&Driver) -> Result<(), Code>) -> Result<(), Code> {
        // SAFETY: the context is retained while `self` lives.
        let current = unsafe { self.driver.context_set(self.raw) };
        // SAFETY: as above.
        current.or_else(|_| unsafe { self.driver.context_set(self.raw) })?;
        call(self.driver)
    }

    /// Errors: how the context was lost.
    pub(crate) fn alive(&self) -> Result<(), Fault> {
        self.dead.get().map_or(Ok(()), |why| Err(Fault::Lost { why: why.clone() }))
    }

    /// What a code means here; one that no context survives marks this one as lost.
    pub(crate) fn fault(&self, code: Code) -> Fault {
        if code.is_sticky() {
            let why = self.dead.get_or_init(|| format!("the driver says {}: {}", code.0, self.driver.words(code)));
            return Fault::Lost { why: why.clone() };
        }
        driver_fault(self.driver, code)
    }

    /// Waits until nothing runs in any open context, so that memory can be given back: copies of other GPUs may use it.
    pub(crate) fn quiesce_all() {
        let open: Vec<_> = OPEN.lock().values().filter_map(Weak::upgrade).collect();
        let alone = NOTING.write();
        for context in &open {
            // A context that fails here runs nothing any more.
            // SAFETY: takes no arguments.
            let _ = context.try_call(|driver| unsafe { driver.context_synchronize() });
        }
        drop(alone);
    }

    /// Keeps everybody from noting what is put into streams while the guard lives: for calls that may wait for the GPU.
    pub(crate) fn nobody_notes() -> RwLockWriteGuard<'static, ()> {
        NOTING.write()
    }

    /// Keeps [`Self::quiesce_all`] waiting while the guard lives. Nothing that gives memory back may be done meanwhile.
    pub(crate) fn noting() -> RwLockReadGuard<'static, ()> {
        NOTING.read()
    }

    /// Lets this GPU reach the memory of another. Errors: why it cannot. Asked of the driver once for a pair of contexts.
    pub(crate) fn reach(&self, other: &Arc<Self>) -> Result<(), String> {
        if self.ordinal == other.ordinal {
            return Ok(());
        }
        let mut peers = self.peers.lock();
        let context = Arc::downgrade(other);
        if let Some(known) = peers.get(&other.ordinal).filter(|known| known.context.ptr_eq(&context)) {
            return known.reached.clone();
        }
        let reached = self.enable(other);
        peers.insert(other.ordinal, Peer { context, reached: reached.clone() });
        reached
    }

    fn enable(&self, other: &Self) -> Result<(), String> {
        let mut can = 0;
        // SAFETY: the pointer is to an int; both devices are the driver's.
        self.call(|driver| unsafe { driver.can_access_peer(&raw mut can, self.device, other.device) })
            .map_err(|fault| fault.to_string())?;
        if can == 0 {
            return Err(format!("the driver knows no way from GPU {} to GPU {}", self.ordinal, other.ordinal));
        }
        // SAFETY: the other context is retained while `other` lives, and peers of a context go with it.
        match self.try_call(|driver| unsafe { driver.enable_peer(other.raw, 0) }) {
            Ok(()) | Err(Code::PEER_ALREADY_ENABLED) => Ok(()),
            Err(code) => Err(self.fault(code).to_string()),
        }
    }
}

/// A code without a context.
pub(crate) fn driver_fault(driver: &Driver, code: Code) -> Fault {
    Fault::Driver { code: i64::from(code.0), reason: driver.words(code) }
}

/// A missing driver as a fault of a device.
pub(crate) fn missing(why: &NoDriver) -> Fault {
    Fault::Lost { why: why.to_string() }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Context(GPU {})", self.ordinal)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        for module in self.modules.get_mut().take() {
            // SAFETY: the module was loaded in this context, and nothing runs any more: whoever queued held the context.
            self.give_back("a module", |driver| unsafe { driver.module_unload(module) });
        }
        // SAFETY: retained once, at the beginning.
        if let Err(code) = unsafe { self.driver.context_release(self.device) } {
            tracing::warn!(gpu = self.ordinal, reason = self.driver.words(code), "could not be given back");
        }
    }
}

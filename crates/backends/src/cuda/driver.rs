//! The driver library: found at run time, its functions resolved once.
//!
//! Functions are looked up here and not through cudarc's own bindings, which end the process where a library or a
//! symbol is missing and know the result codes of one version only. The library itself is the one that cudarc finds,
//! unless [`DRIVER_VARIABLE`] names another.

use super::code::Code;
use super::{libraries, simulator};
use cudarc::driver::sys::{
    self, CUcontext, CUdevice, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUstream,
};
use libloading::Library;
use std::ffi::{CStr, OsString, c_char, c_int, c_uint, c_void};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// Environment variable with the absolute path of the driver library to use instead of the system's.
pub const DRIVER_VARIABLE: &str = "LOADMASTER_CUDA_DRIVER";

/// Symbol by which the stand-in driver of the tests is known.
pub(crate) const SIMULATOR_SYMBOL: &[u8] = b"loadmaster_cudasim_abi\0";

/// Why there is no driver.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoDriver {
    /// The system has no driver library.
    #[error("no CUDA driver: the system has no libcuda; install NVIDIA's driver, or use cpu and sim devices")]
    NotFound,
    /// The variable names something that is no absolute path.
    #[error("no CUDA driver: {DRIVER_VARIABLE} is `{path}`, which is no absolute path")]
    NotAbsolute {
        /// What it names.
        path: String,
    },
    /// The library that the variable names cannot be opened.
    #[error("no CUDA driver: {path} ({DRIVER_VARIABLE}): {why}")]
    NotOpened {
        /// What it names.
        path: String,
        /// The system's words.
        why: String,
    },
    /// The driver lacks a function: it is too old, or no driver.
    #[error("no CUDA driver: {library} has no function {symbol}; it is no driver, or too old")]
    NoSymbol {
        /// The library.
        library: String,
        /// The function.
        symbol: &'static str,
    },
    /// The driver does not start.
    #[error("no CUDA driver: it does not start: {reason} ({code})")]
    NotStarted {
        /// The driver's number.
        code: i32,
        /// The driver's words.
        reason: String,
    },
}

static DRIVER: OnceLock<Result<Driver, NoDriver>> = OnceLock::new();
static CHOSEN: OnceLock<PathBuf> = OnceLock::new();

/// A host function of a stream.
pub(crate) type HostFunction = unsafe extern "C" fn(*mut c_void);

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident = $symbol:literal ($($arg:ident: $type:ty),* $(,)?);)*) => {
        /// The functions of the driver that are used.
        pub(crate) struct Driver {
            library: Option<Library>,
            is_simulator: bool,
            $($name: unsafe extern "C" fn($($type),*) -> c_int,)*
            error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
            error_string: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
        }

        impl Driver {
            /// Resolves every function.
            ///
            /// # Safety
            /// The library must be a CUDA driver: symbols of these names are functions of these types.
            unsafe fn resolve(library: &Library, name: &str) -> Result<Self, NoDriver> {
                let lacks = |symbol| NoDriver::NoSymbol { library: name.to_owned(), symbol };
                let is_simulator = {
                    // SAFETY: the symbol is only asked for, not used.
                    unsafe { library.get::<*const c_void>(SIMULATOR_SYMBOL) }.is_ok()
                };
                Ok(Self {
                    library: None,
                    is_simulator,
                    $($name: {
                        // SAFETY: the caller vouches for the function's type.
                        let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *found.map_err(|_| lacks($symbol))?
                    },)*
                    error_name: {
                        // SAFETY: as above.
                        let found = unsafe { library.get(b"cuGetErrorName\0") };
                        *found.map_err(|_| lacks("cuGetErrorName"))?
                    },
                    error_string: {
                        // SAFETY: as above.
                        let found = unsafe { library.get(b"cuGetErrorString\0") };
                        *found.map_err(|_| lacks("cuGetErrorString"))?
                    },
                })
            }

            $(
                $(#[$doc])*
                ///
                /// # Safety
                /// Arguments must be as the driver's documentation of this function demands.
                #[allow(clippy::too_many_arguments, reason = "the driver's own")]
                pub(crate) unsafe fn $name(&self, $($arg: $type),*) -> Result<(), Code> {
                    // SAFETY: the caller vouches for the arguments.
                    Code::check(unsafe { (self.$name)($($arg),*) })
                }
            )*
        }
    };
}

functions! {
    /// Starts the driver.
    init = "cuInit"(flags: c_uint);
    /// Version of the driver: 12080 is 12.8.
    driver_version = "cuDriverGetVersion"(version: *mut c_int);
    /// Number of GPUs.
    device_count = "cuDeviceGetCount"(count: *mut c_int);
    /// A GPU by its number.
    device_get = "cuDeviceGet"(device: *mut CUdevice, ordinal: c_int);
    /// Its model.
    device_name = "cuDeviceGetName"(name: *mut c_char, len: c_int, device: CUdevice);
    /// Where it is plugged in.
    device_bus = "cuDeviceGetPCIBusId"(id: *mut c_char, len: c_int, device: CUdevice);
    /// Its memory.
    device_memory = "cuDeviceTotalMem_v2"(bytes: *mut usize, device: CUdevice);
    /// A number about it.
    device_attribute = "cuDeviceGetAttribute"(value: *mut c_int, attribute: c_int, device: CUdevice);
    /// Whether it can reach another's memory.
    can_access_peer = "cuDeviceCanAccessPeer"(can: *mut c_int, device: CUdevice, peer: CUdevice);
    /// Its primary context, which is made at the first call.
    context_retain = "cuDevicePrimaryCtxRetain"(context: *mut CUcontext, device: CUdevice);
    /// Gives the primary context back.
    context_release = "cuDevicePrimaryCtxRelease_v2"(device: CUdevice);
    /// Makes a context the calling thread's.
    context_set = "cuCtxSetCurrent"(context: CUcontext);
    /// Waits for everything in the current context.
    context_synchronize = "cuCtxSynchronize"();
    /// Lets the current context reach another's memory.
    enable_peer = "cuCtxEnablePeerAccess"(peer: CUcontext, flags: c_uint);
    /// Free and total bytes.
    memory_info = "cuMemGetInfo_v2"(free: *mut usize, total: *mut usize);
    /// Takes device memory.
    memory_alloc = "cuMemAlloc_v2"(pointer: *mut CUdeviceptr, bytes: usize);
    /// Gives it back.
    memory_free = "cuMemFree_v2"(pointer: CUdeviceptr);
    /// Takes pinned host memory.
    host_alloc = "cuMemHostAlloc"(pointer: *mut *mut c_void, bytes: usize, flags: c_uint);
    /// Gives it back.
    host_free = "cuMemFreeHost"(pointer: *mut c_void);
    /// Host to device, in a stream.
    copy_to_device = "cuMemcpyHtoDAsync_v2"(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream);
    /// Device to host, in a stream.
    copy_to_host = "cuMemcpyDtoHAsync_v2"(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream);
    /// Within a device, in a stream.
    copy_within = "cuMemcpyDtoDAsync_v2"(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream);
    /// From device to device, in a stream.
    copy_peer = "cuMemcpyPeerAsync"(
        to: CUdeviceptr,
        to_context: CUcontext,
        from: CUdeviceptr,
        from_context: CUcontext,
        bytes: usize,
        stream: CUstream,
    );
    /// Makes a stream.
    stream_create = "cuStreamCreate"(stream: *mut CUstream, flags: c_uint);
    /// Destroys a stream; what is queued still runs.
    stream_destroy = "cuStreamDestroy_v2"(stream: CUstream);
    /// Waits for a stream.
    stream_synchronize = "cuStreamSynchronize"(stream: CUstream);
    /// Lets a stream wait for an event.
    stream_wait = "cuStreamWaitEvent"(stream: CUstream, event: CUevent, flags: c_uint);
    /// Calls a function of the host in a stream.
    stream_call = "cuLaunchHostFunc"(stream: CUstream, function: HostFunction, data: *mut c_void);
    /// Begins to note what is put into a stream instead of running it.
    capture_begin = "cuStreamBeginCapture_v2"(stream: CUstream, mode: c_uint);
    /// Ends that.
    capture_end = "cuStreamEndCapture"(stream: CUstream, graph: *mut CUgraph);
    /// Makes a graph ready to run.
    graph_instantiate = "cuGraphInstantiateWithFlags"(exec: *mut CUgraphExec, graph: CUgraph, flags: u64);
    /// Runs it in a stream.
    graph_launch = "cuGraphLaunch"(exec: CUgraphExec, stream: CUstream);
    /// Gives a graph back.
    graph_destroy = "cuGraphDestroy"(graph: CUgraph);
    /// Gives a ready graph back.
    graph_exec_destroy = "cuGraphExecDestroy"(exec: CUgraphExec);
    /// Makes an event.
    event_create = "cuEventCreate"(event: *mut CUevent, flags: c_uint);
    /// Destroys it.
    event_destroy = "cuEventDestroy_v2"(event: CUevent);
    /// Records it in a stream.
    event_record = "cuEventRecord"(event: CUevent, stream: CUstream);
    /// Whether it was reached.
    event_query = "cuEventQuery"(event: CUevent);
    /// Waits for it.
    event_synchronize = "cuEventSynchronize"(event: CUevent);
    /// Loads compiled kernels.
    module_load = "cuModuleLoadData"(module: *mut CUmodule, image: *const c_void);
    /// Gives them back.
    module_unload = "cuModuleUnload"(module: CUmodule);
    /// A kernel by its name.
    module_function = "cuModuleGetFunction"(function: *mut CUfunction, module: CUmodule, name: *const c_char);
    /// Sets a number of a kernel.
    function_attribute = "cuFuncSetAttribute"(function: CUfunction, attribute: c_int, value: c_int);
    /// Runs a kernel in a stream.
    launch = "cuLaunchKernel"(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void,
    );
}

impl Driver {
    /// The driver of this process: looked for and started at the first call. Errors: why there is none; the answer does
    /// not change while the process lives.
    pub(crate) fn get() -> Result<&'static Self, NoDriver> {
        let found = DRIVER.get_or_init(|| {
            let chosen = CHOSEN.get().map(|path| path.clone().into_os_string());
            let variable = || std::env::var_os(DRIVER_VARIABLE).filter(|path| !path.is_empty());
            let driver = match chosen.or_else(variable) {
                Some(path) => Self::open(&path)?,
                None => Self::of_system()?,
            };
            driver.start()?;
            Ok(driver)
        });
        found.as_ref().map_err(Clone::clone)
    }

    /// Lets [`Self::get`] open this library, unless one was chosen or opened before.
    pub(crate) fn choose(path: &Path) {
        CHOSEN.get_or_init(|| path.to_owned());
    }

    /// The driver, if it was opened.
    pub(crate) fn loaded() -> Option<&'static Self> {
        DRIVER.get()?.as_ref().ok()
    }

    /// A function that only some drivers have. `T` must be a function pointer; whoever calls it vouches for its type.
    pub(crate) fn extra<T: Copy>(&self, symbol: &CStr) -> Option<T> {
        const { assert!(size_of::<T>() == size_of::<*const c_void>()) };
        let library = self.library.as_ref()?;
        // SAFETY: the symbol is only looked up here; a pointer is copied into a value of a pointer's size.
        unsafe { library.get::<T>(symbol.to_bytes_with_nul()) }.ok().map(|found| *found)
    }

    /// The library, if it was opened here and not by cudarc.
    pub(crate) fn library(&self) -> Option<&Library> {
        self.library.as_ref()
    }

    fn open(path: &OsString) -> Result<Self, NoDriver> {
        let text = || path.to_string_lossy().into_owned();
        if !Path::new(path).is_absolute() {
            return Err(NoDriver::NotAbsolute { path: text() });
        }
        // SAFETY: whoever sets the variable names a CUDA driver, whose initialisers may run in this process.
        let library = unsafe { libraries::open(path) };
        let library = library.map_err(|why| NoDriver::NotOpened { path: text(), why })?;
        // SAFETY: as above: the library is a CUDA driver.
        let driver = unsafe { Self::resolve(&library, &format!("{} ({DRIVER_VARIABLE})", text())) }?;
        Ok(Self { library: Some(library), ..driver })
    }

    fn of_system() -> Result<Self, NoDriver> {
        // SAFETY: libraries of the driver's names are the driver; cudarc looks for them and keeps the one it finds open
        // for ever. It panics where it finds none.
        let library = catch_unwind(|| unsafe { sys::is_culib_present().then(|| sys::culib()) });
        let library = library.ok().flatten().ok_or(NoDriver::NotFound)?;
        // SAFETY: as above.
        unsafe { Self::resolve(library, "the system's libcuda") }
    }

    /// Starts the driver. Errors: its words, and what the stand-in of the tests has against its configuration.
    pub(crate) fn start(&self) -> Result<(), NoDriver> {
        // SAFETY: takes no pointers.
        let started = unsafe { self.init(0) };
        started.map_err(|code| {
            let findings = if self.is_simulator { simulator::report(self) } else { String::new() };
            let why = findings.lines().map(|line| format!("; {line}")).collect::<String>();
            NoDriver::NotStarted { code: code.0, reason: self.words(code) + &why }
        })
    }

    /// Whether it is the stand-in of the tests.
    pub(crate) fn is_simulator(&self) -> bool {
        self.is_simulator
    }

    /// What the driver says about a code.
    pub(crate) fn words(&self, code: Code) -> String {
        let text = |function: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = std::ptr::null();
            // SAFETY: the driver sets the pointer to a text of its own, which lives for ever, or to null.
            let known = unsafe { function(code.0, &raw mut text) } == 0 && !text.is_null();
            // SAFETY: as above.
            known.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
        };
        match (text(self.error_name), text(self.error_string)) {
            (Some(name), Some(words)) => format!("{name}, {words}"),
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => "an unknown error".into(),
        }
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_simulator { "stand-in CUDA driver" } else { "CUDA driver" })
    }
}

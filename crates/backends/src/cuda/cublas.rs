//! NVIDIA's library of matrix products: found at run time, its functions resolved once.
//!
//! As with the driver, functions are looked up here and not through cudarc's bindings, which end the process where the
//! library or a symbol is missing. [`CUBLAS_VARIABLE`] turns it off or names the file. The stand-in driver of the tests
//! has a stand-in of these functions in itself, which is used with it alone, and only if its configuration offers it.

use super::driver::{Driver, SIMULATOR_SYMBOL};
use super::libraries;
use cudarc::cublas::sys;
use cudarc::driver::sys::CUstream;
use libloading::Library;
use std::ffi::{OsStr, OsString, c_int, c_longlong, c_void};
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::OnceLock;

/// Environment variable: `off`, or the absolute path of the cuBLAS library (`libcublas.so.12`) to use instead of the
/// system's.
pub const CUBLAS_VARIABLE: &str = "LOADMASTER_CUBLAS";

const OFF: &str = "off";
/// File name that cudarc does not know yet.
const NEWER: &str = "libcublas.so.13";
/// First version with the functions that are used.
const OLDEST: u32 = 11;

/// Why cuBLAS is not used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoCublas {
    /// Whoever opened the device wants none.
    #[error("not asked for")]
    NotAsked,
    /// The variable says so.
    #[error("{CUBLAS_VARIABLE} is off")]
    Off,
    /// The system has none.
    #[error("the system has no libcublas")]
    NotFound,
    /// The variable names something that is no absolute path.
    #[error("{CUBLAS_VARIABLE} is `{path}`, which is neither off nor an absolute path")]
    NotAbsolute {
        /// What it names.
        path: String,
    },
    /// The library that the variable names cannot be opened.
    #[error("{path} ({CUBLAS_VARIABLE}): {why}")]
    NotOpened {
        /// What it names.
        path: String,
        /// The system's words.
        why: String,
    },
    /// The library lacks a function.
    #[error("the library has no function {symbol}")]
    NoSymbol {
        /// The function.
        symbol: &'static str,
    },
    /// The library is too old.
    #[error("version {major} is older than {OLDEST}")]
    TooOld {
        /// Its version.
        major: u32,
    },
    /// The driver is the stand-in of the tests, which is told to offer none.
    #[error("the stand-in driver offers none")]
    StandIn,
    /// The library is the stand-in of the tests, and the driver is not.
    #[error("{path} ({CUBLAS_VARIABLE}) is a stand-in for tests, and the driver is none")]
    StandInAlone {
        /// What the variable names.
        path: String,
    },
    /// The GPU is too old.
    #[error("the GPU's compute capability {major}.{minor} is below 7.0")]
    OldGpu {
        /// Its compute capability.
        major: u32,
        /// The same.
        minor: u32,
    },
    /// It does not start on a GPU.
    #[error("it does not start: {why}")]
    NotStarted {
        /// What failed.
        why: String,
    },
    /// It computes something else than it should.
    #[error("it failed its test: {why}")]
    Wrong {
        /// What was found.
        why: String,
    },
}

impl NoCublas {
    /// Whether there is a library that should be used and cannot be: not merely none, or none wanted.
    #[must_use]
    pub const fn is_failure(&self) -> bool {
        !matches!(self, Self::NotAsked | Self::Off | Self::NotFound | Self::StandIn | Self::OldGpu { .. })
    }
}

/// A handle of the library.
pub(crate) type Handle = *mut c_void;

/// A status of the library other than success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Status(pub(crate) c_int);

impl Status {
    /// Success, or the status.
    pub(crate) const fn check(status: c_int) -> Result<(), Self> {
        if status == 0 { Ok(()) } else { Err(Self(status)) }
    }

    /// What it means.
    pub(crate) const fn words(self) -> &'static str {
        match self.0 {
            1 => "CUBLAS_STATUS_NOT_INITIALIZED, the library could not be started",
            3 => "CUBLAS_STATUS_ALLOC_FAILED, out of memory",
            7 => "CUBLAS_STATUS_INVALID_VALUE, an argument is wrong",
            8 => "CUBLAS_STATUS_ARCH_MISMATCH, the GPU cannot do that",
            11 => "CUBLAS_STATUS_MAPPING_ERROR, memory cannot be reached",
            13 => "CUBLAS_STATUS_EXECUTION_FAILED, the GPU could not run it",
            14 => "CUBLAS_STATUS_INTERNAL_ERROR, an operation inside the library failed",
            15 => "CUBLAS_STATUS_NOT_SUPPORTED, there is no such product",
            16 => "CUBLAS_STATUS_LICENSE_ERROR",
            _ => "an unknown status",
        }
    }
}

type Gemm = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    c_int,
    c_int,
    *const c_void,
    *mut c_void,
    c_int,
    c_int,
    c_int,
    c_int,
) -> c_int;

type GemmStrided = unsafe extern "C" fn(
    Handle,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    *const c_void,
    *const c_void,
    c_int,
    c_int,
    c_longlong,
    *const c_void,
    c_int,
    c_int,
    c_longlong,
    *const c_void,
    *mut c_void,
    c_int,
    c_int,
    c_longlong,
    c_int,
    c_int,
    c_int,
) -> c_int;

/// The functions of cuBLAS that are used, as its documentation describes them.
pub(crate) struct Cublas {
    /// Keeps the functions where they are.
    _library: Option<Library>,
    /// Version, major and minor.
    pub(crate) version: (u32, u32),
    pub(crate) create: unsafe extern "C" fn(*mut Handle) -> c_int,
    pub(crate) destroy: unsafe extern "C" fn(Handle) -> c_int,
    pub(crate) set_stream: unsafe extern "C" fn(Handle, CUstream) -> c_int,
    pub(crate) set_workspace: unsafe extern "C" fn(Handle, *mut c_void, usize) -> c_int,
    pub(crate) gemm: Gemm,
    pub(crate) gemm_strided: GemmStrided,
}

impl std::fmt::Debug for Cublas {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cuBLAS {}.{}", self.version.0, self.version.1)
    }
}

impl Cublas {
    /// The library for a driver: looked for at the first call. Errors: why there is none.
    pub(crate) fn get(driver: &'static Driver) -> Result<&'static Self, NoCublas> {
        static STAND_IN: OnceLock<Result<Cublas, NoCublas>> = OnceLock::new();
        let variable = variable();
        if variable.as_deref() == Some(OsStr::new(OFF)) {
            return Err(NoCublas::Off);
        }
        if !driver.is_simulator() {
            return Self::system(variable);
        }
        let library = driver.library().filter(|_| offered(driver).is_some()).ok_or(NoCublas::StandIn)?;
        // SAFETY: the stand-in's functions have the library's types.
        STAND_IN.get_or_init(|| unsafe { Self::resolve(library) }).as_ref().map_err(Clone::clone)
    }

    /// The library that the variable names, or the system's.
    fn system(variable: Option<OsString>) -> Result<&'static Self, NoCublas> {
        static SYSTEM: OnceLock<Result<Cublas, NoCublas>> = OnceLock::new();
        let found = SYSTEM.get_or_init(|| match variable {
            Some(path) => Self::open(Path::new(&path)),
            None => Self::of_system(),
        });
        found.as_ref().map_err(Clone::clone)
    }

    fn open(path: &Path) -> Result<Self, NoCublas> {
        let text = || path.to_string_lossy().into_owned();
        if !path.is_absolute() {
            return Err(NoCublas::NotAbsolute { path: text() });
        }
        open_beside(path);
        // SAFETY: whoever sets the variable names cuBLAS, whose initialisers may run in this process.
        let library = unsafe { libraries::open(path.as_os_str()) };
        let library = library.map_err(|why| NoCublas::NotOpened { path: text(), why })?;
        // SAFETY: the symbol is only asked for, not used.
        if unsafe { library.get::<*const c_void>(SIMULATOR_SYMBOL) }.is_ok() {
            return Err(NoCublas::StandInAlone { path: text() });
        }
        // SAFETY: as above: the library is cuBLAS.
        let found = unsafe { Self::resolve(&library) };
        let found = found.map_err(|why| NoCublas::NotOpened { path: text(), why: why.to_string() })?;
        Ok(Self { _library: Some(library), ..found })
    }

    fn of_system() -> Result<Self, NoCublas> {
        // SAFETY: libraries of cuBLAS's names are cuBLAS; the one that is found stays open for ever.
        let library = catch_unwind(|| unsafe { sys::is_culib_present().then(|| sys::culib()) });
        if let Some(library) = library.ok().flatten() {
            // SAFETY: as above.
            return unsafe { Self::resolve(library) };
        }
        // SAFETY: as above.
        let library = unsafe { Library::new(NEWER) }.map_err(|_| NoCublas::NotFound)?;
        // SAFETY: as above.
        let found = unsafe { Self::resolve(&library) }?;
        Ok(Self { _library: Some(library), ..found })
    }

    /// # Safety
    /// The library must be cuBLAS: symbols of these names are functions of these types.
    unsafe fn resolve(library: &Library) -> Result<Self, NoCublas> {
        /// # Safety
        /// The symbol must have the type.
        unsafe fn find<T: Copy>(library: &Library, symbol: &'static str) -> Result<T, NoCublas> {
            // SAFETY: the caller vouches for the type.
            unsafe { libraries::function(library, symbol) }.ok_or(NoCublas::NoSymbol { symbol })
        }
        type Property = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;
        // SAFETY: the caller vouches for the functions' types.
        unsafe {
            let property = find::<Property>(library, "cublasGetProperty")?;
            let part = |which: c_int| {
                let mut value = 0;
                // 0 is the major version, 1 the minor one.
                if property(which, &raw mut value) == 0 { u32::try_from(value).unwrap_or(0) } else { 0 }
            };
            let version = (part(0), part(1));
            if version.0 < OLDEST {
                return Err(NoCublas::TooOld { major: version.0 });
            }
            Ok(Self {
                _library: None,
                version,
                create: find(library, "cublasCreate_v2")?,
                destroy: find(library, "cublasDestroy_v2")?,
                set_stream: find(library, "cublasSetStream_v2")?,
                set_workspace: find(library, "cublasSetWorkspace_v2")?,
                gemm: find(library, "cublasGemmEx")?,
                gemm_strided: find(library, "cublasGemmStridedBatchedEx")?,
            })
        }
    }
}

fn variable() -> Option<OsString> {
    std::env::var_os(CUBLAS_VARIABLE).filter(|v| !v.is_empty())
}

/// What the stand-in driver is told to offer: none, or the fewest columns of a product (0: as on a GPU).
pub(crate) fn offered(driver: &Driver) -> Option<u64> {
    let ask = driver.extra::<unsafe extern "C" fn() -> c_longlong>(c"loadmaster_cudasim_cublas")?;
    // SAFETY: the function is the stand-in's, of this type.
    u64::try_from(unsafe { ask() }).ok()
}

/// cuBLAS opens the library that it rests on by name: one that is loaded already is found.
fn open_beside(path: &Path) {
    let name = path.file_name().map(|n| n.to_string_lossy().replace("libcublas.so", "libcublasLt.so"));
    let Some(beside) = name.map(|name| path.with_file_name(name)).filter(|p| p.as_path() != path && p.exists()) else {
        return;
    };
    // SAFETY: a part of the library that the variable names.
    if let Ok(library) = unsafe { Library::new(beside) } {
        // It must stay open: nobody closes cuBLAS either.
        std::mem::forget(library);
    }
}

#[cfg(test)]
#[allow(clippy::panic, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_is_no_absolute_path_or_not_there_or_no_cublas_is_refused_by_name() {
        let why = |path: &str| Cublas::open(Path::new(path)).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(why("libcublas.so").contains("`libcublas.so`, which is neither off nor an absolute path"));
        assert!(why("/nonexistent/libcublas.so").starts_with("/nonexistent/libcublas.so (LOADMASTER_CUBLAS): "));
        if let Some(stand_in) = crate::cuda::simulator::Simulator::find() {
            assert!(why(&stand_in.to_string_lossy()).ends_with("is a stand-in for tests, and the driver is none"));
        }
    }

    #[test]
    fn a_library_that_is_at_hand_has_every_function() {
        match Cublas::system(variable()) {
            Ok(found) => assert!(found.version.0 >= OLDEST, "{found:?}"),
            Err(NoCublas::NotFound) => println!("skipped: {}", NoCublas::NotFound),
            Err(why) => panic!("{why}"),
        }
    }
}

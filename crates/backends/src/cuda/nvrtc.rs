//! NVIDIA's compiler for kernels: a library that is found at run time and needs no GPU.

use super::libraries;
use super::toolkit::{Form, Toolkit};
use cudarc::nvrtc::sys;
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::path::Path;
use std::sync::OnceLock;

/// Environment variable with the absolute path of the NVRTC library (`libnvrtc.so.12`) to use instead of the system's.
pub const NVRTC_VARIABLE: &str = "LOADMASTER_NVRTC";

type Program = *mut c_void;
type Size = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(Program, *mut c_char) -> c_int;

/// The functions of NVRTC that are used.
struct Compiler {
    _library: Option<Library>,
    version: unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    create: unsafe extern "C" fn(
        *mut Program,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int,
    log_size: Size,
    log: Get,
    ptx_size: Size,
    ptx: Get,
    destroy: unsafe extern "C" fn(*mut Program) -> c_int,
    /// Since version 11.1.
    machine_code: Option<(Size, Get)>,
    /// Since version 11.2: how many architectures, and which.
    archs: Option<(unsafe extern "C" fn(*mut c_int) -> c_int, unsafe extern "C" fn(*mut c_int) -> c_int)>,
}

/// A file that sources may include: its name and its text.
pub(crate) type Header = (&'static str, &'static str);

impl Compiler {
    fn get() -> Result<&'static Self, String> {
        static COMPILER: OnceLock<Result<Compiler, String>> = OnceLock::new();
        let found = COMPILER.get_or_init(|| match std::env::var_os(NVRTC_VARIABLE).filter(|p| !p.is_empty()) {
            Some(path) => Self::open(Path::new(&path)),
            None => Self::of_system(),
        });
        found.as_ref().map_err(Clone::clone)
    }

    fn open(path: &Path) -> Result<Self, String> {
        let says = |why: String| format!("{} ({NVRTC_VARIABLE}): {why}", path.display());
        if !path.is_absolute() {
            return Err(format!("{NVRTC_VARIABLE} is `{}`, which is no absolute path", path.display()));
        }
        open_builtins_beside(path);
        // SAFETY: whoever sets the variable names NVRTC, whose initialisers may run in this process.
        let library = unsafe { libraries::open(path.as_os_str()) }.map_err(says)?;
        // SAFETY: as above: the library is NVRTC.
        let compiler = unsafe { Self::resolve(&library) }.map_err(says)?;
        Ok(Self { _library: Some(library), ..compiler })
    }

    fn of_system() -> Result<Self, String> {
        // SAFETY: libraries of NVRTC's names are NVRTC; the one that is found stays open for ever.
        let library = catch_unwind(|| unsafe { sys::is_culib_present().then(|| sys::culib()) });
        let none = || {
            format!(
                "NVRTC, which compiles the kernels, is not installed; install it or set {NVRTC_VARIABLE} to its path"
            )
        };
        let library = library.ok().flatten().ok_or_else(none)?;
        // SAFETY: as above.
        unsafe { Self::resolve(library) }
    }

    /// # Safety
    /// The library must be NVRTC: symbols of these names are functions of these types.
    unsafe fn resolve(library: &Library) -> Result<Self, String> {
        /// # Safety
        /// The symbol must have the type.
        unsafe fn find<T: Copy>(library: &Library, symbol: &str) -> Result<T, String> {
            // SAFETY: the caller vouches for the type.
            unsafe { libraries::function(library, symbol) }
                .ok_or_else(|| format!("NVRTC has no function {symbol}: the library is another, or too old"))
        }
        // SAFETY: the caller vouches for the functions' types.
        unsafe {
            Ok(Self {
                _library: None,
                version: find(library, "nvrtcVersion")?,
                error: find(library, "nvrtcGetErrorString")?,
                create: find(library, "nvrtcCreateProgram")?,
                compile: find(library, "nvrtcCompileProgram")?,
                log_size: find(library, "nvrtcGetProgramLogSize")?,
                log: find(library, "nvrtcGetProgramLog")?,
                ptx_size: find(library, "nvrtcGetPTXSize")?,
                ptx: find(library, "nvrtcGetPTX")?,
                destroy: find(library, "nvrtcDestroyProgram")?,
                machine_code: find(library, "nvrtcGetCUBINSize").ok().zip(find(library, "nvrtcGetCUBIN").ok()),
                archs: find(library, "nvrtcGetNumSupportedArchs")
                    .ok()
                    .zip(find(library, "nvrtcGetSupportedArchs").ok()),
            })
        }
    }

    fn check(&self, code: c_int) -> Result<(), String> {
        if code == 0 {
            return Ok(());
        }
        // SAFETY: NVRTC answers with a text of its own, which lives for ever.
        let text = unsafe { CStr::from_ptr((self.error)(code)) };
        Err(text.to_string_lossy().into_owned())
    }

    /// What a program has: its length, and then its bytes.
    fn bytes(&self, program: Program, (size, get): (Size, Get)) -> Result<Vec<u8>, String> {
        let mut len = 0;
        // SAFETY: the program lives and the pointer is to a number.
        self.check(unsafe { size(program, &raw mut len) })?;
        let mut bytes = vec![0u8; len.max(1)];
        // SAFETY: NVRTC writes as many bytes as it said.
        self.check(unsafe { get(program, bytes.as_mut_ptr().cast()) })?;
        bytes.truncate(len);
        Ok(bytes)
    }

    /// A text of a program, without the zero byte at its end.
    fn text(&self, program: Program, of: (Size, Get)) -> Result<Vec<u8>, String> {
        let mut bytes = self.bytes(program, of)?;
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        bytes.truncate(end);
        Ok(bytes)
    }

    /// Architectures that it compiles for, if it says.
    fn archs(&self) -> Option<Vec<u32>> {
        let (count, list) = self.archs?;
        let mut found = 0;
        // SAFETY: the pointer is to an int.
        self.check(unsafe { count(&raw mut found) }).ok()?;
        let mut archs = vec![0; usize::try_from(found).ok()?];
        // SAFETY: NVRTC writes as many ints as it said.
        self.check(unsafe { list(archs.as_mut_ptr()) }).ok()?;
        archs.into_iter().map(|arch: c_int| u32::try_from(arch).ok()).collect()
    }
}

/// NVRTC opens its builtins by name: copies that are loaded already are found.
fn open_builtins_beside(path: &Path) {
    let Some(entries) = path.parent().and_then(|dir| std::fs::read_dir(dir).ok()) else { return };
    let is_builtins = |p: &Path| {
        let name = p.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("libnvrtc-builtins.so")
    };
    for builtins in entries.flatten().map(|e| e.path()).filter(|p| is_builtins(p)) {
        // SAFETY: a part of the library that the variable names.
        if let Ok(library) = unsafe { Library::new(builtins) } {
            // It must stay open: nobody closes NVRTC either.
            std::mem::forget(library);
        }
    }
}

/// Version of the compiler, `(major, minor)`. Errors: there is none.
pub(crate) fn version() -> Result<(i32, i32), String> {
    let compiler = Compiler::get()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the pointers are to ints.
    compiler.check(unsafe { (compiler.version)(&raw mut major, &raw mut minor) })?;
    Ok((major, minor))
}

/// What the compiler can do. Errors: there is none.
pub(crate) fn toolkit() -> Result<Toolkit, String> {
    let compiler = Compiler::get()?;
    let (major, minor) = version()?;
    let machine_code = compiler.machine_code.is_some();
    Ok(Toolkit { name: format!("NVRTC {major}.{minor}"), archs: compiler.archs(), machine_code })
}

/// Compiles a source, to PTX without a zero byte at its end or to machine code. Errors: there is no compiler, or what it says, its log included.
pub(crate) fn compile(
    name: &str,
    text: &str,
    headers: &[Header],
    options: &[String],
    form: Form,
) -> Result<Vec<u8>, String> {
    let compiler = Compiler::get()?;
    let c = |s: &str| CString::new(s).map_err(|e| e.to_string());
    let (name, text) = (c(name)?, c(text)?);
    let names = headers.iter().map(|h| c(h.0)).collect::<Result<Vec<_>, _>>()?;
    let texts = headers.iter().map(|h| c(h.1)).collect::<Result<Vec<_>, _>>()?;
    let options = options.iter().map(|o| c(o)).collect::<Result<Vec<_>, _>>()?;
    let pointers = |all: &[CString]| all.iter().map(|s| s.as_ptr()).collect::<Vec<_>>();
    let (names, texts, flags) = (pointers(&names), pointers(&texts), pointers(&options));
    let mut program: Program = std::ptr::null_mut();
    let count = headers.len() as c_int;
    // SAFETY: all texts end with a zero byte and outlive the program; the lists have the lengths that are given.
    let created = unsafe {
        (compiler.create)(&raw mut program, text.as_ptr(), name.as_ptr(), count, texts.as_ptr(), names.as_ptr())
    };
    compiler.check(created)?;
    // SAFETY: the program was just made; the list has the length that is given.
    let compiled = compiler.check(unsafe { (compiler.compile)(program, flags.len() as c_int, flags.as_ptr()) });
    let outcome = match compiled {
        Ok(()) if form == Form::Ptx => compiler.text(program, (compiler.ptx_size, compiler.ptx)),
        Ok(()) => compiler.machine_code.map_or_else(
            || Err("this NVRTC makes no machine code".into()),
            |functions| compiler.bytes(program, functions),
        ),
        Err(why) => {
            let log = compiler.text(program, (compiler.log_size, compiler.log)).unwrap_or_default();
            Err(format!("{why}: {}", String::from_utf8_lossy(&log).trim()))
        }
    };
    // SAFETY: made above, destroyed once.
    unsafe { (compiler.destroy)(&raw mut program) };
    outcome
}

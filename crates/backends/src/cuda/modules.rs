//! Kernels that are loaded into a context, each source at its first use.

use super::cache::{self, Source};
use super::context::Context;
use super::launch::sources::{HEADERS, SOURCES};
use super::launch::types::Launch;
use crate::error::Fault;
use cudarc::driver::sys::{CUfunction, CUmodule};
use std::collections::BTreeMap;
use std::ffi::{CString, c_int};

/// Dynamic shared memory that a kernel may have unasked.
const SHARED_UNASKED: u32 = 48 << 10;
/// The number by which a kernel is told that it may have more.
const MAX_DYNAMIC_SHARED: c_int = 8;

/// A kernel of a context, valid while that lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Function(CUfunction);

// SAFETY: a handle without thread affinity; whoever launches it holds the context.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// The driver's handle.
    pub(crate) fn raw(self) -> CUfunction {
        self.0
    }
}

/// The modules of a context.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    loaded: BTreeMap<&'static str, CUmodule>,
    functions: BTreeMap<(&'static str, &'static str), Known>,
}

#[derive(Debug)]
struct Known {
    function: Function,
    shared_bytes: u32,
}

impl Modules {
    /// The kernel of a launch: found, or its source compiled and loaded. Errors: what the compiler or the driver says.
    pub(crate) fn function(&mut self, context: &Context, launch: &Launch, arch: u32) -> Result<Function, Fault> {
        let key = (launch.source, launch.kernel);
        if !self.functions.contains_key(&key) {
            let module = self.module(context, launch.source, arch)?;
            let function = find(context, module, launch)?;
            self.functions.insert(key, Known { function, shared_bytes: SHARED_UNASKED });
        }
        let known = self.functions.get_mut(&key).ok_or_else(|| unknown(launch.source, "it has no kernels"))?;
        if launch.shared_bytes > known.shared_bytes {
            let bytes = launch.shared_bytes as c_int;
            let raw = known.function.raw();
            // SAFETY: the function is of a module that is loaded.
            context.call(|driver| unsafe { driver.function_attribute(raw, MAX_DYNAMIC_SHARED, bytes) })?;
            known.shared_bytes = launch.shared_bytes;
        }
        Ok(known.function)
    }

    /// Hands the modules over, to be unloaded.
    pub(crate) fn take(&mut self) -> Vec<CUmodule> {
        self.functions.clear();
        std::mem::take(&mut self.loaded).into_values().collect()
    }

    /// A source's module: found, or compiled and loaded. Errors: as [`Self::function`].
    pub(crate) fn module(&mut self, context: &Context, source: &'static str, arch: u32) -> Result<CUmodule, Fault> {
        if let Some(module) = self.loaded.get(source) {
            return Ok(*module);
        }
        let image = image(context, source, arch)?;
        let mut module: CUmodule = std::ptr::null_mut();
        // SAFETY: the pointer is to a handle; the image ends with a zero byte, as texts for the driver must.
        context.call(|driver| unsafe { driver.module_load(&raw mut module, image.as_ptr().cast()) })?;
        self.loaded.insert(source, module);
        Ok(module)
    }
}

/// What the driver loads: PTX, or the source's name for the stand-in, which has the kernels in itself.
fn image(context: &Context, source: &'static str, arch: u32) -> Result<CString, Fault> {
    let text = if context.driver().is_simulator() {
        format!("loadmaster-cudasim:{source}")
    } else {
        let found = SOURCES.iter().find(|s| s.0 == source);
        let (name, text) = found.copied().ok_or_else(|| unknown(source, "it is not in this program"))?;
        cache::ptx(&Source { name, text, headers: HEADERS, arch }).map_err(|why| unknown(source, &why))?
    };
    CString::new(text).map_err(|e| unknown(source, &e.to_string()))
}

fn find(context: &Context, module: CUmodule, launch: &Launch) -> Result<Function, Fault> {
    let name = CString::new(launch.kernel).map_err(|e| unknown(launch.source, &e.to_string()))?;
    let mut function: CUfunction = std::ptr::null_mut();
    // SAFETY: the pointer is to a handle, the module is loaded, the name ends with a zero byte.
    context.call(|driver| unsafe { driver.module_function(&raw mut function, module, name.as_ptr()) })?;
    Ok(Function(function))
}

fn unknown(source: &str, why: &str) -> Fault {
    Fault::Module { module: source.into(), why: why.into() }
}

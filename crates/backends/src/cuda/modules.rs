//! Kernels that are loaded into a context: each part of a source at its first use.
//!
//! All parts that a program needs are compiled at once, by as many threads as there are processors. What the driver
//! refuses in one form is compiled to the next (module `toolkit`); the form that it took is taken from then on.

use super::cache::{self, Source};
use super::code::Code;
use super::context::Context;
use super::launch::sources::{self, HEADERS, Part};
use super::launch::types::Launch;
use super::nvrtc;
use super::toolkit::{Form, Toolkit, Way, refuses_image};
use crate::error::Fault;
use cudarc::driver::sys::{CUfunction, CUmodule};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

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
    loaded: BTreeMap<Part, CUmodule>,
    functions: BTreeMap<(&'static str, &'static str), Known>,
    /// Ways that the driver refused, with its words. The next one is tried.
    refused: Vec<String>,
}

#[derive(Debug)]
struct Known {
    function: Function,
    shared_bytes: u32,
}

impl Modules {
    /// The kernel of a launch: found, or its part compiled and loaded. Errors: what the compiler or the driver says.
    pub(crate) fn function(&mut self, context: &Context, launch: &Launch, arch: u32) -> Result<Function, Fault> {
        let key = (launch.source, launch.kernel);
        if !self.functions.contains_key(&key) {
            let part = sources::part(launch.source, launch.kernel);
            self.load(context, &BTreeSet::from([part]), arch).map_err(|(_, fault)| fault)?;
            let module = self.loaded.get(&part).ok_or_else(|| unknown(launch.source, "it was not loaded"))?;
            let function = find(context, *module, launch)?;
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

    /// Compiles parts that are not loaded, side by side, and loads them. Errors: the part, and what the compiler or the
    /// driver says of it.
    pub(crate) fn load(&mut self, context: &Context, parts: &BTreeSet<Part>, arch: u32) -> Result<(), (Part, Fault)> {
        loop {
            let missing: Vec<Part> = parts.iter().filter(|part| !self.loaded.contains_key(part)).copied().collect();
            let Some(&first) = missing.first() else { return Ok(()) };
            let way = self.way(context, arch).map_err(|why| (first, unknown(first.source, &why)))?;
            let images = images(context, &missing, way);
            for (part, image) in missing.into_iter().zip(images) {
                let image = image.map_err(|why| (part, unknown(part.source, &why)))?;
                if !self.load_one(context, part, &image, way).map_err(|fault| (part, fault))? {
                    break;
                }
            }
        }
    }

    /// What is compiled to. Errors: nothing is left that the driver has not refused.
    fn way(&self, context: &Context, arch: u32) -> Result<Way, String> {
        let toolkit = toolkit(context)?;
        let ways = toolkit.ways(arch)?;
        ways.get(self.refused.len()).copied().ok_or_else(|| {
            let (major, minor) = super::probe::version(context.driver());
            let refused = self.refused.join(", ");
            format!(
                "the driver, of CUDA {major}.{minor}, takes nothing that {} makes ({refused}); update the driver, or set {} to \
                 an NVRTC of CUDA {major}.{minor}",
                toolkit.name,
                nvrtc::NVRTC_VARIABLE
            )
        })
    }

    /// Whether the driver took an image. Errors: the driver's, but that it cannot use the image.
    fn load_one(&mut self, context: &Context, part: Part, image: &[u8], way: Way) -> Result<bool, Fault> {
        let mut module: CUmodule = std::ptr::null_mut();
        context.alive()?;
        // SAFETY: the pointer is to a handle; an image of the compiler's ends as its format says, a text with a zero byte.
        match context.try_call(|driver| unsafe { driver.module_load(&raw mut module, image.as_ptr().cast()) }) {
            Ok(()) => {
                self.loaded.insert(part, module);
                Ok(true)
            }
            Err(code) if refuses_image(code) => {
                self.refuse(context, way, code);
                Ok(false)
            }
            Err(code) => Err(context.fault(code)),
        }
    }

    fn refuse(&mut self, context: &Context, way: Way, code: Code) {
        let words = format!("{way}: {} {}", code.0, context.driver().words(code));
        tracing::warn!(gpu = context.ordinal(), %words, "the driver refuses kernels");
        self.refused.push(words);
    }
}

/// What compiles for a context. Errors: nothing does.
fn toolkit(context: &Context) -> Result<Toolkit, String> {
    if context.driver().is_simulator() {
        return Ok(Toolkit { name: "the stand-in".into(), archs: None, machine_code: true });
    }
    nvrtc::toolkit()
}

/// What the driver loads, for each part: compiled, or the source's name for the stand-in, which has the kernels in itself.
fn images(context: &Context, parts: &[Part], way: Way) -> Vec<Result<Vec<u8>, String>> {
    if context.driver().is_simulator() {
        return parts.iter().map(|part| Ok(format!("loadmaster-cudasim:{}\0", part.source).into_bytes())).collect();
    }
    compile(parts, way)
}

/// Compiles parts, or finds them in the cache, by as many threads as there are processors. In the order of the parts.
pub(crate) fn compile(parts: &[Part], way: Way) -> Vec<Result<Vec<u8>, String>> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let made = side_by_side(parts, threads, |part| compile_one(*part, way));
    made.into_iter()
        .map(|image| image.unwrap_or_else(|| Err("the thread that compiled it ended early".into())))
        .collect()
}

/// What `make` makes of each item, in their order, by up to so many threads: fewer where the system gives no more. `None`
/// for the item at which a helping thread panicked.
fn side_by_side<I: Sync, T: Send>(items: &[I], threads: usize, make: impl Fn(&I) -> T + Sync) -> Vec<Option<T>> {
    let (next, made) = (AtomicUsize::new(0), Mutex::new(items.iter().map(|_| None).collect::<Vec<Option<T>>>()));
    let work = || {
        let turns = std::iter::from_fn(|| {
            let i = next.fetch_add(1, Ordering::Relaxed);
            items.get(i).map(|item| (i, item))
        });
        turns.for_each(|(i, item)| {
            let one = make(item);
            made.lock()[i] = Some(one);
        });
    };
    thread::scope(|scope| {
        let more = 1..threads.min(items.len());
        let helpers: Vec<_> = more.map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        work();
        // What a thread that panicked did not make is missing in `made`.
        helpers.into_iter().for_each(|helper| drop(helper.join()));
    });
    made.into_inner()
}

fn compile_one(part: Part, way: Way) -> Result<Vec<u8>, String> {
    let text = sources::text(part).ok_or("it is not in this program")?;
    let name = part.to_string();
    let mut image = cache::image(&Source { name: &name, text: &text, headers: HEADERS, way })?;
    if way.form == Form::Ptx {
        image.push(0);
    }
    Ok(image)
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

#[cfg(test)]
#[allow(clippy::panic, reason = "a thread has to end early")]
mod tests {
    use super::*;
    use std::sync::Barrier;

    #[test]
    fn what_a_thread_did_not_make_is_missing_in_its_own_place_alone() {
        let own = thread::current().id();
        // Both threads are at work before one of them ends.
        let both = Barrier::new(2);
        let made = side_by_side(&[0, 1, 2, 3, 4, 5], 2, |&i| {
            if i < 2 {
                both.wait();
            }
            assert!(thread::current().id() == own, "the helper ends at its first item");
            i * 10
        });
        let missing: Vec<usize> = (0..6).filter(|&i| made[i].is_none()).collect();
        assert!(missing == [0] || missing == [1], "{made:?}");
        assert!(made.iter().enumerate().all(|(i, one)| one.is_none_or(|one| one == i * 10)), "{made:?}");
    }
}

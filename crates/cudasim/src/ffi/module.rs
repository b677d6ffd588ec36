//! Modules, functions, launches.

use std::ffi::{CStr, c_char, c_int, c_void};

use super::{CuResult, Handle, calls, code_of, give, gives, number, read_text};
use crate::code::Code;
use crate::launch::Shape;
use crate::module::IMAGE;
use crate::registry::Args;
use crate::sim::simulator;

use crate::task::HostFunction;

calls! {
    fn cuModuleUnload(module: Handle) |s| s.module_unload(number(module));
    fn cuFuncSetAttribute(function: Handle, attribute: c_int, value: c_int)
        |s| s.set_function_attribute(number(function), attribute, value);
    fn cuFuncSetCacheConfig(function: Handle, _config: c_int) |s| s.function_attribute(number(function), 0).map(|_| ());
}

gives! {
    fn cuFuncGetAttribute(value: *mut c_int, attribute: c_int, function: Handle)
        |s| s.function_attribute(number(function), attribute);
}

/// The image's bytes up to its null if it is one of the simulator's; otherwise nothing.
///
/// # Safety
/// `image` is null or a module image, which is longer than [`IMAGE`] or ends with a null before.
unsafe fn image_text<'a>(image: *const c_void) -> &'a [u8] {
    if image.is_null() {
        return &[];
    }
    let bytes = image.cast::<u8>();
    for (at, expected) in IMAGE.iter().enumerate() {
        // SAFETY: the bytes before were those of `IMAGE`, none of them null, so the image goes on to here.
        if unsafe { *bytes.add(at) } != *expected {
            return &[];
        }
    }
    // SAFETY: an image of the simulator is a C string.
    unsafe { CStr::from_ptr(image.cast::<c_char>()) }.to_bytes()
}

/// Loads a module.
///
/// # Safety
/// As [`image_text`], and `module` can be written or is null.
unsafe fn load(call: &'static str, module: *mut u64, image: *const c_void) -> CuResult {
    // SAFETY: passed on from the caller.
    let text = unsafe { image_text(image) };
    // SAFETY: passed on from the caller.
    code_of(unsafe { give(call, module, || simulator().call(call, |s| s.module_load(text))) })
}

/// The driver's `cuModuleLoadData`. Images are `loadmaster-cudasim:` and the name of a kernel source.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut u64, image: *const c_void) -> CuResult {
    // SAFETY: passed on from the caller.
    unsafe { load("cuModuleLoadData", module, image) }
}

/// The driver's `cuModuleLoadDataEx`; the options mean nothing here.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut u64,
    image: *const c_void,
    _count: u32,
    _options: *mut c_int,
    _values: *mut Handle,
) -> CuResult {
    // SAFETY: passed on from the caller.
    unsafe { load("cuModuleLoadDataEx", module, image) }
}

/// The driver's `cuModuleGetFunction`.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut u64, module: Handle, name: *const c_char) -> CuResult {
    const CALL: &str = "cuModuleGetFunction";
    // SAFETY: the caller passes a C string or null.
    let name = unsafe { read_text(name) };
    let find = || simulator().call(CALL, |s| s.function(number(module), &name));
    // SAFETY: the caller says that `function` can be written.
    code_of(unsafe { give(CALL, function, find) })
}

/// The driver's `cuLaunchKernel`. Kernels take one parameter, an `LmArgs`.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: Handle,
    grid_x: u32,
    grid_y: u32,
    grid_z: u32,
    block_x: u32,
    block_y: u32,
    block_z: u32,
    shared: u32,
    stream: Handle,
    parameters: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> CuResult {
    let shape = Shape { grid: [grid_x, grid_y, grid_z], block: [block_x, block_y, block_z], shared };
    code_of(simulator().call("cuLaunchKernel", |s| {
        if !extra.is_null() || parameters.is_null() {
            return Err(s.invalid(Code::INVALID_VALUE, "a launch without the parameter array"));
        }
        // SAFETY: not null, and the caller says that it holds a pointer for each parameter of the kernel.
        let first = unsafe { *parameters }.cast::<Args>();
        if first.is_null() {
            return Err(s.invalid(Code::INVALID_VALUE, "a launch with a null parameter"));
        }
        // SAFETY: every kernel has one parameter, which the caller says is an `LmArgs`.
        let args = unsafe { first.read_unaligned() };
        s.queue_launch(number(function), shape, number(stream), &args)
    }))
}

/// The driver's `cuOccupancyMaxActiveBlocksPerMultiprocessor`: always 2.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
    blocks: *mut c_int,
    function: Handle,
    _block_size: c_int,
    _shared: usize,
) -> CuResult {
    const CALL: &str = "cuOccupancyMaxActiveBlocksPerMultiprocessor";
    let ask = || simulator().call(CALL, |s| s.function_attribute(number(function), 0).map(|_| 2));
    // SAFETY: the caller says that `blocks` can be written.
    code_of(unsafe { give(CALL, blocks, ask) })
}

/// The driver's `cuLaunchHostFunc`.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchHostFunc(
    stream: Handle,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
) -> CuResult {
    let outcome = simulator().call("cuLaunchHostFunc", |s| match function {
        Some(function) => s.launch_host(number(stream), HostFunction { function, data: data as u64 }),
        None => Err(s.invalid(Code::INVALID_VALUE, "a null host function")),
    });
    simulator().changed.notify_all();
    code_of(outcome)
}

//! Initialisation, devices, contexts, names of errors.

use std::ffi::{c_char, c_int};

use super::{CuResult, Handle, calls, code_of, gives, number, waits, write_text};
use crate::code::{Code, Outcome};
use crate::sim::simulator;
use crate::state::State;

/// The driver's version: 12.8.
const VERSION: c_int = 12_080;

calls! {
    fn cuInit(flags: u32) |s| s.init(flags);
    fn cuCtxSetCurrent(context: Handle) |s| s.set_current(number(context));
    fn cuCtxPushCurrent_v2(context: Handle) |s| s.push_current(number(context));
    fn cuCtxSetFlags(_flags: u32) |s| s.here().map(|_| ());
    fn cuCtxEnablePeerAccess(peer: Handle, flags: u32) |s| s.enable_peer(number(peer), flags);
    fn cuCtxDisablePeerAccess(peer: Handle) |s| s.disable_peer(number(peer));
    fn cuProfilerStart() |s| s.here().map(|_| ());
    fn cuProfilerStop() |s| s.here().map(|_| ());
}

gives! {
    fn cuDriverGetVersion(version: *mut c_int) |_s| Ok(VERSION);
    fn cuDeviceGetCount(count: *mut c_int) |s| s.ready().map(|()| s.devices.len() as c_int);
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) |s| s.ready().and_then(|()| s.device(ordinal)).map(|d| d as c_int);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) |s| {
        s.ready()?;
        let device = s.device(device)?;
        Ok(s.config.memory[device as usize] as usize)
    };
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) |s| s.attribute(attribute, device);
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) |s| uuid_of(s, device);
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) |s| uuid_of(s, device);
    fn cuDevicePrimaryCtxRetain(context: *mut u64, device: c_int) |s| s.retain(device);
    fn cuDeviceCanAccessPeer(can: *mut c_int, from: c_int, to: c_int) |s| s.can_access_peer(from, to);
    fn cuDeviceGetP2PAttribute(value: *mut c_int, attribute: c_int, from: c_int, to: c_int) |s| match attribute {
        // Access supported, native atomics, access of arrays: all as the access itself.
        2..=4 => s.can_access_peer(from, to),
        _ => Ok(0),
    };
    fn cuCtxGetCurrent(context: *mut u64) |s| s.get_current();
    fn cuCtxPopCurrent_v2(context: *mut u64) |s| s.pop_current();
    fn cuCtxGetDevice(device: *mut c_int) |s| s.here().map(|d| d as c_int);
}

waits! {
    fn cuCtxSynchronize() |s| s.plan_context_sync(), then |_s| Ok(());
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) |s| s.plan_release(device), then |s| s.release(device);
}

fn uuid_of(state: &mut State, ordinal: c_int) -> Outcome<[u8; 16]> {
    let device = state.device(ordinal)?;
    let mut uuid = *b"loadmaster-sim\0\0";
    uuid[15] = device as u8;
    Ok(uuid)
}

/// Writes text about a device.
///
/// # Safety
/// `len` bytes at `to` can be written, or `to` is null.
unsafe fn describe(
    call: &'static str,
    to: *mut c_char,
    len: c_int,
    device: c_int,
    text: fn(u32) -> String,
) -> CuResult {
    let found = simulator().call(call, |s| {
        s.ready()?;
        let device = s.device(device)?;
        if to.is_null() || len <= 0 {
            return Err(s.invalid(Code::INVALID_VALUE, format_args!("{call} into no buffer")));
        }
        Ok(device)
    });
    code_of(found.map(|device| {
        // SAFETY: the caller says that `len` bytes can be written.
        unsafe { write_text(to, len as usize, &text(device)) }
    }))
}

/// The driver's `cuDeviceGetName`.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> CuResult {
    // SAFETY: passed on from the caller.
    unsafe { describe("cuDeviceGetName", name, len, device, |_| "Simulated GPU".to_owned()) }
}

/// The driver's `cuDeviceGetPCIBusId`.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int) -> CuResult {
    // SAFETY: passed on from the caller.
    unsafe { describe("cuDeviceGetPCIBusId", id, len, device, |d| format!("0000:{:02x}:00.0", d + 1)) }
}

/// The driver's `cuCtxGetStreamPriorityRange`.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> CuResult {
    let here = simulator().call("cuCtxGetStreamPriorityRange", |s| s.here());
    for to in [least, greatest].into_iter().filter(|to| !to.is_null()) {
        // SAFETY: not null, and the caller says that it can be written.
        unsafe { to.write(0) };
    }
    code_of(here.map(|_| ()))
}

/// Writes a constant string, or null for a code that nobody knows.
///
/// # Safety
/// `to` can be written, or is null.
unsafe fn constant(
    to: *mut *const c_char,
    code: u32,
    of: fn(Code) -> Option<&'static std::ffi::CStr>,
    zero: &'static std::ffi::CStr,
) -> CuResult {
    if to.is_null() {
        return Code::INVALID_VALUE.0;
    }
    let text = if code == 0 { Some(zero) } else { of(Code(code)) };
    // SAFETY: not null, and the caller says that it can be written.
    unsafe { to.write(text.map_or(std::ptr::null(), std::ffi::CStr::as_ptr)) };
    if text.is_some() { 0 } else { Code::INVALID_VALUE.0 }
}

/// The driver's `cuGetErrorName`.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(code: u32, to: *mut *const c_char) -> CuResult {
    // SAFETY: passed on from the caller.
    unsafe { constant(to, code, Code::name, c"CUDA_SUCCESS") }
}

/// The driver's `cuGetErrorString`.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(code: u32, to: *mut *const c_char) -> CuResult {
    // SAFETY: passed on from the caller.
    unsafe { constant(to, code, Code::text, c"no error") }
}

//! The driver API by its C names. Each function takes its arguments apart, enters the simulation, and gives the result
//! back through its out pointer. Handles are numbers in pointer's clothes.

#![allow(non_snake_case)]

use std::ffi::{c_char, c_void};

use crate::code::{Code, Outcome};
use crate::sim::simulator;

pub mod blas;
pub mod control;
pub mod device;
pub mod memory;
pub mod module;
pub mod stream;

/// `CUresult`.
pub type CuResult = u32;

/// Functions that give nothing back but their code.
macro_rules! calls {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) |$s:ident| $body:expr;)*) => {$(
        #[doc = concat!("The driver's `", stringify!($name), "`.\n\n# Safety\nWhat the driver asks of its callers.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::ffi::CuResult {
            $crate::ffi::code_of($crate::sim::simulator().call(stringify!($name), |$s: &mut $crate::state::State| $body))
        }
    )*};
}

/// Functions that give a value back through their first argument.
macro_rules! gives {
    ($(fn $name:ident($out:ident: $to:ty $(, $arg:ident: $ty:ty)*) |$s:ident| $body:expr;)*) => {$(
        #[doc = concat!("The driver's `", stringify!($name), "`.\n\n# Safety\nWhat the driver asks of its callers.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($out: $to $(, $arg: $ty)*) -> $crate::ffi::CuResult {
            let call = || $crate::sim::simulator().call(stringify!($name), |$s: &mut $crate::state::State| $body);
            // SAFETY: the caller passes a pointer that can be written, or null.
            $crate::ffi::code_of(unsafe { $crate::ffi::give(stringify!($name), $out, call) })
        }
    )*};
}

/// Functions that wait: first what is queued or asked for, then what is done when that has run.
macro_rules! waits {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) |$s:ident| $plan:expr, then |$t:ident| $body:expr;)*) => {$(
        #[doc = concat!("The driver's `", stringify!($name), "`.\n\n# Safety\nWhat the driver asks of its callers.")]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> $crate::ffi::CuResult {
            $crate::ffi::code_of($crate::sim::simulator().call_after(
                stringify!($name),
                |$s: &mut $crate::state::State| $plan,
                |$t: &mut $crate::state::State| $body,
            ))
        }
    )*};
}

pub(crate) use {calls, gives, waits};

/// A handle as C sees it.
pub type Handle = *mut c_void;

fn number(handle: Handle) -> u64 {
    handle as u64
}

/// The code of an outcome; 0 is success.
pub(crate) fn code_of(outcome: Outcome<()>) -> CuResult {
    outcome.err().map_or(0, |code| code.0)
}

fn null_out(name: &str) -> Code {
    simulator().lock().invalid(Code::INVALID_VALUE, format_args!("{name} with a null out pointer"))
}

/// Does a call and stores what it gives.
///
/// # Safety
/// `out` can be written, or is null.
pub(crate) unsafe fn give<T>(name: &str, out: *mut T, call: impl FnOnce() -> Outcome<T>) -> Outcome<()> {
    if out.is_null() {
        return Err(null_out(name));
    }
    let value = call()?;
    // SAFETY: `out` is not null, and the caller says that it can be written.
    unsafe { out.write(value) };
    Ok(())
}

/// Writes text with a null at its end, cut to `len` bytes.
///
/// # Safety
/// `len` bytes at `to` can be written, or `to` is null.
pub(crate) unsafe fn write_text(to: *mut c_char, len: usize, text: &str) {
    if to.is_null() || len == 0 {
        return;
    }
    let bytes = &text.as_bytes()[..text.len().min(len - 1)];
    // SAFETY: the bytes and the null after them fit into `len`, which the caller says can be written.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast::<u8>(), bytes.len());
        to.add(bytes.len()).write(0);
    }
}

/// The text at `from`; empty if it is null or no UTF-8.
///
/// # Safety
/// `from` is null or a C string.
pub(crate) unsafe fn read_text(from: *const c_char) -> String {
    if from.is_null() {
        return String::new();
    }
    // SAFETY: not null, and the caller says that it is a C string.
    unsafe { std::ffi::CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

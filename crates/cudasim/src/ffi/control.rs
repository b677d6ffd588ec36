//! What tests ask of the simulation, beside the driver API.

use std::ffi::{c_char, c_int, c_void};

use super::{read_text, write_text};
use crate::config::Offer;
use crate::memory::Place;
use crate::shadow::Mode;
use crate::sim::simulator;

/// Version of the functions in this module, by which a backend knows that it talks to the simulator.
const ABI: u32 = 1;

/// A number that no real driver has: the version of the simulator's own functions.
#[unsafe(no_mangle)]
pub extern "C" fn loadmaster_cudasim_abi() -> u32 {
    ABI
}

/// Starts again with a configuration (see the crate's documentation). Everything of before is void. 0 if the text was
/// understood; otherwise nothing changes.
///
/// # Safety
/// `text` is null (the default) or a C string; no other thread is inside a driver call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn loadmaster_cudasim_configure(text: *const c_char) -> c_int {
    // SAFETY: passed on from the caller.
    let text = unsafe { read_text(text) };
    c_int::from(simulator().configure(&text).is_err())
}

/// Writes text to `to`, cut to `len` bytes with its null; the bytes that all of it takes, with its null.
///
/// # Safety
/// `len` bytes at `to` can be written, or `to` is null.
unsafe fn answer(to: *mut c_char, len: usize, text: &str) -> usize {
    // SAFETY: passed on from the caller.
    unsafe { write_text(to, len, text) };
    text.len() + 1
}

/// What was found so far, a line each: `invalid`, `race`, `leak`, `memory`. Empty is good.
///
/// # Safety
/// `len` bytes at `to` can be written, or `to` is null; then only the length is asked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn loadmaster_cudasim_report(to: *mut c_char, len: usize) -> usize {
    let text = simulator().lock().report.to_string();
    // SAFETY: passed on from the caller.
    unsafe { answer(to, len, &text) }
}

/// What is alive now, a line each: contexts, allocations, streams, events, modules, graphs. After everything was given
/// back it is empty.
///
/// # Safety
/// As [`loadmaster_cudasim_report`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn loadmaster_cudasim_live(to: *mut c_char, len: usize) -> usize {
    let text = simulator().lock().live();
    // SAFETY: passed on from the caller.
    unsafe { answer(to, len, &text) }
}

/// Driver calls since the configuration, a line of name (without version) and number each.
///
/// # Safety
/// As [`loadmaster_cudasim_report`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn loadmaster_cudasim_call_list(to: *mut c_char, len: usize) -> usize {
    let text = simulator().lock().faults.listing();
    // SAFETY: passed on from the caller.
    unsafe { answer(to, len, &text) }
}

/// Calls since the configuration of one function, with or without version suffix, or (null) of all.
///
/// # Safety
/// `name` is null or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn loadmaster_cudasim_calls(name: *const c_char) -> u64 {
    // SAFETY: passed on from the caller.
    let text = unsafe { read_text(name) };
    simulator().lock().faults.calls(Some(text.as_str()).filter(|t| !t.is_empty()))
}

/// What became of the wait that the configuration leaves out: 0, it was not met; 1, what it would have ordered was
/// ordered without it; 2, it would have ordered something.
#[unsafe(no_mangle)]
pub extern "C" fn loadmaster_cudasim_skipped() -> u32 {
    simulator().lock().skipped as u32
}

/// What is offered of cuBLAS: -1, nothing; 0, all that the backend's own rule gives it; else products with this many columns
/// or more.
#[unsafe(no_mangle)]
pub extern "C" fn loadmaster_cudasim_cublas() -> i64 {
    match simulator().lock().config.cublas {
        Offer::Off => -1,
        Offer::Rule | Offer::Wrong => 0,
        Offer::From(columns) => columns.into(),
    }
}

/// Says that the host itself touches `len` bytes of pinned memory now (`writes` not 0: changes them), so that a missing
/// wait before it is reported as a race. Other memory is ignored.
#[unsafe(no_mangle)]
pub extern "C" fn loadmaster_cudasim_host_access(address: *const c_void, len: usize, writes: c_int) {
    let mut state = simulator().lock();
    let mode = if writes == 0 { Mode::Read } else { Mode::Write };
    let start = address as u64;
    if let Ok(Place::Pinned { space }) = state.resolve(start, len as u64) {
        state.host_touch(space, start, start + len as u64, mode, "the host");
    }
}

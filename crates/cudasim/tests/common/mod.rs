//! A simulated machine for one test: the tests of a process take turns.

#![allow(clippy::unwrap_used, clippy::panic, dead_code)]

use std::ffi::{CString, c_char, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use loadmaster_cudasim::ffi::control::*;
use loadmaster_cudasim::ffi::device::*;
use loadmaster_cudasim::ffi::memory::*;
use loadmaster_cudasim::ffi::stream::*;

static TURN: Mutex<()> = Mutex::new(());

/// Codes of the driver that tests expect.
pub const INVALID_VALUE: u32 = 1;
pub const OUT_OF_MEMORY: u32 = 2;
pub const INVALID_HANDLE: u32 = 400;
pub const NOT_READY: u32 = 600;
pub const ILLEGAL_ADDRESS: u32 = 700;
pub const LAUNCH_FAILED: u32 = 719;

pub type Ptr = *mut c_void;

/// A configured simulation, with the contexts of all its devices retained.
pub struct Machine {
    devices: i32,
    _turn: MutexGuard<'static, ()>,
}

/// Fails the test unless a call succeeded.
#[track_caller]
pub fn ok(code: u32) {
    assert_eq!(code, 0, "{}", report());
}

fn text(ask: unsafe extern "C" fn(*mut c_char, usize) -> usize) -> String {
    // SAFETY: first the length is asked, then that many bytes are given.
    unsafe {
        let mut bytes = vec![0u8; ask(null_mut(), 0)];
        ask(bytes.as_mut_ptr().cast(), bytes.len());
        bytes.pop();
        String::from_utf8(bytes).unwrap()
    }
}

/// What the simulator found.
pub fn report() -> String {
    text(loadmaster_cudasim_report)
}

/// What is alive.
pub fn live() -> String {
    text(loadmaster_cudasim_live)
}

/// Calls so far by name.
pub fn call_list() -> String {
    text(loadmaster_cudasim_call_list)
}

impl Machine {
    /// Takes the turn and configures, nothing more.
    pub fn bare(config: &str) -> Machine {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let text = CString::new(config).unwrap();
        // SAFETY: a C string; other tests wait for their turn.
        assert_eq!(unsafe { loadmaster_cudasim_configure(text.as_ptr()) }, 0, "{config}");
        Machine { devices: 0, _turn: turn }
    }

    /// A machine with device 0 current.
    pub fn new(config: &str) -> Machine {
        let mut machine = Machine::bare(config);
        // SAFETY: out pointers are of locals.
        unsafe {
            ok(cuInit(0));
            ok(cuDeviceGetCount(&mut machine.devices));
            for device in 0..machine.devices {
                let mut context = 0;
                ok(cuDevicePrimaryCtxRetain(&mut context, device));
            }
        }
        machine.select(0);
        machine
    }

    /// The context of a device, retained once more or not.
    pub fn context(&self, device: i32) -> Ptr {
        let mut context = 0u64;
        // SAFETY: out pointers are of locals.
        unsafe {
            ok(cuDevicePrimaryCtxRetain(&mut context, device));
            ok(cuDevicePrimaryCtxRelease_v2(device));
        }
        context as Ptr
    }

    /// Makes a device current.
    pub fn select(&self, device: i32) {
        let context = self.context(device);
        // SAFETY: a number, not followed.
        ok(unsafe { cuCtxSetCurrent(context) });
    }

    /// Memory of the current device.
    #[track_caller]
    pub fn alloc(&self, bytes: usize) -> u64 {
        let mut address = 0;
        // SAFETY: out pointer of a local.
        ok(unsafe { cuMemAlloc_v2(&mut address, bytes) });
        address
    }

    /// Pinned memory.
    pub fn pinned(&self, bytes: usize) -> Ptr {
        let mut address = 0u64;
        // SAFETY: out pointer of a local.
        ok(unsafe { cuMemHostAlloc(&mut address, bytes, 0) });
        address as Ptr
    }

    /// A stream that has nothing to do with the default one.
    pub fn stream(&self) -> Ptr {
        let mut stream = 0u64;
        // SAFETY: out pointer of a local.
        ok(unsafe { cuStreamCreate(&mut stream, 1) });
        stream as Ptr
    }

    /// An event without timing.
    pub fn event(&self) -> Ptr {
        let mut event = 0u64;
        // SAFETY: out pointer of a local.
        ok(unsafe { cuEventCreate(&mut event, 2) });
        event as Ptr
    }

    /// Copies bytes to a device and waits.
    #[track_caller]
    pub fn upload(&self, to: u64, bytes: &[u8]) {
        // SAFETY: the bytes live across the call, which stages them.
        unsafe {
            ok(cuMemcpyHtoD_v2(to, bytes.as_ptr() as Ptr, bytes.len()));
            ok(cuCtxSynchronize());
        }
    }

    /// Copies bytes from a device.
    #[track_caller]
    pub fn download(&self, from: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0u8; len];
        // SAFETY: the call returns when the bytes are there.
        ok(unsafe { cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), from, len) });
        bytes
    }

    /// Releases every context; what the simulator has to say in the end.
    pub fn end(self) -> String {
        for device in 0..self.devices {
            // SAFETY: no pointers.
            unsafe { cuDevicePrimaryCtxRelease_v2(device) };
        }
        report()
    }
}

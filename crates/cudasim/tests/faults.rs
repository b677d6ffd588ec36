//! Failures on demand.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::ffi::{c_char, c_int};
use std::ptr::null_mut;

use common::*;
use loadmaster_cudasim::ffi::control::*;
use loadmaster_cudasim::ffi::device::*;
use loadmaster_cudasim::ffi::memory::*;
use loadmaster_cudasim::ffi::stream::*;

/// A code that nothing but a failure on demand returns here.
const CODE: u32 = 214;

/// Calls every function of devices, memory, streams, events and graphs once at least; the codes that were not success.
/// Gives everything back, whatever failed.
fn tour() -> Vec<u32> {
    let mut failed = Vec::new();
    let mut note = |code: u32| {
        if code != 0 {
            failed.push(code);
        }
        code == 0
    };
    let (mut version, mut number, mut device) = (0, 0, 0);
    let (mut free, mut total) = (0, 0);
    let mut text = [0 as c_char; 64];
    let (mut context, mut other) = (0u64, 0u64);
    let (mut memory, mut pinned, mut stream, mut event) = (0u64, 0u64, 0u64, 0u64);
    let (mut graph, mut exec) = (0u64, 0u64);
    let mut status: c_int = 0;
    // SAFETY: out pointers of locals; what was not given is null and refused.
    unsafe {
        note(cuInit(0));
        note(cuDriverGetVersion(&mut version));
        note(cuDeviceGetCount(&mut number));
        note(cuDeviceGet(&mut device, 0));
        note(cuDeviceGetName(text.as_mut_ptr(), 64, device));
        note(cuDeviceGetPCIBusId(text.as_mut_ptr(), 64, device));
        note(cuDeviceTotalMem_v2(&mut total, device));
        note(cuDeviceGetAttribute(&mut number, 75, device));
        note(cuDeviceCanAccessPeer(&mut number, 0, 1));
        let retained = note(cuDevicePrimaryCtxRetain(&mut context, 0));
        let peer = note(cuDevicePrimaryCtxRetain(&mut other, 1));
        if retained && note(cuCtxSetCurrent(context as Ptr)) {
            if peer {
                note(cuCtxEnablePeerAccess(other as Ptr, 0));
            }
            note(cuMemGetInfo_v2(&mut free, &mut total));
            let has_memory = note(cuMemAlloc_v2(&mut memory, 64));
            let has_pinned = note(cuMemHostAlloc(&mut pinned, 64, 0));
            let has_stream = note(cuStreamCreate(&mut stream, 1));
            let has_event = note(cuEventCreate(&mut event, 0));
            let (to, event_handle) = (stream as Ptr, event as Ptr);
            if has_memory && has_pinned && has_stream && has_event {
                note(cuMemsetD8Async(memory, 1, 64, to));
                note(cuMemcpyHtoDAsync_v2(memory, pinned as Ptr, 32, to));
                note(cuMemcpyDtoDAsync_v2(memory + 32, memory, 32, to));
                note(cuMemcpyDtoHAsync_v2(pinned as Ptr, memory, 64, to));
                note(cuEventRecord(event_handle, to));
                note(cuStreamWaitEvent(to, event_handle, 0));
                if note(cuStreamBeginCapture_v2(to, 1)) {
                    note(cuMemsetD8Async(memory, 2, 64, to));
                    note(cuStreamIsCapturing(to, &mut status));
                    if note(cuStreamEndCapture(to, &mut graph)) {
                        if note(cuGraphInstantiateWithFlags(&mut exec, graph as Ptr, 0)) {
                            note(cuGraphLaunch(exec as Ptr, to));
                            note(cuStreamSynchronize(to));
                            note(cuGraphExecDestroy(exec as Ptr));
                        }
                        note(cuGraphDestroy(graph as Ptr));
                    }
                }
                note(cuEventSynchronize(event_handle));
                note(cuEventQuery(event_handle));
                note(cuStreamQuery(to));
            }
            note(cuCtxSynchronize());
            note(cuStreamSynchronize(to));
            if has_event {
                note(cuEventDestroy_v2(event_handle));
            }
            if has_stream {
                note(cuStreamDestroy_v2(to));
            }
            if has_pinned {
                note(cuMemFreeHost(pinned as Ptr));
            }
            if has_memory {
                note(cuMemFree_v2(memory));
            }
        }
        if retained {
            note(cuDevicePrimaryCtxRelease_v2(0));
        }
        if peer {
            note(cuDevicePrimaryCtxRelease_v2(1));
        }
    }
    failed
}

/// Eager, so that questions for completion are answered with yes.
const TOUR: &str = "devices=2,order=eager";

#[test]
fn every_call_failing_in_turn_returns_its_code_and_leaks_nothing() {
    let machine = Machine::bare(TOUR);
    assert_eq!(tour(), [0u32; 0], "{}", report());
    assert_eq!(report(), "");
    // SAFETY: null asks for all.
    let calls = unsafe { loadmaster_cudasim_calls(null_mut()) };
    assert!(calls > 40, "{}", call_list());
    drop(machine);
    for nth in 1..=calls {
        let machine = Machine::bare(&format!("{TOUR},fail=any:{nth}:{CODE}"));
        let failed = tour();
        assert!(failed.contains(&CODE), "call {nth}: {failed:?}");
        let (report, live) = (report(), live());
        assert!(!report.contains("leak: ") && !report.contains("race: "), "call {nth}: {report}");
        assert_eq!(live, "", "call {nth}");
        drop(machine);
    }
}

#[test]
fn the_nth_call_of_a_function_fails_and_no_other() {
    let machine = Machine::new("fail=cuMemAlloc:2");
    let mut address = 0;
    // SAFETY: out pointer of a local.
    unsafe {
        ok(cuMemAlloc_v2(&mut address, 8));
        assert_eq!(cuMemAlloc_v2(&mut address, 8), OUT_OF_MEMORY);
        ok(cuMemAlloc_v2(&mut address, 8));
        assert_eq!(loadmaster_cudasim_calls(c"cuMemAlloc".as_ptr()), 3);
        assert_eq!(loadmaster_cudasim_calls(c"cuMemAlloc_v2".as_ptr()), 3);
    }
    drop(machine);
}

#[test]
fn a_sticky_failure_kills_its_device_and_no_other() {
    let machine = Machine::new("devices=2,fail=cuMemGetInfo:1:ILLEGAL_ADDRESS:sticky");
    let (stream, a) = (machine.stream(), machine.alloc(64));
    let (mut free, mut total, mut address) = (0, 0, 0);
    // SAFETY: out pointers of locals, handles of this machine.
    unsafe {
        assert_eq!(cuMemGetInfo_v2(&mut free, &mut total), ILLEGAL_ADDRESS);
        assert_eq!(cuMemAlloc_v2(&mut address, 8), ILLEGAL_ADDRESS);
        assert_eq!(cuMemsetD8Async(a, 0, 64, stream), ILLEGAL_ADDRESS);
        machine.select(1);
        ok(cuMemAlloc_v2(&mut address, 8));
        ok(cuMemFree_v2(address));
        assert_eq!(cuStreamSynchronize(stream), ILLEGAL_ADDRESS);
    }
    assert_eq!(machine.end(), "", "what a dead device held is no leak");
}

#[test]
fn a_late_failure_shows_at_the_synchronisation() {
    let machine = Machine::new("order=lazy,fail=cuMemsetD8Async:2:LAUNCH_FAILED:late");
    let (stream, a) = (machine.stream(), machine.alloc(64));
    // SAFETY: handles and addresses of this machine.
    unsafe {
        ok(cuMemsetD8Async(a, 0, 64, stream));
        ok(cuStreamSynchronize(stream));
        ok(cuMemsetD8Async(a, 0, 64, stream));
        assert_eq!(cuStreamSynchronize(stream), LAUNCH_FAILED);
        assert_eq!(cuCtxSynchronize(), LAUNCH_FAILED);
    }
    drop(machine);
}

#[test]
fn a_corrupting_path_changes_a_byte_only_where_access_is_on() {
    let machine = Machine::new("devices=2,corrupt-peer=0>1");
    let (zero, one) = (machine.context(0), machine.context(1));
    let a = machine.alloc(64);
    machine.upload(a, &[0; 64]);
    machine.select(1);
    let b = machine.alloc(64);
    let copy = || {
        // SAFETY: device addresses and contexts of this machine.
        unsafe {
            ok(cuMemcpyPeer(b, one, a, zero, 64));
            ok(cuCtxSynchronize());
        }
        machine.download(b, 64).iter().filter(|b| **b != 0).count()
    };
    assert_eq!(copy(), 0, "staged by the driver");
    // SAFETY: a context of this machine.
    ok(unsafe { cuCtxEnablePeerAccess(zero, 0) });
    assert_eq!(copy(), 1);
    assert_eq!(report(), "");
}

#[test]
fn peer_access_follows_the_matrix() {
    let machine = Machine::new("devices=3,peer=0-1+1>2");
    let mut can = -1;
    let expected = [(0, 1, 1), (1, 0, 1), (1, 2, 1), (2, 1, 0), (0, 2, 0), (2, 0, 0)];
    for (from, to, expect) in expected {
        // SAFETY: out pointer of a local.
        ok(unsafe { cuDeviceCanAccessPeer(&mut can, from, to) });
        assert_eq!(can, expect, "{from} to {to}");
    }
    let two = machine.context(2);
    // SAFETY: a context of this machine.
    assert_eq!(unsafe { cuCtxEnablePeerAccess(two, 0) }, 217);
}

#[test]
fn a_configuration_that_says_nothing_clear_is_refused() {
    let machine = Machine::new("devices=2");
    let refused = [
        "devices=17",
        "devices=x",
        "memory=0",
        "memory=64MB",
        "memory=1024GiB",
        "peer=0-2,devices=2",
        "peer=0-0",
        "corrupt-peer=yes",
        "seed=-1",
        "order=random",
        "fail=cuMemAlloc",
        "fail=cuMemAlloc:0",
        "fail=malloc:1",
        "fail=any:1:NOT_A_CODE",
        "skip=cuMemAlloc:1",
        "skip=cuStreamWaitEvent",
        "skip=cuStreamWaitEvent:0",
        "audit=yes",
        "trace=file",
        "speed=fast",
        "devices",
    ];
    for text in refused {
        let text = std::ffi::CString::new(text).unwrap();
        // SAFETY: a C string.
        assert_ne!(unsafe { loadmaster_cudasim_configure(text.as_ptr()) }, 0, "{text:?}");
    }
    assert!(live().contains("context of cuda:1"), "a refused configuration changes nothing");
    drop(machine);
}

#[test]
fn codes_have_the_names_of_the_driver() {
    let mut text = std::ptr::null();
    // SAFETY: out pointer of a local, then a constant string.
    unsafe {
        ok(cuGetErrorName(2, &mut text));
        assert_eq!(std::ffi::CStr::from_ptr(text), c"CUDA_ERROR_OUT_OF_MEMORY");
        ok(cuGetErrorString(0, &mut text));
        assert_eq!(std::ffi::CStr::from_ptr(text), c"no error");
        assert_eq!(cuGetErrorName(12_345, &mut text), INVALID_VALUE);
        assert!(text.is_null());
    }
}

#[test]
fn calls_before_the_start_and_without_a_context_are_refused() {
    let machine = Machine::bare("");
    let (mut context, mut address) = (0, 0);
    // SAFETY: out pointers of locals.
    unsafe {
        assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 0), 3);
        ok(cuInit(0));
        assert_eq!(cuDevicePrimaryCtxRetain(&mut context, 1), 101);
        ok(cuCtxSetCurrent(null_mut()));
        assert_eq!(cuMemAlloc_v2(&mut address, 8), 201);
        assert_eq!(cuMemAlloc_v2(null_mut(), 8), INVALID_VALUE);
    }
    assert_eq!(report().lines().count(), 4, "{}", report());
    drop(machine);
    let machine = Machine::bare("devices=0");
    // SAFETY: no pointers.
    assert_eq!(unsafe { cuInit(0) }, 100);
    drop(machine);
}

//! Kernels of the CUDA backend, run by the simulator; launches that no GPU would take.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::ffi::{CString, c_void};
use std::ptr::null_mut;

use common::*;
use loadmaster_cudasim::ffi::device::*;
use loadmaster_cudasim::ffi::memory::*;
use loadmaster_cudasim::ffi::module::*;
use loadmaster_cudasim::ffi::stream::*;
use loadmaster_cudasim::registry::{Args, Tensor, kernels};

const ABSENT: Tensor = Tensor { data: null_mut(), ne: [0; 4], nb: [0; 4], ty: 0, pad: 0 };

/// `n` floats without gaps.
fn floats(address: u64, n: i64) -> Tensor {
    Tensor { data: address as *mut c_void, ne: [n, 1, 1, 1], nb: [4, 4 * n, 4 * n, 4 * n], ty: 0, pad: 0 }
}

/// A sum of two vectors.
fn sum(dst: u64, a: u64, b: u64, n: i64) -> Args {
    let mut args = Args { dst: floats(dst, n), src: [ABSENT; 6], f: [0.0; 16], i: [0; 32], l: [0; 8] };
    args.src[0] = floats(a, n);
    args.src[1] = floats(b, n);
    args
}

/// Why there is nothing to test here, if so.
fn no_kernels() -> bool {
    let none = kernels().is_empty();
    if none {
        println!("skipped: no C++ compiler was found when the simulator was built");
    }
    none
}

/// Loads a function.
fn function(source: &str, name: &str) -> (Ptr, Ptr) {
    let (image, name) = (CString::new(format!("loadmaster-cudasim:{source}")).unwrap(), CString::new(name).unwrap());
    let (mut module, mut function) = (0u64, 0u64);
    // SAFETY: C strings, out pointers of locals.
    unsafe {
        ok(cuModuleLoadData(&mut module, image.as_ptr().cast()));
        ok(cuModuleGetFunction(&mut function, module as Ptr, name.as_ptr()));
    }
    (module as Ptr, function as Ptr)
}

/// Launches one block of `threads`.
fn launch(function: Ptr, threads: u32, shared: u32, stream: Ptr, args: &Args) -> u32 {
    let mut parameters = [(args as *const Args).cast_mut().cast::<c_void>()];
    // SAFETY: one parameter, alive across the call.
    unsafe { cuLaunchKernel(function, 2, 1, 1, threads, 1, 1, shared, stream, parameters.as_mut_ptr(), null_mut()) }
}

fn upload_floats(machine: &Machine, to: u64, values: &[f32]) {
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
    machine.upload(to, &bytes);
}

fn download_floats(machine: &Machine, from: u64, n: usize) -> Vec<f32> {
    machine.download(from, 4 * n).chunks(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
}

#[test]
fn a_kernel_computes_on_the_bytes_behind_its_addresses() {
    if no_kernels() {
        return;
    }
    for seed in 0..20 {
        let machine = Machine::new(&format!("seed={seed}"));
        let (a, b, c) = (machine.alloc(400), machine.alloc(400), machine.alloc(400));
        let (module, add) = function("elementwise", "lm_binary");
        let stream = machine.stream();
        let values: Vec<f32> = (0..100).map(|i| i as f32).collect();
        upload_floats(&machine, a, &values);
        upload_floats(&machine, b, &values);
        ok(launch(add, 64, 0, stream, &sum(c, a, b, 100)));
        ok(launch(add, 64, 0, stream, &sum(c, c, a, 100)));
        // SAFETY: handles and addresses of this machine.
        unsafe {
            ok(cuStreamSynchronize(stream));
            let expected: Vec<f32> = (0..100).map(|i| 3.0 * i as f32).collect();
            assert_eq!(download_floats(&machine, c, 100), expected);
            ok(cuModuleUnload(module));
            ok(cuStreamDestroy_v2(stream));
            for address in [a, b, c] {
                ok(cuMemFree_v2(address));
            }
        }
        assert_eq!(machine.end(), "", "seed {seed}");
    }
}

#[test]
fn kernels_in_two_streams_race_by_what_they_touch() {
    if no_kernels() {
        return;
    }
    let machine = Machine::new("");
    let (a, b) = (machine.alloc(800), machine.alloc(800));
    machine.upload(a, &[0; 800]);
    machine.upload(b, &[0; 800]);
    let (_, add) = function("elementwise", "lm_binary");
    let (first, second) = (machine.stream(), machine.stream());
    ok(launch(add, 64, 0, first, &sum(b, a, a, 100)));
    ok(launch(add, 64, 0, second, &sum(b + 400, a + 400, a, 100)));
    assert_eq!(report(), "", "they share only what they read");
    ok(launch(add, 64, 0, second, &sum(b + 396, a, a, 10)));
    let report = report();
    assert!(report.starts_with("race: kernel lm_binary in stream"), "{report}");
    assert!(report.contains("writes bytes 396..400 of allocation #2"), "{report}");
    assert_eq!(report.lines().count(), 1, "{report}");
}

#[test]
fn interleaved_columns_are_not_taken_for_overlapping() {
    if no_kernels() {
        return;
    }
    let machine = Machine::new("");
    let (a, b) = (machine.alloc(64), machine.alloc(512));
    machine.upload(a, &[0; 64]);
    let (_, add) = function("elementwise", "lm_binary");
    for column in 0..2 {
        let mut args = sum(b + 4 * column, a, a, 1);
        args.dst = Tensor { ne: [1, 16, 1, 1], nb: [4, 32, 512, 512], ..args.dst };
        ok(launch(add, 64, 0, machine.stream(), &args));
    }
    assert_eq!(report(), "");
}

/// An address that is wrong for device 0, made with the help of a good one and of a host address.
type Wrong = fn(&Machine, u64, u64) -> u64;

#[test]
fn operands_outside_live_memory_of_the_device_are_illegal_addresses() {
    if no_kernels() {
        return;
    }
    let host = [0f32; 100];
    let wrong: [(&str, Wrong); 4] = [
        ("which has 400", |_, a, _| a + 4),
        ("host address", |_, _, host| host),
        ("of freed allocation", |machine, _, _| {
            let gone = machine.alloc(400);
            // SAFETY: an address of this machine.
            ok(unsafe { cuMemFree_v2(gone) });
            gone
        }),
        ("which cuda:0 has no access to", |machine, _, _| {
            machine.select(1);
            let other = machine.alloc(400);
            machine.select(0);
            other
        }),
    ];
    for (why, address) in wrong {
        let machine = Machine::new("devices=2");
        let (a, stream) = (machine.alloc(400), machine.stream());
        let (_, add) = function("elementwise", "lm_binary");
        let b = address(&machine, a, host.as_ptr() as u64);
        ok(launch(add, 64, 0, stream, &sum(a, b, a, 100)));
        // SAFETY: a handle of this machine.
        assert_eq!(unsafe { cuStreamSynchronize(stream) }, ILLEGAL_ADDRESS, "{why}");
        let report = report();
        assert!(report.contains(why) && report.contains("operand 1"), "{why}: {report}");
    }
}

#[test]
fn a_peer_s_memory_is_read_where_access_is_on() {
    if no_kernels() {
        return;
    }
    let machine = Machine::new("devices=2,peer=0>1");
    let (a, stream) = (machine.alloc(400), machine.stream());
    machine.select(1);
    let (b, one) = (machine.alloc(400), machine.context(1));
    upload_floats(&machine, b, &[2.0; 100]);
    machine.select(0);
    let (_, add) = function("elementwise", "lm_binary");
    // SAFETY: handles of this machine.
    unsafe {
        ok(cuCtxEnablePeerAccess(one, 0));
        ok(launch(add, 64, 0, stream, &sum(a, b, b, 100)));
        ok(cuStreamSynchronize(stream));
    }
    assert_eq!(download_floats(&machine, a, 100), [4.0; 100]);
    assert_eq!(report(), "");
}

#[test]
fn a_kernel_that_writes_behind_its_memory_is_caught() {
    if no_kernels() {
        return;
    }
    let machine = Machine::new("");
    let (a, b, stream) = (machine.alloc(400), machine.alloc(800), machine.stream());
    machine.upload(b, &[1; 800]);
    let (_, copy) = function("copy", "lm_copy_bytes");
    let mut args = sum(a, b, b, 100);
    args.l[0] = 800;
    ok(launch(copy, 64, 0, stream, &args));
    // SAFETY: a handle of this machine.
    assert_eq!(unsafe { cuStreamSynchronize(stream) }, ILLEGAL_ADDRESS);
    assert!(report().contains("wrote outside allocation #1"), "{}", report());
}

#[test]
fn an_audit_finds_writes_to_a_neighbour_in_the_same_allocation() {
    if no_kernels() {
        return;
    }
    for (config, finding) in [("audit=writes", "changed byte 400 of allocation"), ("audit=off", "")] {
        let machine = Machine::new(config);
        let (a, b, stream) = (machine.alloc(1024), machine.alloc(800), machine.stream());
        machine.upload(b, &[1; 800]);
        let (_, copy) = function("copy", "lm_copy_bytes");
        let mut args = sum(a, b, b, 100);
        args.l[0] = 400;
        ok(launch(copy, 64, 0, stream, &args));
        // SAFETY: a handle of this machine.
        ok(unsafe { cuStreamSynchronize(stream) });
        assert_eq!(report(), "");
        args.l[0] = 404;
        ok(launch(copy, 64, 0, stream, &args));
        // SAFETY: a handle of this machine.
        ok(unsafe { cuStreamSynchronize(stream) });
        assert!(report().contains(finding), "{}", report());
        assert_eq!(report().is_empty(), finding.is_empty());
    }
}

#[test]
fn launches_that_no_gpu_takes_are_refused() {
    if no_kernels() {
        return;
    }
    let machine = Machine::new("devices=2");
    let (a, stream) = (machine.alloc(400), machine.stream());
    let (module, add) = function("elementwise", "lm_binary");
    let args = sum(a, a, a, 100);
    assert_eq!(launch(add, 0, 0, stream, &args), INVALID_VALUE);
    assert_eq!(launch(add, 1025, 0, stream, &args), INVALID_VALUE);
    assert_eq!(launch(add, 64, (48 << 10) + 1, stream, &args), INVALID_VALUE);
    // SAFETY: handles of this machine.
    unsafe {
        ok(cuFuncSetAttribute(add, 8, 64 << 10));
        assert_eq!(cuFuncSetAttribute(add, 8, 1 << 20), INVALID_VALUE);
        machine.upload(a, &[0; 400]);
        ok(launch(add, 64, 64 << 10, stream, &args));
        machine.select(1);
        assert_eq!(launch(add, 64, 0, stream, &args), INVALID_HANDLE);
        machine.select(0);
        ok(cuStreamSynchronize(stream));
        ok(cuModuleUnload(module));
        assert_eq!(launch(add, 64, 0, stream, &args), INVALID_HANDLE);
        assert_eq!(cuModuleUnload(module), INVALID_HANDLE);
    }
}

#[test]
fn images_of_others_and_unknown_names_are_refused() {
    let machine = Machine::new("");
    let mut handle = 0u64;
    // SAFETY: C strings, out pointers of locals.
    unsafe {
        assert_eq!(cuModuleLoadData(&mut handle, c".version 8.0".as_ptr().cast()), 209);
        assert_eq!(cuModuleLoadData(&mut handle, c"loadmaster-cudasim:nothing".as_ptr().cast()), 209);
        if !kernels().is_empty() {
            ok(cuModuleLoadData(&mut handle, c"loadmaster-cudasim:copy".as_ptr().cast()));
            let mut function = 0u64;
            assert_eq!(cuModuleGetFunction(&mut function, handle as Ptr, c"lm_nothing".as_ptr()), 500);
        }
    }
    drop(machine);
}

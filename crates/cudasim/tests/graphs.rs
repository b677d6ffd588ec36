//! Capture and replay, and functions of the host.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use common::*;
use loadmaster_cudasim::ffi::device::*;
use loadmaster_cudasim::ffi::memory::*;
use loadmaster_cudasim::ffi::module::*;
use loadmaster_cudasim::ffi::stream::*;

/// Whether the captured branches meet before the last copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Join {
    There,
    Missing,
}

/// Captures: fill a, and in a branch fill b; then copy b over c. The graph, or the code of the end of the capture.
fn capture(machine: &Machine, [a, b, c]: [u64; 3], join: Join) -> Result<u64, u32> {
    let (main, side) = (machine.stream(), machine.stream());
    let (fork, meet, last) = (machine.event(), machine.event(), machine.event());
    let mut graph = 0;
    // SAFETY: handles and addresses of this machine.
    let code = unsafe {
        ok(cuStreamBeginCapture_v2(main, 1));
        ok(cuEventRecord(fork, main));
        ok(cuStreamWaitEvent(side, fork, 0));
        ok(cuMemsetD8Async(a, 1, 64, main));
        ok(cuMemsetD8Async(b, 2, 64, side));
        ok(cuEventRecord(meet, side));
        if join == Join::There {
            ok(cuStreamWaitEvent(main, meet, 0));
        }
        ok(cuMemcpyDtoDAsync_v2(c, b, 64, main));
        ok(cuEventRecord(last, side));
        ok(cuStreamWaitEvent(main, last, 0));
        let code = cuStreamEndCapture(main, &mut graph);
        for event in [fork, meet, last] {
            ok(cuEventDestroy_v2(event));
        }
        ok(cuStreamDestroy_v2(main));
        ok(cuStreamDestroy_v2(side));
        code
    };
    if code == 0 { Ok(graph) } else { Err(code) }
}

#[test]
fn a_captured_graph_runs_as_often_as_it_is_launched() {
    for seed in 0..100 {
        let machine = Machine::new(&format!("seed={seed}"));
        let memory = [machine.alloc(64), machine.alloc(64), machine.alloc(64)];
        let graph = capture(&machine, memory, Join::There).unwrap() as Ptr;
        let stream = machine.stream();
        let (mut exec, mut nodes) = (0u64, 0);
        // SAFETY: handles and addresses of this machine.
        unsafe {
            ok(cuGraphGetNodes(graph, std::ptr::null_mut(), &mut nodes));
            assert_eq!(nodes, 3);
            ok(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
            ok(cuGraphDestroy(graph));
            for _ in 0..3 {
                ok(cuMemsetD8Async(memory[2], 0, 64, stream));
                ok(cuGraphLaunch(exec as Ptr, stream));
                ok(cuMemcpyDtoDAsync_v2(memory[0], memory[2], 64, stream));
            }
            ok(cuStreamSynchronize(stream));
            assert_eq!(machine.download(memory[0], 64), [2; 64], "seed {seed}");
            ok(cuGraphExecDestroy(exec as Ptr));
            ok(cuStreamDestroy_v2(stream));
            for address in memory {
                ok(cuMemFree_v2(address));
            }
        }
        assert_eq!(machine.end(), "", "seed {seed}");
    }
}

#[test]
fn branches_of_a_graph_that_do_not_meet_race() {
    let machine = Machine::new("");
    let memory = [machine.alloc(64), machine.alloc(64), machine.alloc(64)];
    let graph = capture(&machine, memory, Join::Missing).unwrap() as Ptr;
    let (stream, mut exec) = (machine.stream(), 0u64);
    // SAFETY: handles and addresses of this machine.
    unsafe {
        ok(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
        ok(cuGraphLaunch(exec as Ptr, stream));
        ok(cuStreamSynchronize(stream));
    }
    assert!(report().starts_with("race: copy of 64 bytes in a graph on cuda:0"), "{}", report());
}

#[test]
fn what_is_captured_does_not_run() {
    let machine = Machine::new("order=eager");
    let (a, stream, mut graph) = (machine.alloc(64), machine.stream(), 0u64);
    machine.upload(a, &[5; 64]);
    // SAFETY: handles and addresses of this machine.
    unsafe {
        ok(cuStreamBeginCapture_v2(stream, 0));
        ok(cuMemsetD8Async(a, 1, 64, stream));
        ok(cuStreamEndCapture(stream, &mut graph));
        ok(cuStreamSynchronize(stream));
    }
    assert_eq!(machine.download(a, 64), [5; 64]);
}

#[test]
fn what_a_capture_forbids_spoils_it() {
    let machine = Machine::new("");
    let (stream, mut graph, mut address) = (machine.stream(), 0u64, 0u64);
    // SAFETY: handles and addresses of this machine.
    unsafe {
        ok(cuStreamBeginCapture_v2(stream, 1));
        assert_eq!(cuMemAlloc_v2(&mut address, 8), 900);
        assert_eq!(cuStreamEndCapture(stream, &mut graph), 901);
        ok(cuStreamBeginCapture_v2(stream, 1));
        assert_eq!(cuStreamSynchronize(stream), 900);
        assert_eq!(cuStreamEndCapture(stream, &mut graph), 901);
        ok(cuStreamBeginCapture_v2(stream, 2));
        ok(cuMemAlloc_v2(&mut address, 8));
        ok(cuStreamEndCapture(stream, &mut graph));
        assert_eq!(cuStreamEndCapture(stream, &mut graph), 401);
    }
}

#[test]
fn a_branch_that_never_comes_back_is_refused() {
    let machine = Machine::new("");
    let (a, main, side, fork) = (machine.alloc(64), machine.stream(), machine.stream(), machine.event());
    let mut graph = 0u64;
    // SAFETY: handles and addresses of this machine.
    unsafe {
        ok(cuStreamBeginCapture_v2(main, 1));
        ok(cuEventRecord(fork, main));
        ok(cuStreamWaitEvent(side, fork, 0));
        ok(cuMemsetD8Async(a, 1, 64, side));
        assert_eq!(cuStreamEndCapture(main, &mut graph), 904);
    }
}

unsafe extern "C" fn send(data: *mut c_void) {
    // SAFETY: the test passes a sender that outlives the call.
    let sender = unsafe { &*data.cast::<mpsc::Sender<&'static str>>() };
    sender.send("called").unwrap();
}

#[test]
fn a_host_function_is_called_although_nobody_waits_in_the_driver() {
    for order in ["lazy", "eager", "adversarial"] {
        let machine = Machine::new(&format!("order={order}"));
        let (a, stream) = (machine.alloc(64), machine.stream());
        let (sender, receiver) = mpsc::channel::<&'static str>();
        // SAFETY: the sender lives until the function was called.
        unsafe {
            ok(cuMemsetD8Async(a, 1, 64, stream));
            ok(cuLaunchHostFunc(stream, Some(send), (&raw const sender) as Ptr));
            assert_eq!(receiver.recv().unwrap(), "called");
            ok(cuMemsetD8Async(a, 2, 64, stream));
            ok(cuStreamSynchronize(stream));
        }
        assert_eq!(machine.download(a, 64), [2; 64]);
        assert_eq!(report(), "");
    }
}

static INSIDE: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn call_the_driver(_: *mut c_void) {
    // SAFETY: no pointers.
    INSIDE.store(unsafe { cuCtxSynchronize() }, Ordering::SeqCst);
}

#[test]
fn a_host_function_may_not_call_the_driver() {
    let machine = Machine::new("");
    let stream = machine.stream();
    // SAFETY: the function takes no data.
    unsafe {
        ok(cuLaunchHostFunc(stream, Some(call_the_driver), std::ptr::null_mut()));
        ok(cuStreamSynchronize(stream));
    }
    assert_eq!(INSIDE.load(Ordering::SeqCst), 800);
    assert!(report().contains("cuCtxSynchronize inside a host function"), "{}", report());
}

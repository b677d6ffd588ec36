//! The functions of cuBLAS: what they compute, what they refuse and report, and races over a workspace.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::{Machine, Ptr, ok, report};
use loadmaster_cudasim::ffi::blas::*;
use loadmaster_cudasim::ffi::memory::cuMemFree_v2;
use loadmaster_cudasim::ffi::stream::*;
use std::ptr::{from_ref, null};

const ALLOC_FAILED: u32 = 3;
const INVALID_VALUE: u32 = 7;
const ARCH_MISMATCH: u32 = 8;
const EXECUTION_FAILED: u32 = 13;
const NOT_SUPPORTED: u32 = 15;
const WORKSPACE: usize = 64 << 10;

/// A call of `cublasGemmEx`; tests change what they test.
#[derive(Clone, Copy)]
struct Gemm {
    operations: [i32; 2],
    extents: [i32; 3],
    beta: f32,
    types: [i32; 3],
    leading: [i32; 3],
    at: [u64; 3],
    compute: i32,
}

impl Gemm {
    /// 2 rows of weights and 3 columns of 4 floats, sums in 32 bits, as the backend calls it.
    fn new(a: u64, b: u64, c: u64) -> Self {
        let (types, leading) = ([0, 0, 0], [4, 4, 2]);
        Self { operations: [1, 0], extents: [2, 3, 4], beta: 0.0, types, leading, at: [a, b, c], compute: 68 }
    }

    fn call(&self, handle: Ptr) -> u32 {
        let ([m, n, k], [a, b, c], [ta, tb, tc], [la, lb, lc]) = (self.extents, self.at, self.types, self.leading);
        let (one, beta) = (1.0f32, self.beta);
        let (one, beta) = (from_ref(&one).cast(), from_ref(&beta).cast());
        let (a, b, c) = (a as *const _, b as *const _, c as *mut _);
        let [oa, ob] = self.operations;
        // SAFETY: the factors are of locals; addresses are numbers to the simulator.
        unsafe { cublasGemmEx(handle, oa, ob, m, n, k, one, a, ta, la, b, tb, lb, beta, c, tc, lc, self.compute, -1) }
    }
}

/// A handle with a stream and a workspace, and operands.
struct Bench {
    machine: Machine,
    handle: Ptr,
    stream: Ptr,
    workspace: u64,
    gemm: Gemm,
}

fn create() -> Ptr {
    let mut handle = 0u64;
    // SAFETY: out pointer of a local.
    ok(unsafe { cublasCreate_v2(&mut handle) });
    handle as Ptr
}

fn set(handle: Ptr, stream: Ptr, workspace: u64) {
    // SAFETY: numbers, not followed.
    unsafe {
        ok(cublasSetStream_v2(handle, stream));
        ok(cublasSetWorkspace_v2(handle, workspace as Ptr, WORKSPACE));
    }
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_ne_bytes()).collect()
}

impl Bench {
    fn new(config: &str) -> Self {
        let machine = Machine::new(config);
        let (handle, stream) = (create(), machine.stream());
        let workspace = machine.alloc(WORKSPACE);
        set(handle, stream, workspace);
        let (a, b, c) = (machine.alloc(32), machine.alloc(48), machine.alloc(24));
        machine.upload(a, &bytes(&[1.0, 2.0, 3.0, 4.0, 0.0, 1.0, 0.0, -1.0]));
        machine.upload(b, &bytes(&[1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 2.0, 0.0, 3.0, 0.0, 0.0]));
        Self { machine, handle, stream, workspace, gemm: Gemm::new(a, b, c) }
    }

    fn result(&self) -> Vec<f32> {
        // SAFETY: no pointers.
        ok(unsafe { cuStreamSynchronize(self.stream) });
        let found = self.machine.download(self.gemm.at[2], 24);
        found.chunks_exact(4).map(|b| f32::from_ne_bytes(b.try_into().unwrap())).collect()
    }

    fn end(self) -> String {
        // SAFETY: each was given by the simulator, once.
        unsafe {
            ok(cublasDestroy_v2(self.handle));
            for address in self.gemm.at.into_iter().chain([self.workspace]) {
                ok(cuMemFree_v2(address));
            }
            ok(cuStreamDestroy_v2(self.stream));
        }
        self.machine.end()
    }
}

const EXPECTED: [f32; 6] = [10.0, 0.0, 9.0, -2.0, 6.0, 3.0];

#[test]
fn a_product_is_that_of_transposed_weights_and_adds_to_what_is_there_only_if_asked() {
    let bench = Bench::new("cublas=rule,order=lazy");
    ok(bench.gemm.call(bench.handle));
    assert_eq!(bench.result(), EXPECTED);
    ok(Gemm { beta: 2.0, ..bench.gemm }.call(bench.handle));
    assert_eq!(bench.result(), EXPECTED.map(|v| 3.0 * v));
    // What the workspace holds after a product is nobody's.
    assert!(bench.machine.download(bench.workspace, 64).iter().all(|b| *b == 0xff));
    assert_eq!(bench.end(), "");
}

#[test]
fn strided_products_take_one_matrix_after_another() {
    let bench = Bench::new("cublas=rule");
    let [a, b, c] = bench.gemm.at;
    let (one, zero) = (1.0f32, 0.0f32);
    let (one, zero) = (from_ref(&one).cast(), from_ref(&zero).cast());
    let (a, b, c, h) = (a as *const _, b as *const _, c as *mut _, bench.handle);
    // Three products of all weights with one column each: the same as one with three.
    // SAFETY: the factors are of locals; addresses are numbers to the simulator.
    ok(unsafe {
        cublasGemmStridedBatchedEx(h, 1, 0, 2, 1, 4, one, a, 0, 4, 0, b, 0, 4, 4, zero, c, 0, 2, 2, 3, 68, -1)
    });
    assert_eq!(bench.result(), EXPECTED);
    assert_eq!(bench.end(), "");
}

#[test]
fn wrong_arguments_are_refused_with_the_library_s_status_and_reported() {
    type Change = fn(&mut Gemm);
    let cases: [(&str, u32, &str, Change); 11] = [
        ("", INVALID_VALUE, "leading dimensions", |g| g.leading[0] = 3),
        ("", INVALID_VALUE, "leading dimensions", |g| g.leading[1] = 3),
        ("", INVALID_VALUE, "leading dimensions", |g| g.leading[2] = 1),
        ("", INVALID_VALUE, "extents", |g| g.extents[1] = -1),
        ("", INVALID_VALUE, "misaligned", |g| g.at[1] += 2),
        ("", INVALID_VALUE, "writes over what it reads", |g| g.at[2] = g.at[0]),
        ("", NOT_SUPPORTED, "no such product", |g| g.operations = [0, 0]),
        ("", NOT_SUPPORTED, "no such product", |g| g.types[2] = 2),
        ("", NOT_SUPPORTED, "no such product", |g| g.compute = 64),
        ("", NOT_SUPPORTED, "two types", |g| g.types[1] = 2),
        (",arch=70", ARCH_MISMATCH, "bfloats on sm_70", |g| g.types = [14, 14, 0]),
    ];
    for (config, status, words, change) in cases {
        let bench = Bench::new(&format!("cublas=rule{config}"));
        let mut gemm = bench.gemm;
        change(&mut gemm);
        assert_eq!(gemm.call(bench.handle), status, "{words}");
        assert!(report().contains(words), "{words}: {}", report());
        ok(bench.gemm.call(bench.handle));
        assert_eq!(bench.result(), EXPECTED);
    }
}

#[test]
fn an_operand_that_ends_outside_its_allocation_kills_the_device_as_a_kernel_would() {
    let bench = Bench::new("cublas=rule");
    let [a, b, c] = bench.gemm.at;
    ok(Gemm { at: [a + 16, b, c], ..bench.gemm }.call(bench.handle));
    assert!(report().contains("cublasGemmEx is given operand 0: bytes 16..48"), "{}", report());
    // SAFETY: no pointers.
    assert_eq!(unsafe { cuStreamSynchronize(bench.stream) }, common::ILLEGAL_ADDRESS);
    assert_eq!(bench.gemm.call(bench.handle), EXECUTION_FAILED);
}

#[test]
fn a_product_uses_no_memory_that_its_caller_did_not_give() {
    let bench = Bench::new("cublas=rule");
    // SAFETY: numbers, not followed.
    unsafe {
        // Setting the stream gives the handle its own workspace back.
        ok(cublasSetStream_v2(bench.handle, bench.stream));
        assert_eq!(bench.gemm.call(bench.handle), ALLOC_FAILED);
        ok(cublasSetWorkspace_v2(bench.handle, bench.workspace as Ptr, 1 << 10));
        assert_eq!(bench.gemm.call(bench.handle), ALLOC_FAILED);
        let (unaligned, beyond) = (bench.workspace + 64, bench.workspace + 256);
        assert_eq!(cublasSetWorkspace_v2(bench.handle, unaligned as Ptr, 32 << 10), INVALID_VALUE);
        assert_eq!(cublasSetWorkspace_v2(bench.handle, beyond as Ptr, WORKSPACE), INVALID_VALUE);
        assert_eq!(cublasSetWorkspace_v2(bench.handle, bench.machine.pinned(WORKSPACE), WORKSPACE), INVALID_VALUE);
    }
    assert!(report().contains("no workspace of the caller's that is large enough"), "{}", report());
}

#[test]
fn streams_that_share_a_workspace_without_order_race_and_with_an_event_they_do_not() {
    for ordered in [false, true] {
        let bench = Bench::new("cublas=rule");
        let (other, event, c) = (bench.machine.stream(), bench.machine.event(), bench.machine.alloc(24));
        ok(bench.gemm.call(bench.handle));
        // SAFETY: handles of the simulator.
        unsafe {
            ok(cuEventRecord(event, bench.stream));
            if ordered {
                ok(cuStreamWaitEvent(other, event, 0));
            }
        }
        set(bench.handle, other, bench.workspace);
        let [a, b, _] = bench.gemm.at;
        ok(Gemm { at: [a, b, c], ..bench.gemm }.call(bench.handle));
        assert_eq!(report().contains("race"), !ordered, "{}", report());
    }
}

#[test]
fn a_product_is_captured_into_a_graph_and_runs_with_each_launch() {
    let bench = Bench::new("cublas=rule,order=lazy");
    let (mut graph, mut exec) = (0u64, 0u64);
    // SAFETY: handles of the simulator, out pointers of locals.
    unsafe {
        ok(cuStreamBeginCapture_v2(bench.stream, 1));
        ok(bench.gemm.call(bench.handle));
        ok(cuStreamEndCapture(bench.stream, &mut graph));
        ok(cuGraphInstantiateWithFlags(&mut exec, graph as Ptr, 0));
    }
    bench.machine.upload(bench.gemm.at[0], &bytes(&[1.0, 2.0, 3.0, 4.0, 0.0, 2.0, 0.0, -2.0]));
    // SAFETY: as above.
    unsafe { ok(cuGraphLaunch(exec as Ptr, bench.stream)) };
    assert_eq!(bench.result(), [10.0, 0.0, 9.0, -4.0, 6.0, 6.0]);
    // SAFETY: as above.
    unsafe {
        ok(cuGraphExecDestroy(exec as Ptr));
        ok(cuGraphDestroy(graph as Ptr));
    }
    assert_eq!(bench.end(), "");
}

#[test]
fn handles_are_offered_only_if_asked_for_belong_to_their_device_and_are_leaks_if_kept() {
    let machine = Machine::new("devices=2");
    let mut handle = 0u64;
    // SAFETY: out pointer of a local.
    assert_eq!(unsafe { cublasCreate_v2(&mut handle) }, 1);
    assert!(report().contains("which is not offered"), "{}", report());
    drop(machine);
    let machine = Machine::new("devices=2,cublas=rule");
    let handle = create();
    machine.select(1);
    // SAFETY: handles of the simulator.
    unsafe {
        assert_eq!(cublasSetStream_v2(handle, machine.stream()), INVALID_VALUE);
        assert_eq!(cublasDestroy_v2(7 as Ptr), 1);
        assert_eq!(cublasGetProperty(0, std::ptr::null_mut()), INVALID_VALUE);
    }
    assert_eq!(Gemm::new(0, 0, 0).call(null::<u8>() as Ptr), 1);
    let said = report();
    assert!(
        said.contains("a stream of cuda:1 for a handle of cuda:0") && said.contains("is no handle of cuBLAS"),
        "{said}"
    );
    assert!(machine.end().contains(&format!("cuBLAS handle {:#x} is alive", handle as u64)));
}

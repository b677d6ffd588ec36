//! The functions of cuBLAS that the CUDA backend calls, by their C names.

use std::ffi::{c_int, c_longlong, c_void};

use super::{Handle, give, number};
use crate::blas::{EXECUTION_FAILED, Gemm, Given};
use crate::code::{Code, Outcome};
use crate::sim::simulator;

/// `cublasStatus_t`.
pub type Status = u32;

/// The library's version: 12.8.
const VERSION: [c_int; 3] = [12, 8, 0];

/// The status of an outcome. What the driver says, the library reports as work that could not be run.
fn status_of(outcome: Outcome<()>) -> Status {
    const STATUSES: [u32; 9] = [1, 3, 7, 8, 11, 13, 14, 15, 16];
    match outcome {
        Ok(()) => 0,
        Err(Code(status)) if STATUSES.contains(&status) => status,
        Err(_) => EXECUTION_FAILED.0,
    }
}

/// The library's `cublasGetProperty`.
///
/// # Safety
/// `value` can be written, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetProperty(which: c_int, value: *mut c_int) -> Status {
    let found = usize::try_from(which).ok().and_then(|i| VERSION.get(i));
    match found {
        Some(found) if !value.is_null() => {
            // SAFETY: not null, and the caller says that it can be written.
            unsafe { value.write(*found) };
            0
        }
        _ => 7,
    }
}

/// The library's `cublasCreate_v2`.
///
/// # Safety
/// What the library asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasCreate_v2(handle: *mut u64) -> Status {
    let create = || simulator().call("cublasCreate_v2", |s| s.blas_create());
    // SAFETY: the caller says that `handle` can be written.
    status_of(unsafe { give("cublasCreate_v2", handle, create) })
}

/// The library's `cublasDestroy_v2`.
///
/// # Safety
/// What the library asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasDestroy_v2(handle: Handle) -> Status {
    status_of(simulator().call("cublasDestroy_v2", |s| s.blas_destroy(number(handle))))
}

/// The library's `cublasSetStream_v2`.
///
/// # Safety
/// What the library asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSetStream_v2(handle: Handle, stream: Handle) -> Status {
    status_of(simulator().call("cublasSetStream_v2", |s| s.blas_set_stream(number(handle), number(stream))))
}

/// The library's `cublasSetWorkspace_v2`.
///
/// # Safety
/// What the library asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSetWorkspace_v2(handle: Handle, workspace: Handle, bytes: usize) -> Status {
    let set = simulator()
        .call("cublasSetWorkspace_v2", |s| s.blas_set_workspace(number(handle), number(workspace), bytes as u64));
    status_of(set)
}

/// A factor that the host points to.
///
/// # Safety
/// `factor` is null or a float that can be read.
unsafe fn factor(factor: *const c_void) -> Option<f32> {
    // SAFETY: not null, and the caller says that it can be read.
    (!factor.is_null()).then(|| unsafe { factor.cast::<f32>().read_unaligned() })
}

/// The library's `cublasGemmEx`.
///
/// # Safety
/// What the library asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmEx(
    handle: Handle,
    a_operation: c_int,
    b_operation: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: c_int,
    a_leading: c_int,
    b: *const c_void,
    b_type: c_int,
    b_leading: c_int,
    beta: *const c_void,
    c: *mut c_void,
    c_type: c_int,
    c_leading: c_int,
    compute: c_int,
    _algorithm: c_int,
) -> Status {
    let given =
        |address: *const c_void, data_type, leading| Given { address: address as u64, data_type, leading, stride: 0 };
    let operands = [given(a, a_type, a_leading), given(b, b_type, b_leading), given(c, c_type, c_leading)];
    // SAFETY: the caller passes floats that can be read, or null.
    let (alpha, beta) = unsafe { (factor(alpha), factor(beta)) };
    let (call, operations) = ("cublasGemmEx", [a_operation, b_operation]);
    let gemm = Gemm { call, handle: number(handle), operations, m, n, k, alpha, beta, operands, count: 1, compute };
    status_of(simulator().call(call, |s| s.blas_gemm(&gemm)))
}

/// The library's `cublasGemmStridedBatchedEx`.
///
/// # Safety
/// What the library asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmStridedBatchedEx(
    handle: Handle,
    a_operation: c_int,
    b_operation: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: *const c_void,
    a_type: c_int,
    a_leading: c_int,
    a_stride: c_longlong,
    b: *const c_void,
    b_type: c_int,
    b_leading: c_int,
    b_stride: c_longlong,
    beta: *const c_void,
    c: *mut c_void,
    c_type: c_int,
    c_leading: c_int,
    c_stride: c_longlong,
    count: c_int,
    compute: c_int,
    _algorithm: c_int,
) -> Status {
    let given = |address: *const c_void, data_type, leading, stride| Given {
        address: address as u64,
        data_type,
        leading,
        stride,
    };
    let operands = [
        given(a, a_type, a_leading, a_stride),
        given(b, b_type, b_leading, b_stride),
        given(c, c_type, c_leading, c_stride),
    ];
    // SAFETY: the caller passes floats that can be read, or null.
    let (alpha, beta) = unsafe { (factor(alpha), factor(beta)) };
    let (call, operations) = ("cublasGemmStridedBatchedEx", [a_operation, b_operation]);
    let gemm = Gemm { call, handle: number(handle), operations, m, n, k, alpha, beta, operands, count, compute };
    status_of(simulator().call(call, |s| s.blas_gemm(&gemm)))
}

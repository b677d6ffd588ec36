//! Memory, copies, fills.

use super::{CuResult, Handle, calls, code_of, gives, number, waits};
use crate::sim::simulator;
use crate::transfer::{CopyCall, Side, Waits};

gives! {
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) |s| s.mem_alloc(bytes);
    fn cuMemHostAlloc(address: *mut u64, bytes: usize, _flags: u32) |s| s.host_alloc(bytes);
    fn cuMemAllocHost_v2(address: *mut u64, bytes: usize) |s| s.host_alloc(bytes);
    fn cuMemHostGetDevicePointer_v2(address: *mut u64, host: Handle, _flags: u32) |s| s.host_pointer(number(host));
}

calls! {
    fn cuMemFree_v2(address: u64) |s| s.mem_free(address);
    fn cuMemFreeHost(address: Handle) |s| s.host_free(number(address));
    fn cuMemHostRegister_v2(address: Handle, bytes: usize, _flags: u32) |s| s.host_register(number(address), bytes);
    fn cuMemHostUnregister(address: Handle) |s| s.host_unregister(number(address));
}

/// The driver's `cuMemGetInfo_v2`.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CuResult {
    let info = simulator().call("cuMemGetInfo_v2", |s| s.mem_info());
    code_of(info.map(|(free_bytes, total_bytes)| {
        for (to, bytes) in [(free, free_bytes), (total, total_bytes)].into_iter().filter(|(to, _)| !to.is_null()) {
            // SAFETY: not null, and the caller says that it can be written.
            unsafe { to.write(bytes as usize) };
        }
    }))
}

fn copy(name: &'static str, to: (Side, u64), from: (Side, u64), bytes: usize, at: (u64, Waits)) -> CopyCall {
    CopyCall { name, to, from, bytes, stream: at.0, waits: at.1 }
}

use Side::{Any, Device, Host};

/// Copies in the default stream.
const HERE: (u64, Waits) = (0, Waits::Sync);

/// Copies in a stream.
fn in_stream(stream: Handle) -> (u64, Waits) {
    (number(stream), Waits::Async)
}

waits! {
    fn cuMemcpy(to: u64, from: u64, bytes: usize)
        |s| s.plan_copy(copy("cuMemcpy", (Any, to), (Any, from), bytes, HERE)), then |_s| Ok(());
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Handle)
        |s| s.plan_copy(copy("cuMemcpyAsync", (Any, to), (Any, from), bytes, in_stream(stream))), then |_s| Ok(());
    fn cuMemcpyHtoD_v2(to: u64, from: Handle, bytes: usize)
        |s| s.plan_copy(copy("cuMemcpyHtoD", (Device, to), (Host, number(from)), bytes, HERE)), then |_s| Ok(());
    fn cuMemcpyHtoDAsync_v2(to: u64, from: Handle, bytes: usize, stream: Handle)
        |s| s.plan_copy(copy("cuMemcpyHtoDAsync", (Device, to), (Host, number(from)), bytes, in_stream(stream))),
        then |_s| Ok(());
    fn cuMemcpyDtoH_v2(to: Handle, from: u64, bytes: usize)
        |s| s.plan_copy(copy("cuMemcpyDtoH", (Host, number(to)), (Device, from), bytes, HERE)), then |_s| Ok(());
    fn cuMemcpyDtoHAsync_v2(to: Handle, from: u64, bytes: usize, stream: Handle)
        |s| s.plan_copy(copy("cuMemcpyDtoHAsync", (Host, number(to)), (Device, from), bytes, in_stream(stream))),
        then |_s| Ok(());
    fn cuMemcpyDtoD_v2(to: u64, from: u64, bytes: usize)
        |s| s.plan_copy(copy("cuMemcpyDtoD", (Device, to), (Device, from), bytes, HERE)), then |_s| Ok(());
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: Handle)
        |s| s.plan_copy(copy("cuMemcpyDtoDAsync", (Device, to), (Device, from), bytes, in_stream(stream))),
        then |_s| Ok(());
    fn cuMemcpyPeer(to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize)
        |s| {
            s.check_peers([(to, number(to_context)), (from, number(from_context))], bytes)?;
            s.plan_copy(copy("cuMemcpyPeer", (Device, to), (Device, from), bytes, HERE))
        },
        then |_s| Ok(());
    fn cuMemcpyPeerAsync(to: u64, to_context: Handle, from: u64, from_context: Handle, bytes: usize, stream: Handle)
        |s| {
            s.check_peers([(to, number(to_context)), (from, number(from_context))], bytes)?;
            s.plan_copy(copy("cuMemcpyPeerAsync", (Device, to), (Device, from), bytes, in_stream(stream)))
        },
        then |_s| Ok(());
    fn cuMemsetD8_v2(to: u64, value: u8, count: usize)
        |s| s.plan_fill("cuMemsetD8", to, &[value], count, HERE), then |_s| Ok(());
    fn cuMemsetD8Async(to: u64, value: u8, count: usize, stream: Handle)
        |s| s.plan_fill("cuMemsetD8Async", to, &[value], count, in_stream(stream)), then |_s| Ok(());
    fn cuMemsetD16_v2(to: u64, value: u16, count: usize)
        |s| s.plan_fill("cuMemsetD16", to, &value.to_ne_bytes(), count, HERE), then |_s| Ok(());
    fn cuMemsetD16Async(to: u64, value: u16, count: usize, stream: Handle)
        |s| s.plan_fill("cuMemsetD16Async", to, &value.to_ne_bytes(), count, in_stream(stream)), then |_s| Ok(());
    fn cuMemsetD32_v2(to: u64, value: u32, count: usize)
        |s| s.plan_fill("cuMemsetD32", to, &value.to_ne_bytes(), count, HERE), then |_s| Ok(());
    fn cuMemsetD32Async(to: u64, value: u32, count: usize, stream: Handle)
        |s| s.plan_fill("cuMemsetD32Async", to, &value.to_ne_bytes(), count, in_stream(stream)), then |_s| Ok(());
}

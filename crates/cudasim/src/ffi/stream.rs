//! Streams, events, captures, graphs.

use std::ffi::c_int;

use super::{CuResult, Handle, calls, code_of, give, gives, number, waits};
use crate::code::Code;
use crate::sim::simulator;

gives! {
    fn cuStreamCreate(stream: *mut u64, flags: u32) |s| s.stream_create(flags);
    fn cuStreamCreateWithPriority(stream: *mut u64, flags: u32, _priority: c_int) |s| s.stream_create(flags);
    fn cuEventCreate(event: *mut u64, flags: u32) |s| s.event_create(flags);
    fn cuEventElapsedTime(ms: *mut f32, start: Handle, end: Handle) |s| s.elapsed(number(start), number(end));
    fn cuEventElapsedTime_v2(ms: *mut f32, start: Handle, end: Handle) |s| s.elapsed(number(start), number(end));
}

calls! {
    fn cuStreamDestroy_v2(stream: Handle) |s| s.stream_destroy(number(stream));
    fn cuStreamQuery(stream: Handle) |s| s.stream_query(number(stream));
    fn cuStreamWaitEvent(stream: Handle, event: Handle, flags: u32)
        |s| s.stream_wait(number(stream), number(event), flags);
    fn cuEventDestroy_v2(event: Handle) |s| s.event_destroy(number(event));
    fn cuEventRecord(event: Handle, stream: Handle) |s| s.event_record(number(event), number(stream));
    fn cuEventQuery(event: Handle) |s| s.event_query(number(event));
    fn cuStreamBeginCapture_v2(stream: Handle, mode: c_int) |s| s.begin_capture(number(stream), mode);
    fn cuGraphDestroy(graph: Handle) |s| s.graph_destroy(number(graph));
    fn cuGraphExecDestroy(exec: Handle) |s| s.exec_destroy(number(exec));
    fn cuGraphLaunch(exec: Handle, stream: Handle) |s| s.graph_launch(number(exec), number(stream));
    fn cuGraphUpload(exec: Handle, stream: Handle) |s| s.exec_known(number(exec), number(stream));
}

waits! {
    fn cuStreamSynchronize(stream: Handle) |s| s.plan_stream_sync(number(stream)), then |_s| Ok(());
    fn cuEventSynchronize(event: Handle) |s| s.plan_event_sync(number(event)), then |_s| Ok(());
}

/// The driver's `cuStreamEndCapture`.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamEndCapture(stream: Handle, graph: *mut u64) -> CuResult {
    let end = || simulator().call("cuStreamEndCapture", |s| s.end_capture(number(stream)));
    // SAFETY: the caller says that `graph` can be written.
    code_of(unsafe { give("cuStreamEndCapture", graph, end) })
}

/// The driver's `cuGraphInstantiateWithFlags`.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphInstantiateWithFlags(exec: *mut u64, graph: Handle, _flags: u64) -> CuResult {
    let instantiate = || simulator().call("cuGraphInstantiateWithFlags", |s| s.instantiate(number(graph)));
    // SAFETY: the caller says that `exec` can be written.
    code_of(unsafe { give("cuGraphInstantiateWithFlags", exec, instantiate) })
}

/// The driver's `cuGraphGetNodes`, which gives the number of nodes only.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGraphGetNodes(graph: Handle, nodes: *mut Handle, count: *mut usize) -> CuResult {
    if !nodes.is_null() {
        return Code::NOT_SUPPORTED.0;
    }
    let ask = || simulator().call("cuGraphGetNodes", |s| s.graph_nodes(number(graph)));
    // SAFETY: the caller says that `count` can be written.
    code_of(unsafe { give("cuGraphGetNodes", count, ask) })
}

/// The driver's `cuStreamIsCapturing`.
///
/// # Safety
/// What the driver asks of its callers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(stream: Handle, status: *mut c_int) -> CuResult {
    let ask = || simulator().call("cuStreamIsCapturing", |s| s.capture_status(number(stream)));
    // SAFETY: the caller says that `status` can be written.
    code_of(unsafe { give("cuStreamIsCapturing", status, ask) })
}

//! Streams: orders that a real driver could choose, and races that it would hide.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::collections::BTreeSet;

use common::*;
use loadmaster_cudasim::ffi::control::*;
use loadmaster_cudasim::ffi::device::*;
use loadmaster_cudasim::ffi::memory::*;
use loadmaster_cudasim::ffi::stream::*;

const BYTES: usize = 256;

/// Whether the second stream waits for the first.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    There,
    Missing,
}

/// One stream fills, another copies what was filled; the bytes copied, and the report.
fn fill_and_copy(config: &str, wait: Wait) -> (Vec<u8>, String) {
    let machine = Machine::new(config);
    let (a, b) = (machine.alloc(BYTES), machine.alloc(BYTES));
    let (first, second, event) = (machine.stream(), machine.stream(), machine.event());
    // SAFETY: device addresses and handles of this machine.
    unsafe {
        ok(cuMemsetD8Async(a, 0, BYTES, first));
        ok(cuMemsetD8Async(b, 0, BYTES, second));
        ok(cuCtxSynchronize());
        ok(cuMemsetD8Async(a, 7, BYTES, first));
        ok(cuEventRecord(event, first));
        if wait == Wait::There {
            ok(cuStreamWaitEvent(second, event, 0));
        }
        ok(cuMemcpyDtoDAsync_v2(b, a, BYTES, second));
        ok(cuCtxSynchronize());
    }
    let bytes = machine.download(b, BYTES);
    // SAFETY: handles of this machine, each given back once.
    unsafe {
        ok(cuEventDestroy_v2(event));
        ok(cuStreamDestroy_v2(first));
        ok(cuStreamDestroy_v2(second));
        ok(cuMemFree_v2(a));
        ok(cuMemFree_v2(b));
    }
    (bytes, machine.end())
}

#[test]
fn a_wait_gives_the_right_result_under_every_seed() {
    for seed in 0..200 {
        let (bytes, report) = fill_and_copy(&format!("seed={seed}"), Wait::There);
        assert_eq!((bytes, report.as_str()), (vec![7; BYTES], ""), "seed {seed}");
    }
}

#[test]
fn a_missing_wait_is_a_race_under_every_seed_and_a_wrong_result_under_some() {
    let mut results = BTreeSet::new();
    for seed in 0..200 {
        let (bytes, report) = fill_and_copy(&format!("seed={seed}"), Wait::Missing);
        assert!(report.starts_with("race: copy of 256 bytes in stream "), "seed {seed}: {report}");
        assert!(report.contains("which fill of 256 bytes in stream"), "seed {seed}: {report}");
        assert_eq!(report.lines().count(), 1, "{report}");
        results.insert(bytes);
    }
    assert_eq!(results, BTreeSet::from([vec![0; BYTES], vec![7; BYTES]]));
}

#[test]
fn equal_seeds_give_equal_orders() {
    for seed in 0..20 {
        let config = format!("seed={seed}");
        assert_eq!(fill_and_copy(&config, Wait::Missing), fill_and_copy(&config, Wait::Missing));
    }
}

#[test]
fn a_pinned_copy_takes_the_bytes_when_it_runs() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let machine = Machine::new(&format!("seed={seed}"));
        let (a, stream, pinned) = (machine.alloc(1), machine.stream(), machine.pinned(1).cast::<u8>());
        // SAFETY: the pinned byte is mapped until it is freed below.
        unsafe {
            pinned.write(1);
            ok(cuMemcpyHtoDAsync_v2(a, pinned.cast(), 1, stream));
            pinned.write(2);
            ok(cuStreamSynchronize(stream));
            seen.insert(machine.download(a, 1));
            ok(cuMemFreeHost(pinned.cast()));
            ok(cuStreamDestroy_v2(stream));
            ok(cuMemFree_v2(a));
        }
        assert_eq!(machine.end(), "");
    }
    assert_eq!(seen, BTreeSet::from([vec![1], vec![2]]));
}

#[test]
fn a_pageable_copy_takes_the_bytes_at_once() {
    for seed in 0..50 {
        let machine = Machine::new(&format!("seed={seed}"));
        let (a, stream) = (machine.alloc(1), machine.stream());
        let mut byte = 1u8;
        // SAFETY: the byte lives across the calls.
        unsafe {
            ok(cuMemcpyHtoDAsync_v2(a, (&raw mut byte).cast(), 1, stream));
            byte = 2;
            ok(cuStreamSynchronize(stream));
            assert_eq!(machine.download(a, 1), [1], "seed {seed}, {byte}");
        }
    }
}

#[test]
fn a_synchronous_copy_of_pageable_memory_may_still_be_on_its_way() {
    let machine = Machine::new("order=lazy");
    let (a, b, stream) = (machine.alloc(4), machine.alloc(4), machine.stream());
    let bytes = [5u8; 4];
    // SAFETY: the bytes live across the calls; device addresses.
    unsafe {
        ok(cuMemcpyHtoD_v2(a, bytes.as_ptr() as Ptr, 4));
        ok(cuMemcpyDtoDAsync_v2(b, a, 4, stream));
        ok(cuCtxSynchronize());
    }
    assert!(machine.end().contains("race: copy of 4 bytes in stream"));
}

#[test]
fn the_host_touching_pinned_memory_too_early_is_a_race() {
    let machine = Machine::new("");
    let (a, stream, pinned) = (machine.alloc(64), machine.stream(), machine.pinned(64));
    machine.upload(a, &[1; 64]);
    // SAFETY: device address, pinned memory of that size.
    unsafe {
        ok(cuMemcpyDtoHAsync_v2(pinned, a, 64, stream));
        loadmaster_cudasim_host_access(pinned, 8, 0);
        assert!(report().contains("race: the host reads bytes 0..8 of pinned memory"), "{}", report());
        ok(cuStreamSynchronize(stream));
        assert_eq!(*pinned.cast::<u8>(), 1);
    }
    let before = report();
    loadmaster_cudasim_host_access(pinned, 64, 0);
    assert_eq!(report(), before);
}

#[test]
fn memory_freed_under_a_queued_operation_is_a_race_and_kills_the_device_when_it_runs() {
    let machine = Machine::new("order=lazy");
    let (a, stream) = (machine.alloc(64), machine.stream());
    // SAFETY: device addresses.
    unsafe {
        ok(cuMemsetD8Async(a, 1, 64, stream));
        ok(cuMemFree_v2(a));
        assert!(report().starts_with("race: cuMemFree writes bytes 0..64 of allocation #1"), "{}", report());
        assert_eq!(cuStreamSynchronize(stream), ILLEGAL_ADDRESS);
        assert_eq!(cuCtxSynchronize(), ILLEGAL_ADDRESS);
    }
    assert!(machine.end().contains("memory: fill of 64 bytes in stream"));
}

#[test]
fn polling_comes_to_an_end_and_tells_the_host() {
    for order in ["adversarial", "eager", "lazy"] {
        let machine = Machine::new(&format!("order={order}"));
        let (a, stream, event) = (machine.alloc(64), machine.stream(), machine.event());
        // SAFETY: device addresses and handles of this machine.
        unsafe {
            for _ in 0..10 {
                ok(cuMemsetD8Async(a, 1, 64, stream));
            }
            ok(cuEventRecord(event, stream));
            let polls = (0..1000).take_while(|_| cuEventQuery(event) == NOT_READY).count();
            assert!(polls < 1000);
            ok(cuEventQuery(event));
            ok(cuMemFree_v2(a));
        }
        assert_eq!(report(), "", "{order}");
    }
}

#[test]
fn an_event_orders_streams_of_two_devices() {
    for seed in 0..100 {
        let machine = Machine::new(&format!("devices=2,peer=all,seed={seed}"));
        let (a, first, event) = (machine.alloc(BYTES), machine.stream(), machine.event());
        let zero = machine.context(0);
        machine.select(1);
        let one = machine.context(1);
        let (b, second) = (machine.alloc(BYTES), machine.stream());
        // SAFETY: device addresses and handles of this machine.
        unsafe {
            machine.select(0);
            ok(cuMemsetD8Async(a, 9, BYTES, first));
            ok(cuEventRecord(event, first));
            machine.select(1);
            ok(cuStreamWaitEvent(second, event, 0));
            ok(cuMemcpyPeerAsync(b, one, a, zero, BYTES, second));
            ok(cuStreamSynchronize(second));
        }
        assert_eq!(machine.download(b, BYTES), [9; BYTES]);
        assert_eq!(report(), "", "seed {seed}");
    }
}

#[test]
fn an_event_belongs_to_the_streams_of_its_device() {
    let machine = Machine::new("devices=2");
    let event = machine.event();
    machine.select(1);
    let stream = machine.stream();
    // SAFETY: handles of this machine.
    assert_eq!(unsafe { cuEventRecord(event, stream) }, INVALID_HANDLE);
    assert!(report().contains("recorded in a stream of cuda:1"));
}

#[test]
fn the_default_stream_waits_for_streams_that_block_and_they_for_it() {
    for seed in 0..100 {
        let machine = Machine::new(&format!("seed={seed}"));
        let (a, b) = (machine.alloc(64), machine.alloc(64));
        let mut stream = 0u64;
        // SAFETY: device addresses; an out pointer of a local.
        unsafe {
            ok(cuStreamCreate(&mut stream, 0));
            ok(cuMemsetD8Async(a, 3, 64, stream as Ptr));
            ok(cuMemcpyDtoD_v2(b, a, 64));
            ok(cuMemsetD8Async(a, 4, 64, stream as Ptr));
        }
        assert_eq!(machine.download(b, 64), [3; 64]);
        assert_eq!(machine.download(a, 64), [4; 64]);
        assert_eq!(report(), "", "seed {seed}");
    }
}

#[test]
fn handles_that_are_none_are_refused() {
    let machine = Machine::new("");
    let (stream, event) = (machine.stream(), machine.event());
    // SAFETY: handles are numbers to the simulator, never followed.
    unsafe {
        ok(cuStreamDestroy_v2(stream));
        assert_eq!(cuStreamDestroy_v2(stream), INVALID_HANDLE);
        assert_eq!(cuStreamSynchronize(stream), INVALID_HANDLE);
        assert_eq!(cuStreamSynchronize(event), INVALID_HANDLE);
        assert_eq!(cuEventRecord(0x1234 as Ptr, std::ptr::null_mut()), INVALID_HANDLE);
    }
    let report = report();
    assert!(report.contains("was destroyed"), "{report}");
    assert!(report.contains("is none that the driver gave"), "{report}");
}

#[test]
fn events_measure_simulated_time() {
    let machine = Machine::new("");
    let (a, stream) = (machine.alloc(1 << 20), machine.stream());
    let (mut start, mut end, mut ms) = (0u64, 0u64, 0f32);
    // SAFETY: out pointers of locals, device addresses.
    unsafe {
        ok(cuEventCreate(&mut start, 0));
        ok(cuEventCreate(&mut end, 0));
        ok(cuEventRecord(start as Ptr, stream));
        ok(cuMemsetD8Async(a, 0, 1 << 20, stream));
        ok(cuEventRecord(end as Ptr, stream));
        ok(cuEventSynchronize(end as Ptr));
        ok(cuEventElapsedTime(&mut ms, start as Ptr, end as Ptr));
    }
    assert!(ms > 0.1 && ms < 1.0, "{ms}");
}

#[test]
fn each_wait_left_out_is_reported_or_was_not_needed() {
    for seed in 0..50 {
        let (_, report) = fill_and_copy(&format!("seed={seed},skip=cuStreamWaitEvent:1"), Wait::There);
        assert!(report.starts_with("race: copy of 256 bytes in stream "), "seed {seed}: {report}");
        // Without the first synchronisation the fills of zeros still come first in their streams, but the copy into the
        // second stream's memory is ordered by that stream.
        let (bytes, report) = fill_and_copy(&format!("seed={seed},skip=cuCtxSynchronize:1"), Wait::There);
        assert_eq!((bytes, report.as_str()), (vec![7; BYTES], ""), "seed {seed}");
        let (_, report) = fill_and_copy(&format!("seed={seed},skip=cuStreamWaitEvent:2"), Wait::There);
        assert_eq!(report, "", "seed {seed}");
    }
}

#[test]
fn a_wait_of_the_host_left_out_is_reported_where_it_was_needed() {
    for seed in 0..20 {
        let machine = Machine::new(&format!("seed={seed},skip=cuStreamSynchronize:1"));
        let (a, stream) = (machine.alloc(64), machine.stream());
        // SAFETY: device addresses and handles of this machine.
        unsafe {
            ok(cuMemsetD8Async(a, 1, 64, stream));
            ok(cuStreamSynchronize(stream));
        }
        machine.download(a, 64);
        assert!(report().starts_with("race: copy of 64 bytes in the default stream of cuda:0"), "{}", report());
        assert_eq!(loadmaster_cudasim_skipped(), 2);
    }
}

#[test]
fn a_wait_for_what_the_host_waited_for_is_redundant() {
    let machine = Machine::new("skip=cuStreamWaitEvent:1");
    let (a, first, second, event) = (machine.alloc(64), machine.stream(), machine.stream(), machine.event());
    // SAFETY: device addresses and handles of this machine.
    unsafe {
        ok(cuMemsetD8Async(a, 1, 64, first));
        ok(cuEventRecord(event, first));
        ok(cuEventSynchronize(event));
        ok(cuStreamWaitEvent(second, event, 0));
        ok(cuMemsetD8Async(a, 2, 64, second));
        ok(cuStreamSynchronize(second));
    }
    assert_eq!((loadmaster_cudasim_skipped(), report().as_str()), (1, ""));
}

#[test]
fn pinned_memory_that_a_queued_copy_will_write_reads_as_poison() {
    let machine = Machine::new("order=lazy");
    let (a, stream, pinned) = (machine.alloc(64), machine.stream(), machine.pinned(64).cast::<u8>());
    machine.upload(a, &[1; 64]);
    // SAFETY: device address, pinned memory of that size.
    unsafe {
        pinned.write_bytes(5, 64);
        ok(cuMemcpyDtoHAsync_v2(pinned.cast(), a, 32, stream));
        assert_eq!((*pinned, *pinned.add(31), *pinned.add(32)), (0xFF, 0xFF, 5));
        ok(cuStreamSynchronize(stream));
        assert_eq!((*pinned, *pinned.add(31), *pinned.add(32)), (1, 1, 5));
        // What an earlier copy still has to read stays as it is.
        ok(cuMemcpyHtoDAsync_v2(a, pinned.add(32).cast(), 32, stream));
        ok(cuMemcpyDtoHAsync_v2(pinned.add(32).cast(), a, 32, stream));
        ok(cuStreamSynchronize(stream));
    }
    assert_eq!(machine.download(a, 32), [5; 32]);
    assert_eq!(report(), "");
}

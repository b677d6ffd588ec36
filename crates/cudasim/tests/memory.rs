//! Device memory: apart from the host's, checked, counted, poisoned.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::*;
use loadmaster_cudasim::ffi::device::*;
use loadmaster_cudasim::ffi::memory::*;
use loadmaster_cudasim::ffi::stream::*;

#[test]
fn bytes_go_to_a_device_and_come_back() {
    let machine = Machine::new("");
    let data: Vec<u8> = (0..1000).map(|i| (i % 251) as u8).collect();
    let (a, b) = (machine.alloc(4096), machine.alloc(4096));
    machine.upload(a + 100, &data);
    // SAFETY: device addresses.
    unsafe {
        ok(cuMemcpyDtoD_v2(b + 7, a + 100, data.len()));
    }
    assert_eq!(machine.download(b + 7, data.len()), data);
    // SAFETY: device addresses.
    unsafe {
        ok(cuMemFree_v2(a));
        ok(cuMemFree_v2(b));
    }
    assert_eq!(live().lines().count(), 1, "{}", live());
    assert_eq!(machine.end(), "");
    assert_eq!(live(), "");
}

#[test]
fn fresh_memory_is_nan_in_every_float_format() {
    let machine = Machine::new("");
    let a = machine.alloc(64);
    assert_eq!(machine.download(a, 64), [0xFF; 64]);
    // SAFETY: a device address.
    ok(unsafe { cuMemFree_v2(a) });
    assert_eq!(machine.end(), "");
}

#[test]
fn memory_beyond_the_device_is_out_of_memory_and_changes_nothing() {
    let machine = Machine::new("memory=1MiB");
    let a = machine.alloc(1 << 19);
    let (mut address, mut free, mut total) = (0, 0, 0);
    // SAFETY: out pointers of locals.
    unsafe {
        assert_eq!(cuMemAlloc_v2(&mut address, (1 << 19) + 1), OUT_OF_MEMORY);
        ok(cuMemGetInfo_v2(&mut free, &mut total));
        assert_eq!((free, total), (1 << 19, 1 << 20));
        ok(cuMemFree_v2(a));
        ok(cuMemGetInfo_v2(&mut free, &mut total));
        assert_eq!((free, total), (1 << 20, 1 << 20));
    }
    assert_eq!(machine.end(), "");
}

#[test]
fn use_after_free_is_refused_and_reported() {
    let machine = Machine::new("");
    let a = machine.alloc(64);
    // SAFETY: a device address.
    ok(unsafe { cuMemFree_v2(a) });
    let bytes = [1u8; 8];
    // SAFETY: the bytes live across the call.
    assert_eq!(unsafe { cuMemcpyHtoD_v2(a + 8, bytes.as_ptr() as Ptr, 8) }, INVALID_VALUE);
    let report = machine.end();
    assert!(report.contains("freed allocation #1"), "{report}");
}

#[test]
fn a_double_free_is_refused_and_reported() {
    let machine = Machine::new("");
    let a = machine.alloc(64);
    // SAFETY: a device address.
    unsafe {
        ok(cuMemFree_v2(a));
        assert_eq!(cuMemFree_v2(a), INVALID_VALUE);
    }
    let report = machine.end();
    assert!(report.contains("cuMemFree of 0 bytes at byte 0 of freed allocation #1"), "{report}");
}

#[test]
fn what_is_not_given_back_is_a_leak() {
    let machine = Machine::new("");
    machine.alloc(64);
    machine.pinned(32);
    machine.stream();
    machine.event();
    let report = machine.end();
    assert_eq!(report.lines().filter(|l| l.starts_with("leak: ")).count(), 4, "{report}");
    assert_eq!(report.lines().count(), 4, "{report}");
}

#[test]
fn copies_outside_an_allocation_are_refused() {
    let machine = Machine::new("");
    let a = machine.alloc(64);
    let bytes = [1u8; 65];
    // SAFETY: the bytes live across the calls.
    unsafe {
        assert_eq!(cuMemcpyHtoD_v2(a, bytes.as_ptr() as Ptr, 65), INVALID_VALUE);
        assert_eq!(cuMemcpyHtoD_v2(a + 60, bytes.as_ptr() as Ptr, 5), INVALID_VALUE);
        assert_eq!(cuMemcpyHtoD_v2(bytes.as_ptr() as u64, bytes.as_ptr() as Ptr, 5), INVALID_VALUE);
        ok(cuMemcpyHtoD_v2(a + 60, bytes.as_ptr() as Ptr, 4));
        ok(cuCtxSynchronize());
        ok(cuMemFree_v2(a));
    }
    let report = machine.end();
    assert_eq!(report.lines().filter(|l| l.starts_with("invalid: ")).count(), 3, "{report}");
}

#[test]
fn registered_memory_is_pinned_until_it_is_given_back() {
    let machine = Machine::new("order=lazy");
    let (a, stream) = (machine.alloc(64), machine.stream());
    let mut bytes = vec![1u8; 64];
    let host: Ptr = bytes.as_mut_ptr().cast();
    // SAFETY: the vector lives across the calls and is touched through this pointer only.
    unsafe {
        ok(cuMemHostRegister_v2(host, 64, 0));
        assert_eq!(cuMemHostRegister_v2(host.add(32), 64, 0), 712);
        assert_eq!(cuMemFreeHost(host), INVALID_VALUE);
        ok(cuMemcpyHtoDAsync_v2(a, host, 64, stream));
        // Nothing has run yet: the copy takes what is there when it does.
        host.cast::<u8>().write_bytes(2, 64);
        ok(cuStreamSynchronize(stream));
        ok(cuMemHostUnregister(host));
        assert_eq!(cuMemHostUnregister(host), 713);
        ok(cuStreamDestroy_v2(stream));
    }
    assert_eq!(machine.download(a, 64), [2; 64]);
    let report = report();
    assert_eq!(report.lines().count(), 3, "{report}");
}

#[test]
fn pinned_memory_freed_under_a_queued_copy_is_a_race() {
    let machine = Machine::new("order=lazy");
    let (a, stream, pinned) = (machine.alloc(64), machine.stream(), machine.pinned(64));
    // SAFETY: device address, pinned memory of that size.
    unsafe {
        ok(cuMemcpyHtoDAsync_v2(a, pinned, 64, stream));
        ok(cuMemFreeHost(pinned));
    }
    assert!(report().starts_with("race: cuMemFreeHost writes bytes 0..64 of pinned memory"), "{}", report());
}

#[test]
fn fills_of_wider_elements_and_copies_of_any_address_work() {
    let machine = Machine::new("");
    let (a, b) = (machine.alloc(16), machine.alloc(16));
    let mut back = [0u8; 16];
    // SAFETY: device addresses, an array that lives across the calls.
    unsafe {
        ok(cuMemsetD32_v2(a, 0x0403_0201, 4));
        ok(cuMemsetD16_v2(a + 8, 0x0605, 2));
        assert_eq!(cuMemsetD32_v2(a + 2, 0, 1), INVALID_VALUE);
        ok(cuMemcpy(b, a, 16));
        ok(cuMemcpy(back.as_mut_ptr() as u64, b, 16));
        ok(cuMemsetD8_v2(a, 0, 0));
        ok(cuMemcpy(b, a, 0));
    }
    assert_eq!(back, [1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 5, 6, 1, 2, 3, 4]);
}

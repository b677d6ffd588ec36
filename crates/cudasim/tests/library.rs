//! The library as a driver: its name, its functions, its addresses.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::ffi::{c_char, c_int};
use std::fs;
use std::path::PathBuf;

use libloading::Library;

/// Where cargo puts the library of a dependency: beside the test itself.
fn path() -> PathBuf {
    let mut path = std::env::current_exe().unwrap();
    path.set_file_name("libloadmaster_cudasim.so");
    path
}

fn open() -> Library {
    // SAFETY: the library has no initialisers of its own.
    unsafe { Library::new(path()) }.unwrap()
}

#[test]
fn the_library_is_found_as_the_driver_once_it_is_open() {
    let library = open();
    type Abi = extern "C" fn() -> u32;
    // SAFETY: the function has this type.
    unsafe {
        assert_eq!(library.get::<Abi>(b"loadmaster_cudasim_abi\0").unwrap()(), 1);
        // Whoever asks for the driver by its name now gets the one that is open.
        let driver = Library::new("libcuda.so").unwrap();
        assert_eq!(driver.get::<Abi>(b"loadmaster_cudasim_abi\0").unwrap()(), 1);
    }
}

#[test]
fn device_addresses_are_such_that_the_host_faults_on_them() {
    let library = open();
    let mut address = 0u64;
    // SAFETY: functions of the driver's types, out pointers of locals.
    unsafe {
        let configure = library.get::<unsafe extern "C" fn(*const c_char) -> c_int>(b"loadmaster_cudasim_configure\0");
        assert_eq!(configure.unwrap()(c"devices=1".as_ptr()), 0);
        let mut context = 0u64;
        assert_eq!(library.get::<extern "C" fn(u32) -> u32>(b"cuInit\0").unwrap()(0), 0);
        let retain = library.get::<unsafe extern "C" fn(*mut u64, c_int) -> u32>(b"cuDevicePrimaryCtxRetain\0");
        assert_eq!(retain.unwrap()(&mut context, 0), 0);
        assert_eq!(library.get::<extern "C" fn(u64) -> u32>(b"cuCtxSetCurrent\0").unwrap()(context), 0);
        let alloc = library.get::<unsafe extern "C" fn(*mut u64, usize) -> u32>(b"cuMemAlloc_v2\0");
        assert_eq!(alloc.unwrap()(&mut address, 4096), 0);
    }
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let covers = |line: &&str| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        (number(from)..number(to)).contains(&address)
    };
    let mapping = maps.lines().find(covers).unwrap();
    assert_eq!(mapping.split(' ').nth(1), Some("---p"), "{mapping}");
}

#[test]
fn every_symbol_of_the_driver_that_is_declared_here_is_exported() {
    let library = open();
    let sources = ["blas", "device", "memory", "module", "stream"];
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/ffi");
    let mut seen = 0;
    for source in sources {
        let text = fs::read_to_string(root.join(source).with_extension("rs")).unwrap();
        for name in text.split("fn cu").skip(1).map(|rest| rest.split('(').next().unwrap()) {
            // SAFETY: the symbol is only looked up.
            unsafe { library.get::<*const ()>(format!("cu{name}\0").as_bytes()) }.unwrap();
            seen += 1;
        }
    }
    assert!(seen > 70, "{seen}");
}

//! Names the library as the driver names itself, and compiles the CUDA backend's kernels for the host.

use std::path::Path;

const KERNELS: &str = "../backends/src/cuda/kernels";

fn main() {
    println!("cargo::rustc-check-cfg=cfg(lm_kernels)");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcuda.so");
    // Threads of the process keep state in the library: it stays when the last user closes it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed={KERNELS}");
    let host = Path::new(KERNELS).join("lm_host.cpp");
    if !host.exists() {
        println!("cargo::warning={} is missing: simulated GPUs have no kernels", host.display());
        return;
    }
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").opt_level(2).debug(false).warnings(false).include(KERNELS).file(&host);
    // Arithmetic as on a GPU: no excess precision, no contraction that the source does not ask for.
    build.flag_if_supported("-ffp-contract=off");
    match build.try_compile("loadmaster_kernels") {
        Ok(()) => println!("cargo::rustc-cfg=lm_kernels"),
        Err(e) => println!("cargo::warning=no kernels for simulated GPUs: {e}"),
    }
}

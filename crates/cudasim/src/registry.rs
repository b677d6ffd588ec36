//! The kernels of the project, compiled for the host by the build script from the sources of the CUDA backend.

use std::ffi::{CStr, c_char, c_void};

/// A tensor as kernels see it: `LmTensor` of `lm_args.h`. Extents innermost first, strides in bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Tensor {
    /// First byte; null: there is no such operand.
    pub data: *mut c_void,
    /// Extents.
    pub ne: [i64; 4],
    /// Strides.
    pub nb: [i64; 4],
    /// ggml's number of the type.
    pub ty: i32,
    /// Nothing.
    pub pad: i32,
}

/// The one parameter of every kernel: `LmArgs` of `lm_args.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Args {
    /// The result.
    pub dst: Tensor,
    /// The operands.
    pub src: [Tensor; 6],
    /// Numbers.
    pub f: [f32; 16],
    /// Numbers.
    pub i: [i32; 32],
    /// Numbers.
    pub l: [i64; 8],
}

// SAFETY: the pointers are addresses of the simulated device, which nobody follows before they are translated.
unsafe impl Send for Args {}

/// One kernel: `LmHostKernel` of `lm_host.h`.
#[repr(C)]
pub struct HostKernel {
    source: *const c_char,
    name: *const c_char,
    function: Option<unsafe extern "C" fn()>,
    /// Operands that it reads: bit 0 the result, bit 1 + n source n.
    pub reads: u32,
    /// Operands that it writes.
    pub writes: u32,
}

// SAFETY: the table is constant and lives as long as the process.
unsafe impl Sync for HostKernel {}

fn text(pointer: *const c_char) -> &'static str {
    if pointer.is_null() {
        return "";
    }
    // SAFETY: names in the table are constant C strings.
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap_or_default()
}

impl HostKernel {
    /// Name of its source file, without ending.
    pub fn source(&self) -> &'static str {
        text(self.source)
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        text(self.name)
    }
}

/// How a kernel ended.
#[cfg_attr(not(lm_kernels), allow(dead_code))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ran {
    /// To its end.
    Whole,
    /// It was launched in a way that it cannot be.
    BadLaunch,
    /// Not every thread of a warp or a block reached a barrier.
    LostBarrier,
}

#[cfg(lm_kernels)]
mod linked {
    use super::{Args, HostKernel};

    unsafe extern "C" {
        pub fn lm_host_kernels(count: *mut usize) -> *const HostKernel;
        pub fn lm_host_launch(
            kernel: *const HostKernel,
            grid: *const u32,
            block: *const u32,
            shared: u32,
            args: *const Args,
        ) -> i32;
    }
}

/// All kernels; none where no C++ compiler was found when this crate was built.
#[cfg(lm_kernels)]
pub fn kernels() -> &'static [HostKernel] {
    let mut count = 0;
    // SAFETY: the function writes the count and returns a constant table of that many entries.
    unsafe {
        let first = linked::lm_host_kernels(&mut count);
        if first.is_null() { &[] } else { std::slice::from_raw_parts(first, count) }
    }
}

/// All kernels; none where no C++ compiler was found when this crate was built.
#[cfg(not(lm_kernels))]
pub fn kernels() -> &'static [HostKernel] {
    &[]
}

/// Runs a kernel on this thread.
///
/// # Safety
/// Every operand that the kernel reads or writes is a real address with the bytes that its extents ask for.
#[cfg(lm_kernels)]
pub unsafe fn run(kernel: &HostKernel, grid: [u32; 3], block: [u32; 3], shared: u32, args: &Args) -> Ran {
    // SAFETY: the kernel comes from the table; the caller answers for the operands.
    match unsafe { linked::lm_host_launch(kernel, grid.as_ptr(), block.as_ptr(), shared, args) } {
        0 => Ran::Whole,
        1 => Ran::BadLaunch,
        _ => Ran::LostBarrier,
    }
}

/// Runs a kernel on this thread.
///
/// # Safety
/// None is ever found, so none is ever run.
#[cfg(not(lm_kernels))]
pub unsafe fn run(_: &HostKernel, _: [u32; 3], _: [u32; 3], _: u32, _: &Args) -> Ran {
    Ran::BadLaunch
}

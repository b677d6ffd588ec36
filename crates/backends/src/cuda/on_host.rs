//! A node's launches run by kernels that were compiled for the host: their arithmetic without driver or simulator.
//!
//! For tests. The library is what a C++ compiler makes of `kernels/lm_host.cpp`.

use super::launch::launches;
use super::launch::types::{Base, Launch, Layout, LmArgs, NodeView, Place, Target, Work};
use crate::cpu::{TensorMut, TensorRef};
use loadmaster_graph::Op;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::path::Path;

/// `LmHostKernel` of `kernels/lm_host.h`.
#[repr(C)]
struct HostKernel {
    source: *const c_char,
    name: *const c_char,
    function: *const (),
    reads: c_uint,
    writes: c_uint,
}

type List = unsafe extern "C" fn(*mut usize) -> *const HostKernel;
type Run = unsafe extern "C" fn(*const HostKernel, *const c_uint, *const c_uint, c_uint, *const LmArgs) -> c_int;

/// Kernels compiled for the host.
#[derive(Debug)]
pub struct HostKernels {
    library: libloading::Library,
}

impl HostKernels {
    /// Opens a library made of `kernels/lm_host.cpp`.
    ///
    /// # Errors
    /// The loader's words.
    ///
    /// # Safety
    /// The file must be such a library, made of the sources of this program.
    pub unsafe fn open(path: &Path) -> Result<Self, String> {
        // SAFETY: the caller vouches for the library.
        let library = unsafe { super::libraries::open(path.as_ref()) }?;
        Ok(Self { library })
    }

    /// Source and name of every kernel, in the order of `kernels.def`.
    ///
    /// # Errors
    /// The library is another one.
    pub fn names(&self) -> Result<Vec<(String, String)>, String> {
        // SAFETY: the texts live as long as the library.
        let text = |p: *const c_char| unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned();
        Ok(self.list()?.iter().map(|k| (text(k.source), text(k.name))).collect())
    }

    fn list(&self) -> Result<&[HostKernel], String> {
        let mut count = 0usize;
        // SAFETY: `open`'s contract gives the function this type; the table lives as long as the library.
        unsafe {
            let list = self.library.get::<List>(b"lm_host_kernels").map_err(|e| e.to_string())?;
            let first = list(&raw mut count);
            Ok(std::slice::from_raw_parts(first, count))
        }
    }

    /// Computes a node as a small GPU of an architecture (80 is `sm_80`) would be told to; the names of the kernels that did.
    ///
    /// # Errors
    /// No kernel for the node; a launch that the emulation refuses.
    ///
    /// # Safety
    /// That of [`crate::cpu::compute`].
    pub unsafe fn compute(
        &self,
        op: Op,
        params: &[u32],
        src: &[Option<TensorRef>],
        dst: TensorMut,
        arch: u32,
    ) -> Result<Vec<&'static str>, String> {
        let sources: Vec<Option<Layout>> =
            src.iter().map(|s| s.map(|s| Layout { dtype: s.dtype, ne: s.ne, nb: s.nb })).collect();
        let layout = Layout { dtype: dst.dtype, ne: dst.ne, nb: dst.nb };
        let view = NodeView { op, params, src: &sources, dst: layout };
        let target = Target { arch, multiprocessors: 4, library: None };
        let launches = launches(&view, &target).map_err(|e| e.to_string())?;
        // Scratch memory holds anything before.
        let mut word = 0u64;
        let mut scratch = vec![u128::MAX; (launches.scratch_bytes as usize).div_ceil(16)];
        let mut address = |place: Place| match place.base {
            Base::Absent => 0,
            Base::Dst => dst.data.addr() as u64 + place.offset,
            Base::Source(i) => {
                src.get(usize::from(i)).copied().flatten().map_or(0, |s| s.data.addr() as u64 + place.offset)
            }
            Base::Watch => (&raw mut word).addr() as u64,
            Base::Scratch => scratch.as_mut_ptr().addr() as u64 + place.offset,
        };
        let run = |work: &Work| {
            let Work::Kernel(launch) = work else { return Err("products of a library are no kernels".to_owned()) };
            let mut args = launch.args;
            args.dst.data = address(launch.dst);
            for (tensor, place) in args.src.iter_mut().zip(launch.src) {
                tensor.data = address(place);
            }
            // SAFETY: addresses are those of the operands and of scratch memory as large as the launches ask for.
            unsafe { self.run(launch, &args) }.map(|()| launch.kernel)
        };
        launches.list.iter().map(run).collect()
    }

    unsafe fn run(&self, launch: &Launch, args: &LmArgs) -> Result<(), String> {
        // SAFETY: names are texts of the library.
        let named = |k: &&HostKernel| unsafe { CStr::from_ptr(k.name) }.to_bytes() == launch.kernel.as_bytes();
        let kernel = self.list()?.iter().find(named).ok_or_else(|| format!("no kernel {}", launch.kernel))?;
        // SAFETY: `open`'s contract gives the function this type; the caller vouches for the operands.
        let code = unsafe {
            let run = self.library.get::<Run>(b"lm_host_launch").map_err(|e| e.to_string())?;
            run(kernel, launch.grid.as_ptr(), launch.block.as_ptr(), launch.shared_bytes, args)
        };
        match code {
            0 => Ok(()),
            1 => Err(format!("{}: grid, block or shared memory do not fit: {launch:?}", launch.kernel)),
            _ => Err(format!("{}: a barrier that not all threads reach", launch.kernel)),
        }
    }
}

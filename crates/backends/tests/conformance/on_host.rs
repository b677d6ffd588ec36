//! The CUDA kernels, compiled for the host: their arithmetic where there is no GPU.

use crate::runner::Runner;
use crate::tensor::Host;
use loadmaster_backends::cpu::{TensorMut, TensorRef};
use loadmaster_backends::cuda::on_host::HostKernels;
use loadmaster_graph::Op;
use std::alloc::{Layout, alloc, dealloc};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::{env, fs};

const KERNELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/cuda/kernels");

/// Kernels as a GPU launches them.
pub struct OnHost {
    kernels: Arc<HostKernels>,
    launched: Mutex<BTreeSet<&'static str>>,
    arch: u32,
}

impl OnHost {
    /// Kernels that were launched so far, and all that there are.
    pub fn coverage(&self) -> (BTreeSet<String>, BTreeSet<String>) {
        let launched = self.launched.lock().unwrap().iter().map(|&k| k.to_owned()).collect();
        (launched, self.kernels.names().unwrap().into_iter().map(|(_, name)| name).collect())
    }
}

/// The runner as for an architecture; none, with the reason printed, where there is no C++ compiler.
pub fn runner(arch: u32) -> Option<OnHost> {
    static COMPILED: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    match COMPILED.get_or_init(compile) {
        Ok(path) => {
            // SAFETY: the file was made of this program's sources.
            let kernels = Arc::new(unsafe { HostKernels::open(path) }.unwrap());
            Some(OnHost { kernels, launched: Mutex::default(), arch })
        }
        Err(why) => {
            println!("skipped: CUDA kernels on the host: {why}");
            None
        }
    }
}

/// The library, made anew if a source changed.
fn compile() -> Result<PathBuf, String> {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let library = place.join(format!("libloadmaster_kernels-{:016x}.so", fingerprint()));
    if library.exists() {
        return Ok(library);
    }
    let compiler = env::var("CXX").unwrap_or_else(|_| "c++".into());
    let made = place.join(format!("kernels-{}.so", std::process::id()));
    let mut command = Command::new(&compiler);
    command.args(["-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-ffp-contract=off", "-fPIC", "-shared"]);
    command.arg("-o").arg(&made).arg(format!("{KERNELS}/lm_host.cpp"));
    let output = command.output().map_err(|e| format!("{compiler}: {e}"))?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    fs::rename(&made, &library).map_err(|e| e.to_string())?;
    Ok(library)
}

/// FNV-1a over the compiler's name and all sources.
fn fingerprint() -> u64 {
    let files: BTreeMap<PathBuf, Vec<u8>> =
        fs::read_dir(KERNELS).unwrap().flatten().map(|e| (e.path(), fs::read(e.path()).unwrap())).collect();
    let compiler = env::var("CXX").unwrap_or_default();
    let bytes = compiler.as_bytes().iter().chain(files.values().flatten());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

/// A copy of a tensor's bytes that ends where its layout ends, as aligned as a driver's allocation: an address sanitizer
/// sees a kernel that goes further (`scripts/kernels-sanitize`).
struct Tight {
    at: *mut u8,
    layout: Layout,
}

impl Tight {
    fn new(t: &Host) -> Self {
        let layout = Layout::from_size_align(used(t).max(1), 256).unwrap();
        // SAFETY: the layout has a size, and the tensor that many bytes.
        unsafe {
            let at = alloc(layout);
            assert!(!at.is_null());
            at.copy_from(t.bytes.as_ptr(), used(t));
            Self { at, layout }
        }
    }
    fn first(&self, t: &Host) -> *mut u8 {
        // Not followed for an empty tensor.
        self.at.wrapping_add(t.offset)
    }
}

impl Drop for Tight {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout.
        unsafe { dealloc(self.at, self.layout) };
    }
}

/// Bytes up to the end of a tensor's last element.
fn used(t: &Host) -> usize {
    if t.ne.contains(&0) { 0 } else { t.place(t.ne.map(|n| n - 1)) + t.dtype.block_size().get() as usize }
}

impl Runner for OnHost {
    fn name(&self) -> String {
        format!("CUDA kernels on the host, as for sm_{}", self.arch)
    }
    fn run(&self, op: Op, params: &[u32], src: &[Option<Host>], dst: &mut Host) -> Result<(), String> {
        let memory: Vec<Option<Tight>> = src.iter().map(|s| s.as_ref().map(Tight::new)).collect();
        let out = Tight::new(dst);
        let operand = |(t, memory): (&Option<Host>, &Option<Tight>)| {
            let (t, memory) = (t.as_ref()?, memory.as_ref()?);
            Some(TensorRef { dtype: t.dtype, ne: t.ne, nb: t.nb, data: memory.first(t) })
        };
        let sources: Vec<Option<TensorRef>> = src.iter().zip(&memory).map(operand).collect();
        let result = TensorMut { dtype: dst.dtype, ne: dst.ne, nb: dst.nb, data: out.first(dst) };
        // SAFETY: the tensors are valid for their layouts and apart from each other.
        unsafe {
            let launched = self.kernels.compute(op, params, &sources, result, self.arch)?;
            self.launched.lock().unwrap().extend(launched);
            dst.bytes.as_mut_ptr().copy_from(out.at, used(dst));
        }
        Ok(())
    }
}

//! What a source of kernels is compiled to, so that the driver takes it. Pure.
//!
//! A driver reads the PTX of compilers of its own version and older ones, but runs machine code of any compiler of its
//! major version. So machine code for the very GPU comes first; PTX, which later GPUs run too, where the compiler does
//! not know the GPU or the driver refuses machine code.

use super::code::Code;
use std::fmt;

/// What a compiler makes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Form {
    /// What GPUs of one architecture run.
    MachineCode,
    /// What the driver compiles for GPUs of this architecture and later ones.
    Ptx,
}

/// What a source is compiled to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Way {
    /// The form.
    pub(crate) form: Form,
    /// Compute capability times ten.
    pub(crate) arch: u32,
}

impl Way {
    /// The compiler's option.
    pub(crate) fn option(self) -> String {
        let kind = match self.form {
            Form::MachineCode => "sm",
            Form::Ptx => "compute",
        };
        format!("--gpu-architecture={kind}_{}", self.arch)
    }

    /// Ending of the file that keeps it.
    pub(crate) const fn ending(self) -> &'static str {
        match self.form {
            Form::MachineCode => "cubin",
            Form::Ptx => "ptx",
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.form {
            Form::MachineCode => write!(f, "machine code for sm_{}", self.arch),
            Form::Ptx => write!(f, "PTX for compute_{}", self.arch),
        }
    }
}

/// A compiler.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Toolkit {
    /// What it calls itself.
    pub(crate) name: String,
    /// Architectures that it compiles for; `None`: it does not say.
    pub(crate) archs: Option<Vec<u32>>,
    /// Whether it makes machine code.
    pub(crate) machine_code: bool,
}

impl Toolkit {
    /// The ways for a GPU, best first. Errors: it compiles for later GPUs only.
    pub(crate) fn ways(&self, gpu: u32) -> Result<Vec<Way>, String> {
        let way = |form, arch| Way { form, arch };
        let known = self.archs.as_ref().is_none_or(|archs| archs.contains(&gpu));
        if known {
            let machine_code = self.machine_code.then(|| way(Form::MachineCode, gpu));
            return Ok(machine_code.into_iter().chain([way(Form::Ptx, gpu)]).collect());
        }
        let archs = self.archs.as_deref().unwrap_or_default();
        if let Some(&arch) = archs.iter().filter(|&&arch| arch < gpu).max() {
            return Ok(vec![way(Form::Ptx, arch)]);
        }
        let first = archs.iter().min().map_or("no GPU".into(), |arch| format!("sm_{arch}"));
        Err(format!("{} compiles for {first} and later, this GPU is an sm_{gpu}: install an older NVRTC", self.name))
    }
}

/// Whether a driver says by a code that it cannot use an image, and perhaps another.
pub(crate) fn refuses_image(code: Code) -> bool {
    const INVALID_IMAGE: i32 = 200;
    const NO_BINARY_FOR_GPU: i32 = 209;
    const INVALID_PTX: i32 = 218;
    const NO_JIT_COMPILER: i32 = 221;
    const UNSUPPORTED_PTX_VERSION: i32 = 222;
    const JIT_DISABLED: i32 = 223;
    matches!(
        code.0,
        INVALID_IMAGE | NO_BINARY_FOR_GPU | INVALID_PTX | NO_JIT_COMPILER | UNSUPPORTED_PTX_VERSION | JIT_DISABLED
    )
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "helpers of tests fail tests")]
mod tests {
    use super::*;

    fn toolkit(archs: Option<&[u32]>, machine_code: bool) -> Toolkit {
        Toolkit { name: "NVRTC 12.9".into(), archs: archs.map(<[u32]>::to_vec), machine_code }
    }

    fn told(toolkit: &Toolkit, gpu: u32) -> Vec<String> {
        toolkit.ways(gpu).unwrap().iter().map(Way::to_string).collect()
    }

    #[test]
    fn a_gpu_that_the_compiler_knows_gets_machine_code_and_ptx_if_the_driver_refuses_that() {
        let both = ["machine code for sm_86", "PTX for compute_86"];
        assert_eq!(told(&toolkit(Some(&[70, 80, 86, 90]), true), 86), both);
        assert_eq!(told(&toolkit(None, true), 86), both);
        assert_eq!(told(&toolkit(Some(&[80, 86]), false), 86), both[1..]);
    }

    #[test]
    fn a_gpu_that_is_newer_than_the_compiler_gets_ptx_of_the_latest_architecture_before_it() {
        assert_eq!(told(&toolkit(Some(&[70, 80, 90]), true), 103), ["PTX for compute_90"]);
        assert_eq!(told(&toolkit(Some(&[70, 80, 90]), true), 89), ["PTX for compute_80"]);
    }

    #[test]
    fn a_gpu_that_the_compiler_has_dropped_is_an_error_that_names_both() {
        let why = toolkit(Some(&[75, 80]), true).ways(70).unwrap_err();
        assert_eq!(why, "NVRTC 12.9 compiles for sm_75 and later, this GPU is an sm_70: install an older NVRTC");
    }
}

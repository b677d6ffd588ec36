//! Instruction sets, chosen at run time.

/// Which kernels run. Every choice computes the same bits: vector lanes follow one reduction order that the portable
/// code spells out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust.
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL, VBMI and VNNI.
    Avx512,
}

impl Isa {
    /// Every instruction set this machine has, weakest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        [Self::Portable, Self::Avx2, Self::Avx512].into_iter().filter(|isa| isa.present()).collect()
    }

    /// The strongest one this machine has.
    #[must_use]
    pub fn best() -> Self {
        [Self::Avx512, Self::Avx2].into_iter().find(|isa| isa.present()).unwrap_or(Self::Portable)
    }

    /// Whether this machine has it.
    #[must_use]
    pub fn present(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.present()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vbmi")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }
}

/// Compiles one inlined body for every instruction set and picks the copy at run time.
///
/// The body is an `#[inline(always)]` function of plain Rust without fused multiply-add, so the copies differ in speed
/// only: Rust never contracts or reorders floating-point operations.
macro_rules! multiversion {
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? = $body:path;) => {
        $(#[$meta])*
        #[inline]
        #[allow(clippy::too_many_arguments)]
        $vis unsafe fn $name(isa: $crate::cpu::isa::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2,fma,f16c")]
                unsafe fn avx2($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the same contract as the outer function.
                    unsafe { $body($($arg),*) }
                }
                #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")]
                unsafe fn avx512($($arg: $ty),*) $(-> $ret)? {
                    // SAFETY: the same contract as the outer function.
                    unsafe { $body($($arg),*) }
                }
                match isa {
                    // SAFETY: the variant stands only for machines that have these instructions.
                    $crate::cpu::isa::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::cpu::isa::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::cpu::isa::Isa::Portable => {}
                }
            }
            let _ = isa;
            // SAFETY: the same contract as this function.
            unsafe { $body($($arg),*) }
        }
    };
}
pub(crate) use multiversion;

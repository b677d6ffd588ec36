//! Weighted sums of value rows: the second product of attention.

use super::portable;
use crate::cpu::isa::Isa;
use loadmaster_graph::DType;

/// Value rows of one head.
#[derive(Clone, Copy)]
pub(crate) struct Values {
    pub(crate) data: *const u8,
    /// Bytes from row to row.
    pub(crate) stride: usize,
    /// Elements of a row.
    pub(crate) len: usize,
}

/// One sum: weights by key, and where the sum is added to.
#[derive(Clone, Copy)]
pub(crate) struct Sum {
    pub(crate) weights: *const f32,
    pub(crate) to: *mut f32,
}

/// Adds `weight[key] · value[key]` to every sum, by fused multiply-add, in the order of `keys`.
///
/// # Safety (of calling one)
/// The keys must have rows and weights, the sums room for `len` elements, all apart from each other.
pub(crate) type ValuesFn = unsafe fn(values: &Values, keys: &[u32], sums: &[Sum]);

/// The kernel for a plain float type.
pub(crate) fn values_fn(isa: Isa, dtype: DType) -> Option<ValuesFn> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => super::avx512::values_fn(dtype),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => super::avx2::values_fn(dtype),
        _ => portable::values_fn(dtype),
    }
}

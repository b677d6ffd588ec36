//! What the kernels for AVX2 and AVX-512 share.

pub(super) mod ahead;
pub(super) mod scales;

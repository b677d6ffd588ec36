//! The kernels as devices see them.

use super::ctx::ComputeCtx;
use super::dispatch::{compute_many, supports};
use super::error::KernelError;
use super::in_place::in_place;
use super::isa::Isa;
use super::ops::rope;
use super::tensor::NodeArgs;
use crate::device::OpShape;
use crate::error::Unsupported;
use crate::host::Kernels;
use loadmaster_alloc::InPlaceTable;
use loadmaster_graph::{DType, Op};

impl Kernels for ComputeCtx {
    fn description(&self) -> String {
        let set = match self.isa() {
            Isa::Portable => "portable",
            Isa::Avx2 => "AVX2",
            Isa::Avx512 => "AVX-512",
        };
        format!("{set} kernels")
    }
    fn supports(&self, shape: &OpShape<'_>) -> Result<(), Unsupported> {
        let (op, dst) = (shape.op(), shape.tensor.dtype);
        let src: Vec<Option<DType>> = shape.sources.iter().map(|s| s.map(|t| t.dtype)).collect();
        if !supports(op, &src, dst) {
            let types: Vec<&str> = src.iter().map(|s| s.map_or("-", DType::name)).collect();
            let why = format!("no CPU kernel for {op} ({}) -> {dst}", types.join(", "));
            return Err(Unsupported { why });
        }
        if op == Op::Rope && !rope::mode_fits(shape.tensor.params.get(2).copied().unwrap_or(0)) {
            return Err(Unsupported { why: "no CPU kernel for this mode of ROPE (only 0 and 2)".into() });
        }
        Ok(())
    }

    fn in_place(&self) -> InPlaceTable {
        in_place()
    }

    unsafe fn run<'a>(&self, next: &mut dyn FnMut() -> Option<NodeArgs<'a>>) -> Result<(), KernelError> {
        // SAFETY: the same contract.
        unsafe { compute_many(self, next) }
    }
}

//! The CPU's kernels: one function computes a node from addresses and layouts.
//!
//! The `cpu` device and the virtual GPUs call the same [`compute`], so a node gives the same bits wherever it is placed;
//! results depend on neither the number of threads nor the instruction set nor on how a batch was cut (see
//! `matmul` for the orders of summation). Rounding follows ggml: activations to 8 bits, half or bfloat before a
//! product with such weights, GELU through a table over halves, soft maximum in single precision.

mod attention;
mod ctx;
mod dispatch;
mod element;
mod error;
mod in_place;
mod isa;
mod kernels;
mod math;
mod matmul;
mod ops;
pub mod owned;
pub mod quant;
mod region;
mod tensor;

pub use ctx::{ComputeCtx, Workers, WorkersError};
pub use dispatch::{compute, compute_many, supports};
pub use error::{KernelError, SourceIndex, Types};
pub use in_place::in_place;
pub use isa::Isa;
pub(crate) use ops::softmax::Slopes;
pub use tensor::{NodeArgs, TensorMut, TensorRef};

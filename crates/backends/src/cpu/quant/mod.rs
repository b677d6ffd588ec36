//! Quantized rows: what the blocks hold, back to floats, and simple quantizers.
//!
//! Every format is seen as unsigned codes with a zero point: a weight is `scale · (code − zero) [− or + minimum]`. One
//! scalar reader per format stands here and defines it; vector readers must agree with it bit for bit.

pub(crate) mod block256;
pub(crate) mod block32;
mod dequantize;
mod encode;
mod half;
mod quantize;

pub(crate) use dequantize::{RowReader, row_reader};
pub use dequantize::{can_dequantize, dequantize_row};
pub(crate) use half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, read_f16};
pub(crate) use quantize::{RowWriter, absolute_maximum, q8_0_block, round_to_even, row_writer};
pub use quantize::{can_quantize, quantize_row};

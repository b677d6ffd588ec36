//! Products with AVX-512 (F, BW, DQ, VL, VBMI, VNNI). Same sums in the same order as [`super::portable`].
//!
//! One or two columns are multiplied straight from the blocks, eight rows at a time. For more columns sixteen rows are
//! unpacked once into a panel whose vectors hold four consecutive codes of each row, so that a lane is a row and block
//! sums need no horizontal additions.

mod float;
mod gemm256;
mod gemm32;
mod gemv256;
mod gemv32;
mod lanes;
pub(super) mod quantize;
mod unpack256;
mod unpack32;
mod values;

use super::values::ValuesFn;
use super::{Column, RowsFn, Weights};
use crate::cpu::element::{Bf16, F16};
use crate::cpu::quant::block32::{Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::cpu::quant::block256::{Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use loadmaster_graph::DType;
use std::ops::Range;
use unpack32::Unpack32;
use unpack256::Unpack256;

/// The kernel for a weight type.
pub(crate) fn rows_fn(dtype: DType) -> Option<RowsFn> {
    Some(match dtype {
        DType::F32 => float::rows::<f32>,
        DType::F16 => float::rows::<F16>,
        DType::Bf16 => float::rows::<Bf16>,
        DType::Q4_0 => rows32::<Q4_0>,
        DType::Q4_1 => rows32::<Q4_1>,
        DType::Q5_0 => rows32::<Q5_0>,
        DType::Q5_1 => rows32::<Q5_1>,
        DType::Q8_0 => rows32::<Q8_0>,
        DType::Iq4Nl => rows32::<Iq4Nl>,
        DType::Q2K => rows256::<Q2K>,
        DType::Q3K => rows256::<Q3K>,
        DType::Q4K => rows256::<Q4K>,
        DType::Q5K => rows256::<Q5K>,
        DType::Q6K => rows256::<Q6K>,
        DType::Iq4Xs => rows256::<Iq4Xs>,
        _ => return None,
    })
}

/// The kernel that adds up value rows of a plain float type.
pub(crate) fn values_fn(dtype: DType) -> Option<ValuesFn> {
    Some(match dtype {
        DType::F32 => values::add::<f32>,
        DType::F16 => values::add::<F16>,
        DType::Bf16 => values::add::<Bf16>,
        _ => return None,
    })
}

unsafe fn rows32<B: Unpack32>(w: &Weights, rows: Range<usize>, columns: &[Column], panel: *mut u8) {
    // SAFETY: the contract of `RowsFn`; this kernel is chosen only where the instructions exist.
    unsafe {
        match columns {
            [] => {}
            [a] => gemv32::rows::<B, 1>(w, rows, [a]),
            [a, b] => gemv32::rows::<B, 2>(w, rows, [a, b]),
            _ => gemm32::rows::<B>(w, rows, columns, panel),
        }
    }
}

unsafe fn rows256<B: Unpack256>(w: &Weights, rows: Range<usize>, columns: &[Column], panel: *mut u8) {
    // SAFETY: as above.
    unsafe {
        match columns {
            [] => {}
            [a] => gemv256::rows::<B, 1>(w, rows, [a]),
            [a, b] => gemv256::rows::<B, 2>(w, rows, [a, b]),
            // Unpacking pays from five columns on.
            [a, b, rest @ ..] if rest.len() <= 2 => {
                gemv256::rows::<B, 2>(w, rows.clone(), [a, b]);
                rows256::<B>(w, rows, rest, panel);
            }
            _ => gemm256::rows::<B>(w, rows, columns, panel),
        }
    }
}

//! Products with AVX2, FMA and F16C. Same sums in the same order as [`super::portable`].
//!
//! Blocks are multiplied straight from memory, four rows at a time; but for four or more columns with blocks of 256,
//! eight rows are unpacked once into a panel whose vectors hold four consecutive codes of each row.

mod block32;
mod float;
mod gemm256;
mod gemv256;
mod lanes;
pub(super) mod quantize;
mod spread;
mod unpack;
mod values;

use super::values::ValuesFn;
use super::{Column, Order, RowsFn, Weights};
use crate::cpu::element::{Bf16, F16};
use crate::cpu::quant::block32::{Iq4Nl, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0};
use crate::cpu::quant::block256::{Adding, Iq4Xs, Q2K, Q3K, Q4K, Q5K, Q6K};
use loadmaster_graph::DType;
use std::ops::Range;
use unpack::Unpack256;

/// The kernel for a weight type.
pub(crate) fn rows_fn(dtype: DType) -> Option<RowsFn> {
    Some(match dtype {
        DType::F32 => float::rows::<f32>,
        DType::F16 => float::rows::<F16>,
        DType::Bf16 => float::rows::<Bf16>,
        DType::Q4_0 => block32::rows::<Q4_0>,
        DType::Q4_1 => block32::rows::<Q4_1>,
        DType::Q5_0 => block32::rows::<Q5_0>,
        DType::Q5_1 => block32::rows::<Q5_1>,
        DType::Q8_0 => block32::rows::<Q8_0>,
        DType::Iq4Nl => block32::rows::<Iq4Nl>,
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

/// Columns from which on unpacking pays.
const MANY: usize = 4;

unsafe fn rows256<B: Unpack256>(w: &Weights, rows: Range<usize>, columns: &[Column], panel: *mut u8) {
    // SAFETY: the contract of `RowsFn`; this kernel is chosen only where the instructions exist.
    unsafe {
        match (B::ADDING, w.order) {
            (Adding::Eights, Order::One) => columns.iter().for_each(|c| gemv256::eights::<B>(w, rows.clone(), c)),
            (Adding::Quarters, Order::Many) => gemm256::rows::<B>(w, rows, columns, panel),
            _ if columns.len() >= MANY => gemm256::rows::<B>(w, rows, columns, panel),
            _ => columns.iter().for_each(|column| gemv256::rows::<B>(w, rows.clone(), column)),
        }
    }
}

//! Kernels of everything but products and attention.

pub(crate) mod binary;
pub(crate) mod copy;
pub(crate) mod glu;
pub(crate) mod layout;
pub(crate) mod norm;
pub(crate) mod reduce;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod softmax;
pub(crate) mod unary;

use super::ctx::{Cost, Env};
use super::tensor::{RowAt, row_at};
use loadmaster_graph::Dims;

/// Runs `f` for every row of extents `ne`, over threads where that pays.
pub(crate) fn each_row(env: &Env<'_>, ne: &Dims, per_element: Cost, f: impl Fn(usize, RowAt) + Sync) {
    let rows = (ne[1] * ne[2] * ne[3]) as usize;
    let per_row = Cost(ne[0].max(1).saturating_mul(per_element.0) + 20);
    env.team.split(rows, 1, per_row, |slot, range| {
        for row in range {
            f(slot, row_at(ne, row as u64));
        }
    });
}

//! Products of weight rows with activation columns.
//!
//! A product is a list of slices: a weight matrix and the columns it meets. MUL_MAT has a slice for each matrix of its
//! first source (all columns that broadcasting pairs with it, so grouped attention heads share one pass over the
//! keys); MUL_MAT_ID has one for each expert that a batch uses.
//!
//! Activations are first rounded the way the weights' format asks for ([`activation`]). Each result is then a sum in
//! one fixed order that depends on neither threads, batch nor instruction set. It is the order of llama.cpp's kernels for
//! AVX-512, because a difference in the last bit becomes one of half a percent where activations are rounded to 8 bits:
//!
//! - blocks of 32: eight partial sums (sum j takes elements 4 j to 4 j + 3 of each block: an exact integer, times the
//!   product of both scales, fused with the sum), minima apart;
//! - blocks of 256: see [`Adding`](super::quant::block256::Adding);
//! - float weights: sixteen partial sums by fused multiply-add (element i goes to sum i mod 16), or four times sixteen.
//!
//! Where llama.cpp's order depends on the number of columns, ours depends on the order that the node asks for
//! ([`ColumnOrder`]), not on the columns that it happens to have.

#![allow(
    clippy::needless_range_loop,
    reason = "register tiles index several arrays together, and closures may not be inlined into target features"
)]

pub(crate) mod activation;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
pub(crate) mod portable;
pub(crate) mod values;
#[cfg(target_arch = "x86_64")]
mod x86;

use super::ctx::{Cost, Env, Shared};
use super::error::KernelError;
use super::isa::Isa;
use super::tensor::{NodeArgs, TensorMut, TensorRef};
use activation::Form;
use loadmaster_graph::{ColumnOrder, DType};
use std::ops::Range;

/// One column of a product.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    /// The activation's record (see [`activation`]).
    pub(crate) record: *const u8,
    /// Where the results of all weight rows go.
    pub(crate) dst: *mut f32,
}

// SAFETY: plain addresses; columns of a product have disjoint results.
unsafe impl Send for Column {}
// SAFETY: as above.
unsafe impl Sync for Column {}

/// A weight matrix: rows of `k` elements, `stride` bytes apart.
#[derive(Clone, Copy)]
pub(crate) struct Weights {
    pub(crate) data: *const u8,
    pub(crate) stride: usize,
    pub(crate) k: usize,
    pub(crate) order: Order,
}

/// In which order a product's terms are added up, where there are two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// As the reference does for a single column.
    One,
    /// As the reference does for several columns.
    Many,
}

impl Order {
    /// The order for a weight type where the reference would multiply `columns` at once.
    fn of(dtype: DType, columns: u8) -> Self {
        let many = match dtype {
            DType::Q6K => 8,
            DType::Q4K => 4,
            _ => 2,
        };
        if columns >= many { Self::Many } else { Self::One }
    }

    /// The orders of `n` columns. Where the reference takes four at a time, it takes those left over one by one.
    fn ranges(dtype: DType, order: ColumnOrder, n: u64) -> [(Self, Range<u64>); 2] {
        let tail = if dtype == DType::Q4K { n.min(order.tail.into()) } else { 0 };
        [(Self::of(dtype, order.columns), 0..n - tail), (Self::One, n - tail..n)]
    }
}

/// Vectors of partial sums of float products in [`Order::One`].
pub(crate) const SPREAD: usize = 4;

/// Multiplies rows of a matrix with columns: `column.dst[row] = …` for every row of the range.
///
/// # Safety (of calling one)
/// The rows must exist, the records be of the weights' form and length `k`, the results writable, and `panel` hold
/// [`panel_bytes`] bytes aligned to 64 that nobody else uses.
pub(crate) type RowsFn = unsafe fn(w: &Weights, rows: Range<usize>, columns: &[Column], panel: *mut u8);

/// Weight types that products take.
pub(crate) fn weight_type_fits(dtype: DType) -> bool {
    Form::of_weights(dtype).is_some()
}

/// Types of a product.
pub(crate) fn types_fit(weights: DType, x: DType, dst: DType) -> bool {
    weight_type_fits(weights) && super::element::is_float(x) && dst == DType::F32
}

/// The kernel for a weight type.
pub(crate) fn rows_fn(isa: Isa, dtype: DType) -> Option<RowsFn> {
    match isa {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => avx512::rows_fn(dtype),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => avx2::rows_fn(dtype),
        _ => portable::rows_fn(dtype),
    }
}

/// Scratch bytes that a [`RowsFn`] needs: sixteen unpacked rows with their scales.
pub(crate) fn panel_bytes(k: usize) -> usize {
    k.div_ceil(64) * 64 * 24
}

/// Rows that kernels like to get together.
pub(crate) const ROW_GRAIN: usize = 16;

struct Slice {
    weights: *const u8,
    columns: Range<usize>,
    order: Order,
}

// SAFETY: a plain address of weights that are only read.
unsafe impl Send for Slice {}
// SAFETY: as above.
unsafe impl Sync for Slice {}

/// `dst[m, n, j, k] = Σ src0[·, m, j / r2, k / r3] · src1[·, n, j, k]`.
///
/// # Safety
/// The contract of [`super::compute`].
pub(crate) unsafe fn mul_mat(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (w, x, dst) = (node.src(0)?, node.src(1)?, node.dst);
    check_common(node, &w, &x, &dst)?;
    node.require(dst.ne[1..] == x.ne[1..], "the result must have a column for each row of the second source")?;
    let repeats = |n: u64, of: u64| of != 0 && n.is_multiple_of(of);
    node.require(repeats(x.ne[2], w.ne[2]) && repeats(x.ne[3], w.ne[3]), "the first source must repeat")?;
    let Some(product) = Product::new(env.isa, &w) else { return Err(node.unsupported()) };
    // SAFETY: sizes agree.
    let records = unsafe { activation::prepare(env, product.form, &x) };
    let ranges = Order::ranges(w.dtype, ColumnOrder::from_word(node.word(ColumnOrder::WORD)), x.ne[1]);
    let (r2, r3) = (x.ne[2] / w.ne[2], x.ne[3] / w.ne[3]);
    let mut columns = columns_buffer(env, (x.rows()) as usize);
    let mut slices = Vec::with_capacity((w.ne[2] * w.ne[3]) as usize);
    for (i3, i2) in (0..w.ne[3]).flat_map(|i3| (0..w.ne[2]).map(move |i2| (i3, i2))) {
        for (order, range) in ranges.iter().filter(|(_, range)| !range.is_empty()) {
            let start = columns.len;
            for (j3, j2) in (i3 * r3..(i3 + 1) * r3).flat_map(|j3| (i2 * r2..(i2 + 1) * r2).map(move |j2| (j3, j2))) {
                for j1 in range.clone() {
                    // SAFETY: the indices are inside the extents of x and dst.
                    unsafe {
                        let dst = dst.row([j1, j2, j3]).cast();
                        columns.push(Column { record: records.at([j1, j2, j3]), dst });
                    }
                }
            }
            // SAFETY: the matrix exists.
            let weights = unsafe { w.row([0, i2, i3]) };
            slices.push(Slice { weights, columns: start..columns.len, order: *order });
        }
    }
    // SAFETY: columns and slices describe the node.
    unsafe { product.run(env, &slices, &columns) };
    Ok(())
}

/// `dst[m, i, t] = Σ src0[·, m, src2[i, t]] · src1[·, i mod ne11, t]`.
///
/// # Safety
/// The contract of [`super::compute`].
pub(crate) unsafe fn mul_mat_id(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (w, x, ids, dst) = (node.src(0)?, node.src(1)?, node.src(2)?, node.dst);
    check_common(node, &w, &x, &dst)?;
    node.require(w.ne[3] == 1 && x.ne[3] == 1 && dst.ne[3] == 1, "the fourth extent must be 1")?;
    node.require(dst.ne[1] == ids.ne[0] && dst.ne[2] == ids.ne[1], "there must be a result for each index")?;
    let repeats = x.ne[1] != 0 && ids.ne[0] % x.ne[1] == 0;
    node.require(repeats && x.ne[2] == ids.ne[1], "activations must repeat over the indices")?;
    // SAFETY: the index tensor is valid for its layout.
    unsafe { super::ops::binary::check_ids(node, &ids, w.ne[2])? };
    let Some(product) = Product::new(env.isa, &w) else { return Err(node.unsupported()) };
    // SAFETY: sizes agree.
    let records = unsafe { activation::prepare(env, product.form, &x) };
    // SAFETY: the index exists.
    let id = |i: u64, t: u64| unsafe {
        ids.data.add((i * ids.nb[0] + t * ids.nb[1]) as usize).cast::<i32>().read_unaligned() as usize
    };
    let pairs = || (0..ids.ne[1]).flat_map(|t| (0..ids.ne[0]).map(move |i| (i, t)));
    let mut ends = vec![0usize; w.ne[2] as usize + 1];
    for (i, t) in pairs() {
        ends[id(i, t) + 1] += 1;
    }
    for e in 1..ends.len() {
        ends[e] += ends[e - 1];
    }
    let starts = ends.clone();
    let mut columns = columns_buffer(env, ends[ends.len() - 1]);
    for (i, t) in pairs() {
        let place = &mut ends[id(i, t)];
        // SAFETY: the indices are inside the extents of x and dst.
        unsafe {
            columns.set(*place, Column { record: records.at([i % x.ne[1], t, 0]), dst: dst.row([i, t, 0]).cast() })
        };
        *place += 1;
    }
    columns.len = starts[starts.len() - 1];
    let used = (0..w.ne[2] as usize).filter(|&e| starts[e] < starts[e + 1]);
    // SAFETY: the matrix exists.
    let matrix = |e: usize| unsafe { w.row([0, e as u64, 0]) };
    let slice = |e: usize| Slice { weights: matrix(e), columns: starts[e]..starts[e + 1], order: Order::One };
    let slices: Vec<Slice> = used.map(slice).collect();
    // SAFETY: columns and slices describe the node.
    unsafe { product.run(env, &slices, &columns) };
    Ok(())
}

fn check_common(node: &NodeArgs<'_>, w: &TensorRef, x: &TensorRef, dst: &TensorMut) -> Result<(), KernelError> {
    node.require(w.ne[0] == x.ne[0], "rows of both sources must be equally long")?;
    node.require(w.ne[0].is_multiple_of(w.dtype.block_len()), "weight rows must be whole blocks")?;
    node.require(dst.ne[0] == w.ne[1], "the result must have an element for each weight row")?;
    node.require(w.packed_rows() && dst.packed_rows(), "rows of weights and result must be packed")
}

struct Columns {
    data: *mut Column,
    len: usize,
    room: usize,
}

fn columns_buffer(env: &mut Env<'_>, room: usize) -> Columns {
    Columns { data: env.scratch.columns.bytes(room * size_of::<Column>()).cast(), len: 0, room }
}

impl Columns {
    fn push(&mut self, column: Column) {
        // SAFETY: `set` checks the room.
        unsafe { self.set(self.len, column) };
        self.len += 1;
    }
    unsafe fn set(&mut self, i: usize, column: Column) {
        assert!(i < self.room, "column {i} of {}", self.room);
        // SAFETY: i is inside the buffer.
        unsafe { self.data.add(i).write(column) };
    }
}

/// What all slices of a node share.
struct Product {
    rows_fn: RowsFn,
    form: Form,
    rows: usize,
    stride: usize,
    k: usize,
}

impl Product {
    fn new(isa: Isa, w: &TensorRef) -> Option<Self> {
        Some(Self {
            rows_fn: rows_fn(isa, w.dtype)?,
            form: Form::of_weights(w.dtype)?,
            rows: w.ne[1] as usize,
            stride: w.nb[1] as usize,
            k: w.ne[0] as usize,
        })
    }

    /// # Safety
    /// Slices and columns must describe valid weights, records and results.
    unsafe fn run(&self, env: &mut Env<'_>, slices: &[Slice], columns: &Columns) {
        if slices.is_empty() || columns.len == 0 {
            return;
        }
        let panel = panel_bytes(self.k).next_multiple_of(64);
        let panels = Shared(env.scratch.per_slot.bytes(env.team.threads() * panel));
        let all = Shared(columns.data);
        let grains = self.rows.div_ceil(ROW_GRAIN);
        let per_grain = Cost((ROW_GRAIN * self.k * columns.len / slices.len()) as u64 / 4 + 1);
        env.team.split(grains * slices.len(), 1, per_grain, |slot, units| {
            let mut unit = units.start;
            while unit < units.end {
                let slice = &slices[unit / grains];
                let first = unit % grains;
                let count = (grains - first).min(units.end - unit);
                let rows = first * ROW_GRAIN..((first + count) * ROW_GRAIN).min(self.rows);
                let w = Weights { data: slice.weights, stride: self.stride, k: self.k, order: slice.order };
                // SAFETY: the slice's columns are inside the list; each slot has its own panel.
                unsafe {
                    let columns = std::slice::from_raw_parts(all.get().add(slice.columns.start), slice.columns.len());
                    (self.rows_fn)(&w, rows, columns, panels.get().add(slot * panel));
                }
                unit += count;
            }
        });
    }
}

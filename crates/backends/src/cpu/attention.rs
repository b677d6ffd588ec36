//! FLASH_ATTN_EXT: `softmax(K·q · scale + slope · mask) · V` without storing all scores at once.
//!
//! A task takes the queries of a block, for all heads that share a key head, and computes their whole score rows; keys
//! are rounded against as in a product ([`super::matmul`]). Weights are e^(score − max); the result is
//! `Σ weight · value`, added up in key order in single precision, divided by the sum of weights. So a query's result
//! depends on neither the block nor the batch it came in.

use super::ctx::{Cost, Env, Shared};
use super::error::KernelError;
use super::isa::Isa;
use super::matmul::{self, Column, RowsFn, Weights, activation};
use super::ops::softmax::{Slopes, scores_to_weights};
use super::quant::{RowReader, row_reader};
use super::tensor::{NodeArgs, TensorMut, TensorRef};
use loadmaster_graph::DType;

/// Types of attention.
pub(crate) fn types_fit(q: DType, k: DType, v: DType, mask: Option<DType>, dst: DType) -> bool {
    q == DType::F32
        && dst == DType::F32
        && matmul::weight_type_fits(k)
        && row_reader(v).is_some()
        && mask.is_none_or(|m| m == DType::F16)
}

/// Most score columns of a task.
const MAX_COLUMNS: usize = 32;

/// Everything a task needs.
struct Attention {
    isa: Isa,
    q: TensorRef,
    k: TensorRef,
    v: TensorRef,
    mask: Option<TensorRef>,
    sinks: Option<TensorRef>,
    dst: TensorMut,
    records: activation::Records,
    score: RowsFn,
    read_value: RowReader,
    scale: f32,
    softcap: f32,
    slopes: Slopes,
    /// Queries of a task.
    block: u64,
}

/// Words: scale, max_bias, logit softcap. Sources: q `[d, queries, heads, batch]`, k `[d, keys, key heads, batch]`,
/// v `[dv, keys, key heads, batch]`, mask `[keys, queries, …]`, sinks `[heads]`. Result `[dv, heads, queries, batch]`.
///
/// # Safety
/// The contract of [`super::compute`].
pub(crate) unsafe fn flash_attn(env: &mut Env<'_>, node: &NodeArgs<'_>) -> Result<(), KernelError> {
    let (q, k, v, dst) = (node.src(0)?, node.src(1)?, node.src(2)?, node.dst);
    check(node, &q, &k, &v)?;
    let form = activation::Form::of_weights(k.dtype).ok_or_else(|| node.unsupported())?;
    // SAFETY: q is valid for its layout.
    let records = unsafe { activation::prepare(env, form, &q) };
    let softcap = node.float(2);
    let group = q.ne[2] / k.ne[2];
    let attention = Attention {
        isa: env.isa,
        q,
        k,
        v,
        mask: node.optional(3),
        sinks: node.optional(4),
        dst,
        records,
        score: matmul::rows_fn(env.isa, k.dtype).ok_or_else(|| node.unsupported())?,
        read_value: row_reader(v.dtype).ok_or_else(|| node.unsupported())?,
        scale: if softcap == 0.0 { node.float(0) } else { node.float(0) / softcap },
        softcap,
        slopes: Slopes::new(node.float(1), q.ne[2]),
        block: (MAX_COLUMNS as u64 / group).clamp(1, q.ne[1]),
    };
    // SAFETY: the shapes were checked.
    unsafe { attention.run(env, group) };
    Ok(())
}

fn check(node: &NodeArgs<'_>, q: &TensorRef, k: &TensorRef, v: &TensorRef) -> Result<(), KernelError> {
    let dst = &node.dst;
    node.require(q.ne[0] == k.ne[0], "queries and keys must be equally long")?;
    node.require(k.ne[1] == v.ne[1], "there must be as many values as keys")?;
    node.require(dst.ne == [v.ne[0], q.ne[2], q.ne[1], q.ne[3]], "the result must be [dv, heads, queries, batch]")?;
    let repeats = |n: u64, of: u64| of != 0 && n.is_multiple_of(of);
    let shared = |t: &TensorRef| repeats(q.ne[2], t.ne[2]) && repeats(q.ne[3], t.ne[3]);
    node.require(shared(k) && shared(v), "heads and batches of keys and values must repeat over those of queries")?;
    let packed = q.packed_rows() && k.packed_rows() && v.packed_rows() && dst.packed_rows();
    node.require(packed, "rows must be packed")?;
    let whole = k.ne[0].is_multiple_of(k.dtype.block_len()) && v.ne[0].is_multiple_of(v.dtype.block_len());
    node.require(whole, "rows of keys and values must be whole blocks")?;
    if let Some(m) = node.optional(3) {
        let covers = m.packed_rows() && m.ne[0] >= k.ne[1] && m.ne[1] >= q.ne[1] && m.ne[2] > 0 && m.ne[3] > 0;
        node.require(covers, "the mask must cover all keys and queries")?;
    }
    if let Some(s) = node.optional(4) {
        node.require(s.dtype == DType::F32 && s.packed_rows() && s.ne[0] >= q.ne[2], "a sink for each head")?;
    }
    Ok(())
}

/// A task's part of the scratch memory.
struct Space {
    scores: *mut f32,
    values: *mut f32,
    panel: *mut u8,
}

impl Attention {
    /// # Safety
    /// Shapes must have been checked and tensors be valid.
    unsafe fn run(&self, env: &mut Env<'_>, group: u64) {
        let blocks = self.q.ne[1].div_ceil(self.block);
        let keys = self.k.ne[1] as usize;
        let dv = self.v.ne[0] as usize;
        // With few queries the heads of a group become tasks of their own, so that all threads have work.
        let tasks = blocks * self.k.ne[2] * self.q.ne[3];
        let heads = if tasks < 2 * env.team.threads() as u64 && env.team.threads() > 1 { 1 } else { group };
        let parts = group / heads;
        let columns = (self.block * heads) as usize;
        let score_bytes = (columns * keys * 4).next_multiple_of(64);
        let value_bytes = (dv * 4).next_multiple_of(64);
        let panel_bytes = matmul::panel_bytes(self.k.ne[0] as usize).next_multiple_of(64);
        let each = score_bytes + value_bytes + panel_bytes;
        let space = Shared(env.scratch.per_slot.bytes(each * env.team.threads()));
        let work = Cost(columns as u64 * keys as u64 * (self.k.ne[0] + self.v.ne[0]) / 4);
        env.team.split((tasks * parts) as usize, 1, work, |slot, range| {
            for task in range {
                let task = task as u64;
                let (part, task) = (task % parts, task / parts);
                let (block, task) = (task % blocks, task / blocks);
                let (head, batch) = (task % self.k.ne[2], task / self.k.ne[2]);
                let first_head = head * group + part * heads;
                let queries = block * self.block..((block + 1) * self.block).min(self.q.ne[1]);
                // SAFETY: each slot has its own space; heads, queries and batch are inside the extents.
                unsafe {
                    let scores = space.get().add(slot * each);
                    let space = Space {
                        scores: scores.cast(),
                        values: scores.add(score_bytes).cast(),
                        panel: scores.add(score_bytes + value_bytes),
                    };
                    self.task(&space, first_head..first_head + heads, queries, batch);
                }
            }
        });
    }

    /// Queries of a block for heads that share a key head.
    unsafe fn task(&self, space: &Space, heads: std::ops::Range<u64>, queries: std::ops::Range<u64>, batch: u64) {
        let keys = self.k.ne[1] as usize;
        let mut columns = Vec::with_capacity(MAX_COLUMNS);
        let mut places = Vec::with_capacity(MAX_COLUMNS);
        for head in heads.clone() {
            for query in queries.clone() {
                // SAFETY: the record exists; scores have room for every column.
                unsafe {
                    let dst = space.scores.add(columns.len() * keys);
                    columns.push(Column { record: self.records.at([query, head, batch]), dst });
                }
                places.push((head, query));
            }
        }
        let inner = |t: &TensorRef| [0, heads.start / (self.q.ne[2] / t.ne[2]), batch / (self.q.ne[3] / t.ne[3])];
        // SAFETY: indices are inside the extents; spaces have room (see `run`).
        unsafe {
            let weights =
                Weights { data: self.k.row(inner(&self.k)), stride: self.k.nb[1] as usize, k: self.k.ne[0] as usize };
            (self.score)(&weights, 0..keys, &columns, space.panel);
            let mut sums = Vec::with_capacity(columns.len());
            for (column, &(head, query)) in columns.iter().zip(&places) {
                sums.push(self.weigh(column.dst, head, query, batch));
            }
            self.accumulate(space, inner(&self.v), &columns, &places, batch);
            for (&(head, query), &sum) in places.iter().zip(&sums) {
                let out = self.dst.row([head, query, batch]).cast::<f32>();
                let inverse = if sum == 0.0 { 0.0 } else { 1.0 / sum };
                super::ops::unary::scale_row(self.isa, out, out, self.v.ne[0] as usize, inverse, 0.0);
            }
        }
    }

    /// Turns a row of products into weights; returns their sum.
    unsafe fn weigh(&self, scores: *mut f32, head: u64, query: u64, batch: u64) -> f32 {
        let keys = self.k.ne[1] as usize;
        // SAFETY: the row has that many scores; mask indices are reduced; there is a sink for each head.
        unsafe {
            let mask = self.mask.map(|m| m.row([query, head % m.ne[2], batch % m.ne[3]]).cast::<u16>());
            let sink = self.sinks.map(|s| s.data.cast::<f32>().add(head as usize).read_unaligned());
            if self.softcap != 0.0 {
                for i in 0..keys {
                    scores.add(i).write((*scores.add(i) * self.scale).tanh() * self.softcap);
                }
            }
            let scale = if self.softcap == 0.0 { self.scale } else { 1.0 };
            let slope = self.slopes.of(head);
            scores_to_weights(self.isa, scores, keys, scale, mask.unwrap_or(std::ptr::null()), slope, sink)
        }
    }

    /// `dst[column] = Σ weight · value`, keys in order; keys that no column weighs are not read.
    unsafe fn accumulate(&self, space: &Space, inner: [u64; 3], columns: &[Column], places: &[(u64, u64)], batch: u64) {
        let dv = self.v.ne[0] as usize;
        let bytes = self.v.dtype.row_size(self.v.ne[0]).map_or(0, |b| b.get() as usize);
        // SAFETY: the rows and results exist; `values` has room for a row.
        unsafe {
            for &(head, query) in places {
                self.dst.row([head, query, batch]).write_bytes(0, dv * 4);
            }
            for key in 0..self.k.ne[1] {
                if columns.iter().all(|c| *c.dst.add(key as usize) == 0.0) {
                    continue;
                }
                let row = self.v.row([key, inner[1], inner[2]]);
                let values = std::slice::from_raw_parts_mut(space.values, dv);
                (self.read_value)(std::slice::from_raw_parts(row, bytes), values);
                for (column, &(head, query)) in columns.iter().zip(places) {
                    let weight = *column.dst.add(key as usize);
                    let out = self.dst.row([head, query, batch]).cast::<f32>();
                    for (i, value) in values.iter().enumerate() {
                        out.add(i).write_unaligned(weight.mul_add(*value, out.add(i).read_unaligned()));
                    }
                }
            }
        }
    }
}

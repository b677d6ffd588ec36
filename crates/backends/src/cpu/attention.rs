//! FLASH_ATTN_EXT: `softmax(K·q · scale + slope · mask) · V` without storing all scores at once.
//!
//! A task takes the queries of a block, for all heads that share a key head, and computes their whole score rows; keys
//! are rounded against as in a product ([`super::matmul`]). Weights are e^(score − max); the result is
//! `Σ weight · value`, added up in key order in single precision, divided by the sum of weights. So a query's result
//! depends on neither the block nor the batch it came in.

use super::ctx::{Cost, Env, Shared};
use super::error::KernelError;
use super::isa::Isa;
use super::math::LANES;
use super::matmul::values::{Sum, Values, ValuesFn, values_fn};
use super::matmul::{self, Column, Order, RowsFn, Weights, activation};
use super::ops::softmax::{Slopes, scores_to_weights};
use super::ops::unary::scale_row;
use super::quant::{RowReader, row_reader};
use super::tensor::{NodeArgs, TensorMut, TensorRef};
use loadmaster_graph::DType;
use std::ops::Range;

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

/// Value rows in blocks that are read back to floats together.
const READ_BLOCK: usize = 32;

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
    values: ReadValues,
    scale: f32,
    softcap: f32,
    slopes: Slopes,
    /// Queries of a task.
    block: u64,
}

/// How value rows are read.
#[derive(Clone, Copy)]
enum ReadValues {
    /// As they stand.
    Plain(ValuesFn),
    /// Through floats.
    Blocks(RowReader, ValuesFn),
}

impl ReadValues {
    fn of(isa: Isa, dtype: DType) -> Option<Self> {
        if let Some(add) = values_fn(isa, dtype) {
            return Some(Self::Plain(add));
        }
        Some(Self::Blocks(row_reader(dtype)?, values_fn(isa, DType::F32)?))
    }
}

/// Words: scale, max_bias, logit softcap. Sources: q `[d, queries, heads, batch]`, k `[d, keys, key heads, batch]`,
/// v `[dv, keys, value heads, batch]`, mask `[keys, queries, …]`, sinks `[heads]`. Result `[dv, heads, queries, batch]`.
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
    let group = group(&q, &k, &v);
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
        values: ReadValues::of(env.isa, v.dtype).ok_or_else(|| node.unsupported())?,
        scale: if softcap == 0.0 { node.float(0) } else { node.float(0) / softcap },
        softcap,
        slopes: Slopes::new(node.float(1), q.ne[2]),
        block: (MAX_COLUMNS as u64 / group).clamp(1, q.ne[1]),
    };
    // SAFETY: the shapes were checked.
    unsafe { attention.run(env, group) };
    Ok(())
}

/// Heads that share both keys and values.
fn group(q: &TensorRef, k: &TensorRef, v: &TensorRef) -> u64 {
    let (by_key, by_value) = (q.ne[2] / k.ne[2], q.ne[2] / v.ne[2]);
    if by_key.is_multiple_of(by_value) || by_value.is_multiple_of(by_key) { by_key.min(by_value) } else { 1 }
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
    node.require(k.ne[1] <= u64::from(u32::MAX), "there may be 2³² − 1 keys")?;
    if let Some(m) = node.optional(3) {
        let covers = m.packed_rows() && m.ne[0] >= k.ne[1] && m.ne[1] >= q.ne[1] && m.ne[2] > 0 && m.ne[3] > 0;
        node.require(covers, "the mask must cover all keys and queries")?;
    }
    if let Some(s) = node.optional(4) {
        node.require(s.dtype == DType::F32 && s.packed_rows() && s.ne[0] >= q.ne[2], "a sink for each head")?;
    }
    Ok(())
}

/// How a participant's scratch memory is divided.
struct Division {
    scores: usize,
    values: usize,
    keys: usize,
    panel: usize,
}

impl Division {
    fn total(&self) -> usize {
        self.scores + self.values + self.keys + self.panel
    }
}

/// A participant's scratch memory.
struct Space {
    scores: *mut f32,
    values: *mut f32,
    keys: *mut u32,
    panel: *mut u8,
}

impl Space {
    /// # Safety
    /// `data` must hold what `by` says.
    unsafe fn new(data: *mut u8, by: &Division) -> Self {
        // SAFETY: the parts lie inside the memory.
        unsafe {
            Self {
                scores: data.cast(),
                values: data.add(by.scores).cast(),
                keys: data.add(by.scores + by.values).cast(),
                panel: data.add(by.scores + by.values + by.keys),
            }
        }
    }
}

/// Queries of a block for heads that share keys and values.
struct Task {
    heads: Range<u64>,
    queries: Range<u64>,
    batch: u64,
}

/// One query of one head.
#[derive(Clone, Copy)]
struct Place {
    head: u64,
    query: u64,
}

impl Attention {
    /// # Safety
    /// Shapes must have been checked and tensors be valid.
    unsafe fn run(&self, env: &mut Env<'_>, group: u64) {
        let blocks = self.q.ne[1].div_ceil(self.block);
        let groups = self.q.ne[2] / group;
        let threads = env.team.threads() as u64;
        // With few tasks the heads of a group become tasks of their own, so that all threads have work.
        let few = threads > 1 && blocks * groups * self.q.ne[3] < 4 * threads;
        let heads = if few { 1 } else { group };
        let (keys, dv) = (self.k.ne[1] as usize, self.v.ne[0] as usize);
        let columns = (self.block * heads) as usize;
        let by = Division {
            scores: (columns * keys * 4).next_multiple_of(64),
            values: (READ_BLOCK * dv * 4).next_multiple_of(64),
            keys: (keys * 4).next_multiple_of(64),
            panel: matmul::panel_bytes(self.k.ne[0] as usize),
        };
        let space = Shared(env.scratch.per_slot.bytes(by.total() * env.team.threads()));
        let work = Cost((columns * keys) as u64 * (self.k.ne[0] + self.v.ne[0]) / 16 + 100);
        let parts = self.q.ne[2] / heads;
        let tasks = (blocks * parts * self.q.ne[3]) as usize;
        env.team.split(tasks, 1, work, |slot, range| {
            for task in range {
                let task = task as u64;
                let (block, rest) = (task % blocks, task / blocks);
                let (part, batch) = (rest % parts, rest / parts);
                let task = Task {
                    heads: part * heads..(part + 1) * heads,
                    queries: block * self.block..((block + 1) * self.block).min(self.q.ne[1]),
                    batch,
                };
                // SAFETY: each slot has its own space; heads, queries and batch are inside the extents.
                unsafe { self.task(&Space::new(space.get().add(slot * by.total()), &by), &task) };
            }
        });
    }

    /// # Safety
    /// The task must be inside the extents, the space be large enough for it.
    unsafe fn task(&self, space: &Space, task: &Task) {
        let keys = self.k.ne[1] as usize;
        let places: Vec<Place> =
            task.heads.clone().flat_map(|head| task.queries.clone().map(move |query| Place { head, query })).collect();
        // SAFETY: records exist for every place; the space has room for all scores and keys.
        unsafe {
            let column = |(i, p): (usize, &Place)| Column {
                record: self.records.at([p.query, p.head, task.batch]),
                dst: space.scores.add(i * keys),
            };
            let columns: Vec<Column> = places.iter().enumerate().map(column).collect();
            let seen = self.seen_keys(space, task);
            let end = seen.last().map_or(0, |&k| k as usize + 1);
            let start = seen.first().map_or(0, |&k| k as usize) / LANES * LANES;
            let k = Weights {
                data: self.k.row(self.inner(&self.k, task)),
                stride: self.k.nb[1] as usize,
                k: self.k.ne[0] as usize,
                order: Order::Many,
            };
            (self.score)(&k, start..end, &columns, space.panel);
            let mut sums = Vec::with_capacity(places.len());
            let mut totals = Vec::with_capacity(places.len());
            for (column, place) in columns.iter().zip(&places) {
                totals.push(self.weigh(column.dst, start..end, place, task.batch));
                let to = self.dst.row([place.head, place.query, task.batch]).cast::<f32>();
                to.write_bytes(0, self.v.ne[0] as usize);
                sums.push(Sum { weights: column.dst, to });
            }
            self.add_values(space, task, seen, &sums);
            for (sum, total) in sums.iter().zip(totals) {
                let inverse = if total == 0.0 { 0.0 } else { 1.0 / total };
                scale_row(self.isa, sum.to, sum.to, self.v.ne[0] as usize, inverse, 0.0);
            }
        }
    }

    /// Where a task's keys or values begin.
    fn inner(&self, t: &TensorRef, task: &Task) -> [u64; 3] {
        [0, task.heads.start / (self.q.ne[2] / t.ne[2]), task.batch / (self.q.ne[3] / t.ne[3])]
    }

    unsafe fn mask_row(&self, m: &TensorRef, place: &Place, batch: u64) -> *const u16 {
        // SAFETY: the mask covers all queries; heads and batches are reduced.
        unsafe { m.row([place.query, place.head % m.ne[2], batch % m.ne[3]]).cast() }
    }

    /// The keys that some query of the task may see, in order. Others are neither scored nor read.
    unsafe fn seen_keys<'s>(&self, space: &'s Space, task: &Task) -> &'s [u32] {
        let keys = self.k.ne[1] as usize;
        // SAFETY: the space has room for every key; mask rows have an element for each.
        unsafe {
            let seen = std::slice::from_raw_parts_mut(space.keys, keys);
            let Some(m) = self.mask else {
                seen.iter_mut().zip(0..).for_each(|(slot, key)| *slot = key);
                return seen;
            };
            let heads = if m.ne[2] == 1 { task.heads.start..task.heads.start + 1 } else { task.heads.clone() };
            seen.fill(0);
            for head in heads {
                for query in task.queries.clone() {
                    let row = self.mask_row(&m, &Place { head, query }, task.batch);
                    for (i, slot) in seen.iter_mut().enumerate() {
                        *slot |= u32::from(row.add(i).read_unaligned() != MINUS_INFINITY);
                    }
                }
            }
            let mut count = 0;
            for key in 0..keys {
                let visible = seen[key] as usize;
                seen[count] = key as u32;
                count += visible;
            }
            &seen[..count]
        }
    }

    /// Turns a row of products into weights; returns their sum.
    unsafe fn weigh(&self, scores: *mut f32, keys: Range<usize>, place: &Place, batch: u64) -> f32 {
        // SAFETY: the row has that many scores; the mask covers them; there is a sink for each head.
        unsafe {
            let mask = self.mask.map_or(std::ptr::null(), |m| self.mask_row(&m, place, batch).add(keys.start));
            let sink = self.sinks.map(|s| s.data.cast::<f32>().add(place.head as usize).read_unaligned());
            let row = scores.add(keys.start);
            if self.softcap != 0.0 {
                for i in 0..keys.len() {
                    row.add(i).write((*row.add(i) * self.scale).tanh() * self.softcap);
                }
            }
            let scale = if self.softcap == 0.0 { self.scale } else { 1.0 };
            let slope = self.slopes.of(place.head);
            scores_to_weights(self.isa, row, keys.len(), scale, mask, slope, sink)
        }
    }

    /// Adds the weighted values of the keys that are seen.
    unsafe fn add_values(&self, space: &Space, task: &Task, keys: &[u32], sums: &[Sum]) {
        // SAFETY: rows exist for all keys; the space has room for a block of rows as floats.
        unsafe {
            let data = self.v.row(self.inner(&self.v, task));
            let (stride, len) = (self.v.nb[1] as usize, self.v.ne[0] as usize);
            let (read, add) = match self.values {
                ReadValues::Plain(add) => return add(&Values { data, stride, len }, keys, sums),
                ReadValues::Blocks(read, add) => (read, add),
            };
            let bytes = self.v.dtype.row_size(self.v.ne[0]).map_or(0, |b| b.get() as usize);
            let block = Values { data: space.values.cast(), stride: len * 4, len };
            let numbers: [u32; READ_BLOCK] = std::array::from_fn(|i| i as u32);
            let mut weights = vec![0.0f32; READ_BLOCK * sums.len()];
            for keys in keys.chunks(READ_BLOCK) {
                for (i, &key) in keys.iter().enumerate() {
                    let row = std::slice::from_raw_parts(data.add(key as usize * stride), bytes);
                    read(row, std::slice::from_raw_parts_mut(space.values.add(i * len), len));
                    for (s, sum) in sums.iter().enumerate() {
                        weights[s * READ_BLOCK + i] = *sum.weights.add(key as usize);
                    }
                }
                let place = |(s, sum): (usize, &Sum)| Sum { weights: weights[s * READ_BLOCK..].as_ptr(), ..*sum };
                let gathered: Vec<Sum> = sums.iter().enumerate().map(place).collect();
                add(&block, &numbers[..keys.len()], &gathered);
            }
        }
    }
}

/// −∞ in half precision.
const MINUS_INFINITY: u16 = 0xfc00;

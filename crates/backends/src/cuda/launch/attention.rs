//! FLASH_ATTN_EXT.

use super::build::{Build, DST, scratch};
use super::node::Node;
use super::products::MOST_BLOCKS;
use super::types::{Launches, Layout, Target};
use crate::cpu::Slopes;
use crate::error::Unsupported;
use loadmaster_graph::DType;

/// Keys of a step: `LM_KEYS` of attention.cu, and the threads of a block.
const KEYS: u64 = 128;
/// Most parts that the keys of a query are split into.
const MOST_SPLITS: u64 = 32;
/// Fewest keys that are worth a part of their own.
const SPLIT_KEYS: u64 = 2 * KEYS;

/// The kernel for this many columns, and how many it takes.
fn kernel(columns: u64) -> (&'static str, u64) {
    match columns {
        1 => ("lm_flash_attn_1", 1),
        2..=4 => ("lm_flash_attn_4", 4),
        _ => ("lm_flash_attn_8", 8),
    }
}

/// The operands, checked.
struct Attention {
    q: Layout,
    k: Layout,
    v: Layout,
    /// Heads that share both keys and values.
    group: u64,
}

impl Attention {
    fn new(node: &Node<'_>) -> Result<Self, Unsupported> {
        let (q, k, v, dst) = (node.src(0)?, node.src(1)?, node.src(2)?, node.dst());
        node.require(q.ne[0] == k.ne[0], "queries and keys must be equally long")?;
        node.require(k.ne[1] == v.ne[1], "there must be as many values as keys")?;
        node.require(dst.ne == [v.ne[0], q.ne[2], q.ne[1], q.ne[3]], "the result must be [dv, heads, queries, batch]")?;
        let repeats = |n: u64, of: u64| of != 0 && n.is_multiple_of(of);
        let shared = |t: &Layout| repeats(q.ne[2], t.ne[2]) && repeats(q.ne[3], t.ne[3]);
        node.require(shared(&k) && shared(&v), "heads and batches of keys and values must repeat over queries'")?;
        let packed = q.packed_rows() && k.packed_rows() && v.packed_rows() && dst.packed_rows();
        node.require(packed, "rows must be packed")?;
        if let Some(m) = node.optional(3) {
            let covers = m.packed_rows() && m.ne[0] >= k.ne[1] && m.ne[1] >= q.ne[1] && m.ne[2] > 0 && m.ne[3] > 0;
            node.require(covers, "the mask must cover all keys and queries")?;
        }
        if let Some(s) = node.optional(4) {
            node.require(s.dtype == DType::F32 && s.packed_rows() && s.ne[0] >= q.ne[2], "a sink for each head")?;
        }
        let (by_key, by_value) = (q.ne[2] / k.ne[2], q.ne[2] / v.ne[2]);
        let nested = by_key.is_multiple_of(by_value) || by_value.is_multiple_of(by_key);
        Ok(Self { q, k, v, group: if nested { by_key.min(by_value) } else { 1 } })
    }

    /// Parts of the keys at most, so that all multiprocessors have work. No fewer keys have more.
    fn most_splits(&self, blocks: u64, target: &Target) -> u64 {
        let wanted = (2 * u64::from(target.multiprocessors)).div_ceil(blocks.max(1));
        wanted.min(self.k.ne[1].div_ceil(SPLIT_KEYS)).clamp(1, MOST_SPLITS)
    }

    /// Blocks for so many queries of each of so many sequences, keys not split.
    fn blocks(&self, queries: u64, batch: u64) -> u64 {
        let pairs = queries.saturating_mul(self.group);
        pairs.div_ceil(kernel(pairs).1).saturating_mul(self.q.ne[2] / self.group).saturating_mul(batch)
    }

    /// Into how many parts the keys go, and how many keys a part has.
    fn splits(&self, blocks: u64, target: &Target) -> (u64, u64) {
        let keys = self.k.ne[1];
        let splits = self.most_splits(blocks, target);
        let part = keys.div_ceil(splits).next_multiple_of(KEYS).max(KEYS);
        (keys.div_ceil(part).max(1), part)
    }

    /// Floats of shared memory: `LmSpace` of attention.cu.
    fn shared_floats(&self, columns: u64) -> u64 {
        columns * (self.q.ne[0].next_multiple_of(4) + KEYS + self.v.ne[0] + 3)
    }
}

/// Scratch memory that no node like this one exceeds which has no more queries in all, no more sequences and no more
/// keys: fewer queries leave more multiprocessors to parts of the keys. A step for each number of queries of each number
/// of sequences whose keys are split.
pub(super) fn most_scratch(node: &Node<'_>, target: &Target) -> Result<u64, Unsupported> {
    let it = Attention::new(node)?;
    let queries = it.q.ne[1].saturating_mul(it.q.ne[3]);
    let row = (node.dst().ne[0] + 2).saturating_mul(it.q.ne[2]).saturating_mul(4);
    let mut most = 0;
    for batch in 1..=it.q.ne[3] {
        let split = (1..=queries / batch).map(|n| (n, it.most_splits(it.blocks(n, batch), target)));
        let rows = split.take_while(|&(_, splits)| splits > 1).map(|(n, splits)| n * batch * splits).max();
        most = most.max(rows.unwrap_or(0).saturating_mul(row));
    }
    Ok(most)
}

/// FLASH_ATTN_EXT. Words: scale, largest bias, soft cap.
pub(super) fn flash_attn(node: &Node<'_>, target: &Target) -> Result<Launches, Unsupported> {
    let it = Attention::new(node)?;
    let (heads, batch) = (it.q.ne[2], it.q.ne[3]);
    let pairs = it.q.ne[1] * it.group;
    let (kernel, columns) = kernel(pairs);
    let tiles = pairs.div_ceil(columns);
    let groups = heads / it.group;
    let (splits, part) = it.splits(tiles * groups * batch, target);
    let fits = tiles <= i32::MAX as u64 && groups <= MOST_BLOCKS && splits * batch <= MOST_BLOCKS;
    node.require(fits, "there are more queries, heads or batches than a grid has blocks")?;
    let shared = it.shared_floats(columns) * 4;
    node.require(shared <= 48 << 10, "a query and a value row must fit shared memory")?;
    let dst = node.dst();
    let (out, place) = if splits == 1 { (dst, DST) } else { (partial(&dst, splits), scratch(0)) };
    let (softcap, bias) = (node.float(2), node.float(1));
    let scale = if softcap == 0.0 { node.float(0) } else { node.float(0) / softcap };
    let slopes = Slopes::new(bias, heads);
    let build = Build::new("attention", kernel, &out).dst_at(place);
    let build = build.source(0, &it.q).source(1, &it.k).source(2, &it.v);
    let build = build.optional(3, node.optional(3)).optional(4, node.optional(4));
    let build =
        build.floats([scale, bias, slopes.m0, slopes.m1, softcap]).longs([slopes.whole.into(), it.group, splits, part]);
    let grid = [tiles as u32, groups as u32, (splits * batch) as u32];
    let attend = build.grid(grid, KEYS as u32).shared(shared as u32);
    if splits == 1 {
        return Ok(attend.into());
    }
    let join = Build::new("attention", "lm_flash_attn_join", &dst).source_at(0, &out, place);
    let join = join.optional(4, node.optional(4)).rows(dst.rows(), dst.ne[0]);
    let bytes = out.elements().saturating_mul(4);
    Ok(Launches { list: [attend.done(), join.done()].into_iter().collect(), scratch_bytes: bytes })
}

/// Partial results: per batch, query and head one row of dv + 2 floats for each part.
fn partial(dst: &Layout, splits: u64) -> Layout {
    let ne = [dst.ne[0] + 2, splits, dst.ne[1] * dst.ne[2], dst.ne[3]];
    let row = ne[0] * 4;
    Layout { dtype: DType::F32, ne, nb: [4, row, row * ne[1], row * ne[1] * ne[2]] }
}

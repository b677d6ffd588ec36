//! A problem made ready: checked, empty buffers dropped, steps compressed to those at which something is born.

use super::error::PackError;
use super::problem::{PackBuffer, PackBufferId, PackProblem};
use loadmaster_graph::{Bytes, Id, Step};
use std::collections::BTreeMap;

/// Largest number of buffers.
const MAX_BUFFERS: usize = 1 << 30;

/// A buffer that takes bytes. Two of them are alive together exactly if `first..last` ranges meet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Live {
    pub id: PackBufferId,
    pub size: u64,
    /// A power of two.
    pub align: u64,
    /// First compressed step.
    pub first: u32,
    /// Past the last compressed step.
    pub last: u32,
    /// Steps before compression.
    pub lifetime: u32,
    pub fixed: Option<u64>,
}

impl Live {
    #[cfg(test)]
    pub fn meets(&self, other: &Self) -> bool {
        self.first < other.last && other.first < self.last
    }

    /// The lowest aligned offset from `floor` on, and the end there; `None` on overflow.
    #[inline]
    pub fn end_at(&self, floor: u64) -> Option<(u64, u64)> {
        let mask = self.align - 1;
        let offset = floor.checked_add(mask)? & !mask;
        Some((offset, offset.checked_add(self.size)?))
    }
}

/// The buffers that take bytes, in the order given.
pub(super) struct Prepared {
    pub live: Vec<Live>,
    /// The step behind each compressed step.
    pub steps: Vec<Step>,
}

impl Prepared {
    /// Checks and compresses. O(n log n), linear where steps are dense.
    pub fn new(problem: &PackProblem) -> Result<Self, PackError> {
        if problem.buffers.len() > MAX_BUFFERS {
            return Err(PackError::TooMany { count: problem.buffers.len(), limit: MAX_BUFFERS });
        }
        let mut live = Vec::with_capacity(problem.buffers.len());
        for (index, buffer) in problem.buffers.iter().enumerate() {
            let id = PackBufferId::from_index(index);
            validate(id, buffer, problem.max_chunk)?;
            if buffer.takes_bytes() {
                live.push(Live {
                    id,
                    size: buffer.size.get(),
                    align: buffer.align.get(),
                    first: buffer.lifetime.start.get(),
                    last: buffer.lifetime.end.get(),
                    lifetime: buffer.lifetime.end.get() - buffer.lifetime.start.get(),
                    fixed: buffer.offset.map(Bytes::get),
                });
            }
        }
        let steps = compress(&mut live);
        fixed_apart(&live, &steps)?;
        Ok(Self { live, steps })
    }
}

fn validate(id: PackBufferId, buffer: &PackBuffer, max_chunk: Option<Bytes>) -> Result<(), PackError> {
    let (start, end) = (buffer.lifetime.start, buffer.lifetime.end);
    if start > end {
        return Err(PackError::ReversedLifetime { buffer: id, start, end });
    }
    let Some(offset) = buffer.offset else { return Ok(()) };
    if offset.get() % buffer.align.get() != 0 {
        return Err(PackError::FixedMisaligned { buffer: id, offset, align: buffer.align });
    }
    let Some(end) = offset.checked_add(buffer.size) else {
        return Err(PackError::FixedOverflow { buffer: id, size: buffer.size });
    };
    match max_chunk {
        Some(limit) if buffer.takes_bytes() && end > limit.max(buffer.size) => {
            Err(PackError::FixedPastChunk { buffer: id, end, limit })
        }
        _ => Ok(()),
    }
}

/// Replaces steps by the rank among the steps at which something is born: the alive sets at births contain all others.
fn compress(live: &mut [Live]) -> Vec<Step> {
    let highest = live.iter().map(|b| b.last).max().unwrap_or(0) as usize;
    if highest <= 16 * live.len() + 1024 { compress_dense(live, highest) } else { compress_sparse(live) }
}

fn compress_dense(live: &mut [Live], highest: usize) -> Vec<Step> {
    let mut rank = vec![0u32; highest + 1];
    for b in live.iter() {
        rank[b.first as usize] = 1;
    }
    let mut steps = Vec::new();
    let mut born = 0;
    for (step, r) in rank.iter_mut().enumerate() {
        let is_birth = *r == 1;
        // The number of birth steps before this one.
        *r = born;
        if is_birth {
            steps.push(Step(step as u32));
            born += 1;
        }
    }
    for b in live.iter_mut() {
        b.first = rank[b.first as usize];
        b.last = rank[b.last as usize];
    }
    steps
}

fn compress_sparse(live: &mut [Live]) -> Vec<Step> {
    let mut births: Vec<u32> = live.iter().map(|b| b.first).collect();
    births.sort_unstable();
    births.dedup();
    let rank = |step: u32| births.partition_point(|&s| s < step) as u32;
    for b in live.iter_mut() {
        b.first = rank(b.first);
        b.last = rank(b.last);
    }
    births.into_iter().map(Step).collect()
}

/// No two fixed buffers share bytes while both are alive. O(f log f) for f of them.
fn fixed_apart(live: &[Live], steps: &[Step]) -> Result<(), PackError> {
    let fixed: Vec<(u64, &Live)> = live.iter().filter_map(|b| b.fixed.map(|f| (f, b))).collect();
    // What dies at a step leaves before what is born there comes.
    let mut events: Vec<(u32, bool, usize)> = Vec::with_capacity(fixed.len() * 2);
    for (k, (_, b)) in fixed.iter().enumerate() {
        events.push((b.first, true, k));
        events.push((b.last, false, k));
    }
    events.sort_unstable();
    let mut alive: BTreeMap<u64, &Live> = BTreeMap::new();
    for (step, is_birth, k) in events {
        let (offset, b) = fixed[k];
        if !is_birth {
            alive.remove(&offset);
            continue;
        }
        // What is alive is apart, so only the highest that begins below the end can reach in.
        if let Some((&other, first)) = alive.range(..offset + b.size).next_back()
            && other + first.size > offset
        {
            let step = steps[step as usize];
            return Err(PackError::FixedConflict { first: first.id, second: b.id, step });
        }
        alive.insert(offset, b);
    }
    Ok(())
}

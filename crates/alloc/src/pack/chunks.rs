//! Greedy placement under a chunk limit: no buffer lies in two chunks, the sum of the chunks' ends is wanted low.

use super::error::PackError;
use super::greedy::{Neighbours, choose_lowest};
use super::prepared::Live;

/// Which of the chunks that can hold a buffer takes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ChunkRule {
    /// The first.
    First,
    /// The one whose end grows least, the first on a tie; a new chunk counts as an empty one.
    LeastGrowth,
    /// As [`Self::LeastGrowth`], but a new chunk only if no other can hold it.
    LeastGrowthBeforeNew,
}

/// Chunk and offset by position in `live`.
#[derive(Clone, Debug)]
pub(super) struct ChunkPlaces {
    pub places: Vec<(u32, u64)>,
    /// Highest end of each chunk.
    pub ends: Vec<u64>,
}

impl ChunkPlaces {
    /// The sum of the ends.
    pub fn peak(&self) -> Option<u64> {
        self.ends.iter().try_fold(0u64, |sum, &e| sum.checked_add(e))
    }
}

struct Chunk {
    end: u64,
    length: u64,
}

/// Places in the given order; fixed buffers are in the first chunk from the start. A chunk is `limit` long, or as long as
/// the buffer it was opened for. O(pairs log n + buffers × chunks).
pub(super) fn place_in_chunks(
    live: &[Live],
    neighbours: &Neighbours,
    order: &[u32],
    limit: u64,
    rule: ChunkRule,
) -> Result<ChunkPlaces, PackError> {
    let mut placed: Vec<Option<(u32, u64)>> = live.iter().map(|b| b.fixed.map(|f| (0, f))).collect();
    let mut chunks: Vec<Chunk> = Vec::new();
    for b in live {
        if let Some(fixed) = b.fixed {
            if chunks.is_empty() {
                chunks.push(Chunk { end: 0, length: limit });
            }
            chunks[0].end = chunks[0].end.max(fixed + b.size);
            chunks[0].length = chunks[0].length.max(fixed + b.size);
        }
    }
    let mut taken: Vec<(u32, u64, u64)> = Vec::new();
    for &i in order {
        let b = &live[i as usize];
        if b.fixed.is_some() {
            continue;
        }
        taken.clear();
        for &n in neighbours.of_buffer(i) {
            if let Some((chunk, offset)) = placed[n as usize] {
                taken.push((chunk, offset, offset + live[n as usize].size));
            }
        }
        taken.sort_unstable();
        let (chunk, offset) = match choose_chunk(b, &taken, &chunks, limit, rule) {
            Some(place) => place,
            None => {
                chunks.push(Chunk { end: 0, length: limit.max(b.size) });
                (chunks.len() as u32 - 1, 0)
            }
        };
        let end = offset.checked_add(b.size).ok_or(PackError::OffsetOverflow { buffer: b.id })?;
        chunks[chunk as usize].end = chunks[chunk as usize].end.max(end);
        placed[i as usize] = Some((chunk, offset));
    }
    let places = placed.into_iter().map(|p| p.unwrap_or((0, 0))).collect();
    Ok(ChunkPlaces { places, ends: chunks.iter().map(|c| c.end).collect() })
}

/// The chunk that takes `b`, and where; `None`: a new one.
fn choose_chunk(
    b: &Live,
    taken: &[(u32, u64, u64)],
    chunks: &[Chunk],
    limit: u64,
    rule: ChunkRule,
) -> Option<(u32, u64)> {
    let mut best: Option<(u64, u32, u64)> = None;
    let mut rest = taken;
    for (index, chunk) in (0u32..).zip(chunks) {
        let count = rest.partition_point(|t| t.0 <= index);
        let (here, later) = rest.split_at(count);
        rest = later;
        let Some(offset) = choose_lowest(b, here.iter().map(|&(_, start, end)| (start, end))) else { continue };
        let end = offset + b.size;
        if end > chunk.length {
            continue;
        }
        if rule == ChunkRule::First {
            return Some((index, offset));
        }
        let growth = end.saturating_sub(chunk.end);
        if best.is_none_or(|(least, ..)| growth < least) {
            best = Some((growth, index, offset));
        }
    }
    let (growth, index, offset) = best?;
    // A new chunk grows by the whole buffer; growing an old one by more leaves a gap below.
    if rule == ChunkRule::LeastGrowth && growth > b.size && b.size <= limit {
        return None;
    }
    Some((index, offset))
}

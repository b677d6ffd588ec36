//! Greedy placement: an order, and for each buffer a chunk and a free place in it.

use super::error::PackError;
use super::occupancy::Occupancy;
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

impl ChunkRule {
    /// Those worth trying.
    pub fn of(limit: Option<u64>) -> &'static [Self] {
        match limit {
            None => &[Self::First],
            Some(_) => &[Self::LeastGrowth, Self::LeastGrowthBeforeNew, Self::First],
        }
    }
}

/// Chunk and offset by position in the list of buffers.
#[derive(Clone, Debug)]
pub(super) struct Places {
    pub places: Vec<(u32, u64)>,
    /// Highest end of each chunk.
    pub ends: Vec<u64>,
}

impl Places {
    /// The sum of the ends.
    pub fn peak(&self) -> Option<u64> {
        self.ends.iter().try_fold(0u64, |sum, &e| sum.checked_add(e))
    }
}

struct Chunk {
    end: u64,
    length: u64,
}

/// Places all buffers in the given order; fixed ones are in the first chunk from the start. A chunk is `limit` long
/// (`None`: there is only one, without limit), or as long as the buffer it was opened for.
pub(super) fn place_in_order(
    live: &[Live],
    mut occupancy: impl Occupancy,
    order: &[u32],
    limit: Option<u64>,
    rule: ChunkRule,
) -> Result<Places, PackError> {
    let mut places = vec![(0, 0); live.len()];
    let length = limit.unwrap_or(u64::MAX);
    let mut chunks: Vec<Chunk> = Vec::new();
    let mut put = |occupancy: &mut _, chunks: &mut Vec<Chunk>, position: u32, chunk: u32, offset: u64| {
        let b = &live[position as usize];
        let end = offset.checked_add(b.size).ok_or(PackError::OffsetOverflow { buffer: b.id })?;
        if chunks.len() <= chunk as usize {
            chunks.push(Chunk { end: 0, length });
        }
        let chunk_state = &mut chunks[chunk as usize];
        chunk_state.end = chunk_state.end.max(end);
        chunk_state.length = chunk_state.length.max(b.size);
        Occupancy::take(occupancy, position, b, chunk, offset);
        places[position as usize] = (chunk, offset);
        Ok(())
    };
    for (position, b) in (0..).zip(live) {
        if let Some(fixed) = b.fixed {
            put(&mut occupancy, &mut chunks, position, 0, fixed)?;
        }
    }
    for &position in order.iter().filter(|&&p| live[p as usize].fixed.is_none()) {
        let b = &live[position as usize];
        occupancy.look_at(position);
        let (chunk, offset) = choose_chunk(b, &occupancy, &chunks, length, rule).unwrap_or((chunks.len() as u32, 0));
        if chunk > 0 && limit.is_none() {
            return Err(PackError::OffsetOverflow { buffer: b.id });
        }
        put(&mut occupancy, &mut chunks, position, chunk, offset)?;
    }
    Ok(Places { places, ends: chunks.iter().map(|c| c.end).collect() })
}

/// The chunk that takes `b`, and where; `None`: a new one.
fn choose_chunk(
    b: &Live,
    occupancy: &impl Occupancy,
    chunks: &[Chunk],
    limit: u64,
    rule: ChunkRule,
) -> Option<(u32, u64)> {
    let mut best: Option<(u64, u32, u64)> = None;
    for (index, chunk) in (0u32..).zip(chunks) {
        let Some(offset) = occupancy.offset_in(index, b) else { continue };
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

/// Of equally large buffers, which comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tie {
    /// The earlier born, then the one given earlier.
    EarlierBirth,
    /// The later born, then the one given earlier.
    LaterBirth,
}

/// Positions from the largest to the smallest buffer.
pub(super) fn largest_first(live: &[Live], tie: Tie) -> Vec<u32> {
    let mut order: Vec<u32> = (0..live.len() as u32).collect();
    match tie {
        Tie::EarlierBirth => order.sort_unstable_by_key(|&i| {
            let b = &live[i as usize];
            (u64::MAX - b.size, b.first, i)
        }),
        Tie::LaterBirth => order.sort_unstable_by_key(|&i| {
            let b = &live[i as usize];
            (u64::MAX - b.size, u32::MAX - b.first, i)
        }),
    }
    order
}

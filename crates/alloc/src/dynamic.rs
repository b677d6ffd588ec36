//! The dynamic allocator: free blocks in chunks (rule 5). It hands out addresses, never memory.

use crate::pack::ChunkId;
use loadmaster_graph::{Align, Bytes};

/// Chunks of a [`DynAllocator`]; the last one is unbounded. The number is the reference's, so that plans agree.
pub const MAX_CHUNKS: usize = 16;

/// Largest size of anything: reuse factors are signed 64-bit numbers.
const MAX_SIZE: u64 = i64::MAX as u64;

/// Where a block is: `offset` counts from the start of the chunk.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Address {
    /// The chunk.
    pub chunk: ChunkId,
    /// Bytes from the chunk's first.
    pub offset: Bytes,
}

/// Why a [`DynAllocator`] refused. It is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DynError {
    /// The size, rounded up to the alignment, does not fit 63 bits.
    #[error("a block of {size} overflows")]
    Overflow {
        /// Bytes asked for.
        size: Bytes,
    },
    /// All chunks are in use, and none has the room.
    #[error("no chunk has {needed} left (largest free block: {largest}), and no more than {MAX_CHUNKS} are allowed")]
    OutOfChunks {
        /// Bytes asked for, rounded up to the alignment.
        needed: Bytes,
        /// The largest free block.
        largest: Bytes,
    },
    /// What was given back was never handed out, or was given back already.
    #[error("{} bytes at {} of {} are not allocated, so they cannot be freed", size.get(), address.offset.get(), address.chunk)]
    NotAllocated {
        /// The address.
        address: Address,
        /// Bytes, rounded up to the alignment.
        size: Bytes,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    offset: u64,
    size: u64,
}

impl Block {
    const fn end(self) -> u64 {
        self.offset + self.size
    }

    /// Whether they share a byte; blocks of size zero have none.
    const fn overlaps(&self, other: &Self) -> bool {
        self.size != 0 && other.size != 0 && self.offset < other.end() && other.offset < self.end()
    }
}

#[derive(Clone, Debug)]
struct Chunk {
    /// Free blocks by offset; the last one is the open end.
    free: Vec<Block>,
    /// The highest end ever handed out.
    used: u64,
}

/// Free blocks in chunks, one per buffer type. Any number of free blocks; O(free blocks) per call.
#[derive(Clone, Debug)]
pub struct DynAllocator {
    align: Align,
    chunk_len: u64,
    chunks: Vec<Chunk>,
}

/// A free block: index of the chunk, index in its list.
#[derive(Clone, Copy)]
struct Choice {
    chunk: usize,
    block: usize,
}

impl DynAllocator {
    /// An allocator without chunks. `max_size`: length of a chunk that no single request exceeds.
    #[must_use]
    pub fn new(align: Align, max_size: Option<Bytes>) -> Self {
        let chunk_len = max_size.map_or(MAX_SIZE, |m| m.get().min(MAX_SIZE));
        Self { align, chunk_len, chunks: Vec::new() }
    }

    /// Hands out `size` bytes, rounded up to the alignment.
    ///
    /// Errors: [`DynError::Overflow`], [`DynError::OutOfChunks`].
    pub fn alloc(&mut self, size: Bytes) -> Result<Address, DynError> {
        let padded = self.padded(size)?;
        let choice = match self.best_hole(padded).or_else(|| self.best_open_end(padded)) {
            Some(choice) => choice,
            None => self.open_chunk(padded)?,
        };
        Ok(self.cut(choice, padded))
    }

    /// Takes back `size` bytes, rounded up to the alignment. A part of what was handed out may come back alone.
    ///
    /// Errors: [`DynError::Overflow`], [`DynError::NotAllocated`].
    pub fn free(&mut self, address: Address, size: Bytes) -> Result<(), DynError> {
        let padded = self.padded(size)?;
        let refused = DynError::NotAllocated { address, size: Bytes(padded) };
        let chunk = self.chunks.get_mut(address.chunk.index()).ok_or(refused)?;
        let freed = Block { offset: address.offset.get(), size: padded };
        if freed.offset > chunk.used || padded > chunk.used - freed.offset {
            return Err(refused);
        }
        if chunk.free.iter().any(|b| b.overlaps(&freed)) {
            return Err(refused);
        }
        chunk.give_back(freed);
        Ok(())
    }

    /// The size of every chunk: the highest end ever handed out.
    pub fn chunk_sizes(&self) -> impl ExactSizeIterator<Item = Bytes> {
        self.chunks.iter().map(|c| Bytes(c.used))
    }

    /// `size` rounded up to the alignment.
    fn padded(&self, size: Bytes) -> Result<u64, DynError> {
        let padded = size.checked_align_up(self.align).filter(|p| p.get() <= MAX_SIZE);
        padded.map(Bytes::get).ok_or(DynError::Overflow { size })
    }

    /// Rule 5 (i): the smallest block that fits and is no open end.
    fn best_hole(&self, size: u64) -> Option<Choice> {
        let mut best = None;
        for (chunk, c) in self.chunks.iter().enumerate() {
            let holes = c.free.split_last().map_or(&[][..], |(_, holes)| holes);
            let mut smallest = u64::MAX;
            for (block, hole) in holes.iter().enumerate() {
                if hole.size >= size && hole.size <= smallest {
                    smallest = hole.size;
                    best = Some(Choice { chunk, block });
                }
            }
        }
        best
    }

    /// Rule 5 (ii): the open end that wastes least, or else grows its chunk least.
    fn best_open_end(&self, size: u64) -> Option<Choice> {
        let mut best = None;
        let mut best_reuse = i64::MIN;
        for (chunk, c) in self.chunks.iter().enumerate() {
            let Some(open) = c.free.last() else { continue };
            // All three are below 2^63, and offset + size is at most the chunk's length.
            let reuse = c.used as i64 - (open.offset as i64).saturating_add(size as i64);
            let grows_less = best_reuse < 0 && reuse > best_reuse;
            let fits_better = reuse >= 0 && reuse < best_reuse;
            if open.size >= size && (grows_less || fits_better) {
                best_reuse = reuse;
                best = Some(Choice { chunk, block: c.free.len() - 1 });
            }
        }
        best
    }

    /// Rule 5 (iii).
    fn open_chunk(&mut self, size: u64) -> Result<Choice, DynError> {
        let chunk = self.chunks.len();
        if chunk >= MAX_CHUNKS {
            let largest = self.chunks.iter().flat_map(|c| &c.free).map(|b| b.size).max().unwrap_or(0);
            return Err(DynError::OutOfChunks { needed: Bytes(size), largest: Bytes(largest) });
        }
        let len = if chunk + 1 == MAX_CHUNKS { MAX_SIZE } else { size.max(self.chunk_len) };
        self.chunks.push(Chunk { free: vec![Block { offset: 0, size: len }], used: 0 });
        Ok(Choice { chunk, block: 0 })
    }

    /// Cuts `size` bytes from the front of a free block.
    fn cut(&mut self, choice: Choice, size: u64) -> Address {
        let chunk = &mut self.chunks[choice.chunk];
        let block = &mut chunk.free[choice.block];
        let offset = block.offset;
        block.offset += size;
        block.size -= size;
        if block.size == 0 {
            chunk.free.remove(choice.block);
        }
        chunk.used = chunk.used.max(offset + size);
        Address { chunk: ChunkId::new(choice.chunk), offset: Bytes(offset) }
    }
}

impl Chunk {
    /// Rule 5, free. The scan goes from the front because blocks of size zero may touch others: the first match counts.
    fn give_back(&mut self, freed: Block) {
        let touches = |b: &Block| b.end() == freed.offset || freed.end() == b.offset;
        let Some(i) = self.free.iter().position(touches) else {
            let at = self.free.iter().position(|b| b.offset >= freed.offset).unwrap_or(self.free.len());
            self.free.insert(at, freed);
            return;
        };
        if self.free[i].end() == freed.offset {
            self.free[i].size += freed.size;
            self.join_next(i);
        } else {
            self.free[i].offset = freed.offset;
            self.free[i].size += freed.size;
            if i > 0 {
                self.join_next(i - 1);
            }
        }
    }

    /// Joins block `i` with the next one if they touch.
    fn join_next(&mut self, i: usize) {
        if let Some(&next) = self.free.get(i + 1)
            && self.free[i].end() == next.offset
        {
            self.free[i].size += next.size;
            self.free.remove(i + 1);
        }
    }
}

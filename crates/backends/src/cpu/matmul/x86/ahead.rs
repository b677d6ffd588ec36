//! Prefetching.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

/// Fetches weights ahead of their use. Rows are read several at a time, a pattern that hardware prefetchers do not
/// follow from one group of rows to the next; the bytes of a group lie in one piece, so fetching them in address order
/// one group ahead keeps the memory busy.
#[derive(Clone, Copy)]
pub(crate) struct Ahead {
    at: *const u8,
    lines: usize,
}

impl Ahead {
    /// While `rows` rows from `data` on are used in `steps` steps, fetch what comes a few KiB later.
    #[inline(always)]
    pub(crate) fn new(data: *const u8, rows: usize, stride: usize, steps: usize) -> Self {
        const DISTANCE: usize = 6144;
        let bytes = rows * stride;
        Self { at: data.wrapping_add(bytes.max(DISTANCE)), lines: bytes.div_ceil(64).div_ceil(steps.max(1)) }
    }

    /// Fetches one step's share. Addresses past the end are hints that the processor ignores.
    #[inline(always)]
    pub(crate) fn step(&mut self) {
        for line in 0..self.lines {
            // SAFETY: a prefetch neither faults nor changes anything; every x86-64 processor has it.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(self.at.wrapping_add(line * 64).cast()) };
        }
        self.at = self.at.wrapping_add(self.lines * 64);
    }
}

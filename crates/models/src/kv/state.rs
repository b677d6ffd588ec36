//! Caches: finding cells for tokens, and operations on sequences.

use super::{
    Batch, BatchError, CellId, Cells, MAX_SEQUENCES, MicroBatch, Pos, SequenceId, Sharing, StreamId, outside_window,
};
use loadmaster_graph::IdVec;
use std::collections::BTreeMap;
use std::ops::Range;

/// Cells are shown to a graph in multiples of this, so that few graphs serve many lengths.
const VISIBLE_STEP: u32 = 256;

/// Which cache of a model: layers with a sliding window have one of their own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CacheKind {
    /// Layers that see everything.
    Full,
    /// Layers that see a window.
    Sliding,
}

/// Why tokens or sequences cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KvError {
    /// The batch is not usable.
    #[error(transparent)]
    Batch(#[from] BatchError),
    /// There is no room.
    #[error(
        "{stream} of the {cache:?} cache has no room for {needed} tokens: {used} of {cells} cells are in use; end a sequence or give a longer context"
    )]
    Full {
        /// The cache.
        cache: CacheKind,
        /// The stream.
        stream: StreamId,
        /// Cells needed.
        needed: u32,
        /// Cells in use.
        used: u32,
        /// Cells there are.
        cells: u32,
    },
    /// A part of a sequence cannot be copied to cells of its own.
    #[error("{sequence} has cells of its own: only all of it can be copied")]
    PartialCopy {
        /// The sequence.
        sequence: SequenceId,
    },
}

/// Where the tokens of a micro-batch go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Per stream, the cells of its tokens in order. The streams are consecutive.
    pub streams: Vec<(StreamId, Vec<CellId>)>,
}

impl Slot {
    /// The streams, as a half-open range.
    #[must_use]
    pub fn stream_range(&self) -> Range<u32> {
        let first = self.streams.first().map_or(0, |(s, _)| s.index() as u32);
        first..first + self.streams.len() as u32
    }
}

/// Bytes of a stream that have to be copied to another one before the next run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StreamCopy {
    /// Where from.
    pub from: StreamId,
    /// Where to.
    pub to: StreamId,
}

#[derive(Clone, PartialEq, Debug)]
struct Stream {
    cells: Cells,
    /// Where the search for free cells begins.
    head: u32,
}

/// One cache.
#[derive(Clone, PartialEq, Debug)]
pub struct KvCache {
    kind: CacheKind,
    window: Option<u32>,
    streams: IdVec<StreamId, Stream>,
}

impl KvCache {
    /// Empty cells: `cells` in each of `streams` streams. Cells that have left a `window` may be used again.
    #[must_use]
    pub fn new(kind: CacheKind, cells: u32, streams: u32, window: Option<u32>) -> Self {
        let stream = Stream { cells: Cells::new(cells), head: 0 };
        Self { kind, window, streams: IdVec::filled(stream, streams.max(1) as usize) }
    }

    /// The cells of a stream.
    #[must_use]
    pub fn cells(&self, stream: StreamId) -> &Cells {
        &self.streams[stream].cells
    }

    /// The window, for layers that have one.
    #[must_use]
    pub fn window(&self) -> Option<u32> {
        self.window
    }

    /// The stream of a sequence.
    #[must_use]
    pub fn stream_of(&self, sequence: SequenceId) -> StreamId {
        if self.streams.len() == 1 { StreamId::new(0) } else { StreamId::new(sequence.index()) }
    }

    /// Cells for the tokens of a micro-batch, which need not be neighbours. Nothing is changed. O(cells).
    pub fn find(&self, batch: &MicroBatch) -> Result<Slot, KvError> {
        let place = |(sequence, tokens): (Option<SequenceId>, &[_])| {
            let stream = sequence.map_or(StreamId::new(0), |s| self.stream_of(s));
            self.find_cells(stream, tokens.len() as u32).map(|cells| (stream, cells))
        };
        Ok(Slot { streams: batch.groups().into_iter().map(place).collect::<Result<_, _>>()? })
    }

    fn find_cells(&self, stream: StreamId, needed: u32) -> Result<Vec<CellId>, KvError> {
        let Stream { cells, head } = &self.streams[stream];
        // With enough free cells before the head, begin at the start so that the cache fills up from there.
        let head = if *head > cells.used().saturating_add(needed.saturating_mul(2)) { 0 } else { *head };
        let order = (head..cells.len()).chain(0..head).map(|i| CellId::new(i as usize));
        let found: Vec<CellId> = order.filter(|&id| self.usable(cells, id)).take(needed as usize).collect();
        if found.len() < needed as usize {
            let (cache, used, cells) = (self.kind, cells.used(), cells.len());
            return Err(KvError::Full { cache, stream, needed, used, cells });
        }
        Ok(found)
    }

    /// Empty, or left behind by the window of its only sequence.
    fn usable(&self, cells: &Cells, id: CellId) -> bool {
        let Some(pos) = cells.position(id) else { return true };
        let (Some(window), Some(sequence)) = (self.window, cells.sequences(id).only()) else { return false };
        cells.span(sequence).is_some_and(|(_, last)| outside_window(window, pos, last.next()))
    }

    /// Puts the tokens into the cells found for them.
    ///
    /// Where cells of a sequence are used again, its older positions are forgotten too: the positions of a sequence
    /// that are in the cache always follow each other.
    pub fn apply(&mut self, batch: &MicroBatch, slot: &Slot) {
        let mut overwritten: BTreeMap<(StreamId, SequenceId), Pos> = BTreeMap::new();
        for ((stream, cells), (_, tokens)) in slot.streams.iter().zip(batch.groups()) {
            let held = &mut self.streams[*stream];
            for (&cell, token) in cells.iter().zip(tokens) {
                if let (Some(pos), Some(owner)) = (held.cells.position(cell), held.cells.sequences(cell).only()) {
                    let last = overwritten.entry((*stream, owner)).or_insert(pos);
                    *last = pos.max(*last);
                }
                held.cells.set(cell, token.token.pos, &token.token.sequences);
            }
            held.head = cells.last().map_or(held.head, |c| c.index() as u32 + 1);
        }
        for ((stream, sequence), last) in overwritten {
            let cells = &mut self.streams[stream].cells;
            for id in cells.in_range(&(Pos(0)..last.next())) {
                cells.release(id, sequence);
            }
        }
    }

    /// Cells that a graph has to see: up to the last one in use, in steps of 256, over the streams of a slot.
    #[must_use]
    pub fn visible(&self, slot: &Slot) -> u32 {
        let of = |stream: StreamId| {
            let cells = &self.streams[stream].cells;
            cells.end().max(1).next_multiple_of(VISIBLE_STEP).min(cells.len())
        };
        slot.streams.iter().map(|(s, _)| of(*s)).max().unwrap_or(0)
    }

    /// First and last position of a sequence.
    #[must_use]
    pub fn span(&self, sequence: SequenceId) -> Option<(Pos, Pos)> {
        self.streams.get(self.stream_of(sequence))?.cells.span(sequence)
    }

    fn remove(&mut self, sequence: SequenceId, range: &Range<Pos>) {
        let stream = self.stream_of(sequence);
        self.free_where(stream, range, |cells, id| cells.release(id, sequence));
    }

    fn keep(&mut self, sequence: SequenceId) {
        let kept = self.stream_of(sequence);
        for stream in self.streams.ids() {
            self.free_where(stream, &(Pos(0)..Pos(u32::MAX)), |cells, id| {
                let stays = stream == kept && cells.sequences(id).contains(sequence);
                let others: Vec<SequenceId> = cells.sequences(id).iter().filter(|&s| !stays || s != sequence).collect();
                let mut freed = false;
                for other in others {
                    freed |= cells.release(id, other);
                }
                freed
            });
        }
    }

    /// Applies `free` to the cells in `range`; the search for free cells then begins at the first one that was freed.
    fn free_where(&mut self, stream: StreamId, range: &Range<Pos>, mut free: impl FnMut(&mut Cells, CellId) -> bool) {
        let Stream { cells, head } = &mut self.streams[stream];
        let mut first = None;
        for id in cells.in_range(range) {
            if free(cells, id) && first.is_none() {
                first = Some(id.index() as u32);
            }
        }
        *head = first.map_or(*head, |f| f.min(*head));
    }

    fn copy(&mut self, from: SequenceId, to: SequenceId, range: &Range<Pos>) -> Result<Option<StreamCopy>, KvError> {
        let (source, target) = (self.stream_of(from), self.stream_of(to));
        if source == target {
            let cells = &mut self.streams[source].cells;
            for id in cells.in_range(range) {
                if cells.sequences(id).contains(from) {
                    cells.share(id, to);
                }
            }
            return Ok(None);
        }
        let all = self.span(from).is_none_or(|(first, last)| range.contains(&first) && range.contains(&last));
        if !all {
            return Err(KvError::PartialCopy { sequence: from });
        }
        let source_stream = self.streams[source].clone();
        let target_stream = &mut self.streams[target];
        target_stream.cells = Cells::new(source_stream.cells.len());
        for id in source_stream.cells.in_range(range) {
            if let Some(pos) = source_stream.cells.position(id) {
                target_stream.cells.set(id, pos, &[to].into_iter().collect());
            }
        }
        target_stream.head = source_stream.head;
        Ok(Some(StreamCopy { from: source, to: target }))
    }
}

/// Slots of a micro-batch in both caches.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Slots {
    /// In the cache of layers that see everything.
    pub full: Slot,
    /// In the cache of layers with a window.
    pub sliding: Option<Slot>,
}

/// The caches of a model.
#[derive(Clone, PartialEq, Debug)]
pub struct KvState {
    sharing: Sharing,
    sequences: u32,
    full: KvCache,
    sliding: Option<KvCache>,
}

impl KvState {
    /// Empty caches of `layout` for up to `sequences` sequences; `window` for models that have one.
    #[must_use]
    pub fn new(layout: &crate::families::KvLayout, sequences: u32, window: Option<u32>) -> Self {
        let streams = layout.streams;
        let sharing = if streams > 1 { Sharing::PerSequence } else { Sharing::Unified };
        Self {
            sharing,
            sequences: if streams > 1 { streams } else { sequences.clamp(1, MAX_SEQUENCES) },
            full: KvCache::new(CacheKind::Full, layout.cells, streams, None),
            sliding: window.map(|w| KvCache::new(CacheKind::Sliding, layout.sliding_cells, streams, Some(w))),
        }
    }

    /// How sequences share cells.
    #[must_use]
    pub fn sharing(&self) -> Sharing {
        self.sharing
    }

    /// The cache of a kind; the full one stands in for a missing sliding one.
    #[must_use]
    pub fn cache(&self, kind: CacheKind) -> &KvCache {
        match (kind, &self.sliding) {
            (CacheKind::Sliding, Some(sliding)) => sliding,
            _ => &self.full,
        }
    }

    /// The position that comes next in a sequence.
    #[must_use]
    pub fn next(&self, sequence: SequenceId) -> Pos {
        self.full.span(sequence).map_or(Pos(0), |(_, last)| last.next())
    }

    /// Checks a batch, cuts it into micro-batches and finds cells for each. Nothing is changed: a batch that does not
    /// fit leaves the caches as they are. O(cells) for one micro-batch, else a copy of the caches besides.
    pub fn prepare(&self, batch: &Batch, micro_batch: u32) -> Result<Vec<(MicroBatch, Slots)>, KvError> {
        let known = |s| self.full.span(s).map(|(_, last)| last.next());
        batch.check(self.sequences, known)?;
        let parts = batch.split(micro_batch, self.sharing)?;
        if let [only] = parts.as_slice() {
            return Ok(vec![(only.clone(), self.find(only)?)]);
        }
        let mut ahead = self.clone();
        let mut out = Vec::with_capacity(parts.len());
        for part in parts {
            let slots = ahead.find(&part)?;
            ahead.apply(&part, &slots);
            out.push((part, slots));
        }
        Ok(out)
    }

    fn find(&self, batch: &MicroBatch) -> Result<Slots, KvError> {
        let sliding = self.sliding.as_ref().map(|c| c.find(batch)).transpose()?;
        Ok(Slots { full: self.full.find(batch)?, sliding })
    }

    /// Puts a micro-batch into the cells found for it. Inputs are filled and the graph is run after that.
    pub fn apply(&mut self, batch: &MicroBatch, slots: &Slots) {
        self.full.apply(batch, &slots.full);
        if let (Some(cache), Some(slot)) = (&mut self.sliding, &slots.sliding) {
            cache.apply(batch, slot);
        }
    }

    /// Forgets the positions `range` of a sequence.
    pub fn remove(&mut self, sequence: SequenceId, range: &Range<Pos>) -> Result<(), KvError> {
        self.check_sequence(sequence)?;
        self.each(|cache| cache.remove(sequence, range));
        Ok(())
    }

    /// Makes the positions `range` of a sequence belong to another one too. With streams of their own, bytes have to be
    /// copied between streams before the next run: that is what comes back.
    pub fn copy(
        &mut self,
        from: SequenceId,
        to: SequenceId,
        range: &Range<Pos>,
    ) -> Result<Option<StreamCopy>, KvError> {
        self.check_sequence(from)?;
        self.check_sequence(to)?;
        if from == to {
            return Ok(None);
        }
        let copy = self.full.copy(from, to, range)?;
        if let Some(sliding) = &mut self.sliding {
            sliding.copy(from, to, range)?;
        }
        Ok(copy)
    }

    /// Forgets all sequences but one.
    pub fn keep(&mut self, sequence: SequenceId) -> Result<(), KvError> {
        self.check_sequence(sequence)?;
        self.each(|cache| cache.keep(sequence));
        Ok(())
    }

    fn each(&mut self, mut change: impl FnMut(&mut KvCache)) {
        change(&mut self.full);
        self.sliding.iter_mut().for_each(change);
    }

    fn check_sequence(&self, sequence: SequenceId) -> Result<(), KvError> {
        if sequence.index() < self.sequences as usize {
            return Ok(());
        }
        Err(BatchError::NoSuchSequence { sequence, limit: self.sequences }.into())
    }
}

//! Indices that stand in device memory and name no row: kernels note the first of a program, the host looks at it when it
//! waits for the stream anyway.
//!
//! A program that has such indices has a word of its own in pinned memory, which GPUs write over the bus: nothing is
//! copied or waited for where nothing is wrong. Words are handed out in pages and never used again; a page goes when
//! nobody has a word of it any more. A page is 4 KiB of the host, which no plan counts. Locks: a stream's list of words is a leaf.

use super::core::Core;
use super::launch::types::NodeView;
use super::memory::PinnedMemory;
use crate::cpu::{KernelError, SourceIndex};
use crate::error::{Call, DeviceError, Fault};
use crate::host::HostBuffer;
use loadmaster_alloc::Buffer;
use loadmaster_graph::{Bytes, Op, TensorId};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Words of a page.
const WORDS: usize = 512;
const WORD: u64 = size_of::<u64>() as u64;

/// Pinned memory with words, those before `next` handed out.
#[derive(Debug)]
pub(crate) struct Page {
    buffer: Arc<dyn Buffer>,
    next: usize,
}

/// Where a device takes words from.
#[derive(Debug, Default)]
pub(crate) struct Pages(Mutex<Option<Page>>);

impl Pages {
    /// A word that nobody uses. Errors: no pinned memory.
    pub(crate) fn take(&self, pinned: &PinnedMemory) -> Result<Word, Fault> {
        let mut page = self.0.lock();
        let page = match page.take().filter(|page| page.next < WORDS) {
            Some(found) => page.insert(found),
            None => {
                let buffer = pinned.page(Bytes(WORDS as u64 * WORD)).map_err(Fault::OutOfMemory)?;
                page.insert(Page { buffer, next: 0 })
            }
        };
        let offset = Bytes(page.next as u64 * WORD);
        page.next += 1;
        Ok(Word { buffer: Arc::clone(&page.buffer), offset })
    }
}

/// A word of pinned memory: zero, or which node met which index.
#[derive(Debug)]
pub(crate) struct Word {
    buffer: Arc<dyn Buffer>,
    offset: Bytes,
}

impl Word {
    /// Where kernels write it.
    pub(crate) fn address(&self) -> Result<u64, Fault> {
        self.pointer().map(|pointer| pointer.addr() as u64)
    }

    fn pointer(&self) -> Result<*mut u64, Fault> {
        let host = self.buffer.as_any().downcast_ref::<HostBuffer>();
        let host = host.ok_or_else(|| Fault::WrongMemory { buffer_type: format!("{:?}", self.buffer) })?;
        host.address(self.offset, Bytes(WORD)).map(<*mut u8>::cast)
    }

    fn swap(&self, value: u64) -> u64 {
        let Ok(pointer) = self.pointer() else { return 0 };
        // SAFETY: the word lies in pinned memory that `buffer` holds, at a multiple of its size from an address that the
        // driver aligns to pages; GPUs store it whole, and the host only through atomics.
        unsafe { AtomicU64::from_ptr(pointer) }.swap(value, Ordering::AcqRel)
    }

    fn load(&self) -> u64 {
        let Ok(pointer) = self.pointer() else { return 0 };
        // SAFETY: as for `swap`.
        unsafe { AtomicU64::from_ptr(pointer) }.load(Ordering::Acquire)
    }
}

/// A node with indices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Indexed {
    /// Its number in the program, as kernels are told it: from 1.
    pub(crate) code: u32,
    /// What it computes.
    pub(crate) tensor: TensorId,
    pub(crate) op: Op,
    /// The operand with the indices, and how many rows they may name.
    pub(crate) operand: u8,
    pub(crate) rows: u64,
}

/// The operand with indices and the rows that these may name, if a node has any.
pub(crate) fn indices(view: &NodeView<'_>) -> Option<(u8, u64)> {
    let rows = |source: usize, dim: usize| view.src.get(source).copied().flatten().map(|s| s.ne[dim]);
    match view.op {
        Op::GetRows => Some((1, rows(0, 1)?)),
        Op::SetRows => Some((1, view.dst.ne[1])),
        Op::AddId => Some((2, rows(1, 1)?)),
        Op::MulMatId => Some((2, rows(0, 2)?)),
        _ => None,
    }
}

/// What a program's kernels note, and what it means.
#[derive(Debug)]
pub(crate) struct Watch {
    word: Word,
    nodes: Vec<Indexed>,
    /// Of the program, as long as that can be launched.
    program: Weak<()>,
}

impl Watch {
    /// A word for the nodes of a program, which keeps `program` alive as long as it lives.
    pub(crate) fn new(word: Word, nodes: Vec<Indexed>, program: &Arc<()>) -> Self {
        Self { word, nodes, program: Arc::downgrade(program) }
    }

    /// Where kernels write.
    pub(crate) fn address(&self) -> Result<u64, Fault> {
        self.word.address()
    }

    /// The error of the first node that met such an index, if one did.
    fn noted(&self, core: &Core) -> Option<DeviceError> {
        let word = self.word.load();
        let (code, index) = ((word >> 32) as u32, i64::from(word as u32 as i32));
        let node = self.nodes.iter().find(|node| node.code == code)?;
        let Indexed { tensor, op, operand, rows, .. } = *node;
        let why = KernelError::Index { op, operand: SourceIndex(operand), index, rows }.to_string();
        Some(core.error(Call::Execute, Some(tensor), Fault::Kernel { op, why }))
    }
}

/// The programs that a stream ran: those that still live, and those that it did not wait for since they were dropped.
#[derive(Debug, Default)]
pub(crate) struct Watched(Mutex<Vec<Arc<Watch>>>);

/// What programs noted that nobody can launch any more.
#[derive(Debug)]
pub(crate) struct Orphans(Vec<Arc<Watch>>);

impl Watched {
    /// Remembers to look at a program.
    pub(crate) fn add(&self, watch: &Arc<Watch>) {
        let mut list = self.0.lock();
        if !list.iter().any(|known| Arc::ptr_eq(known, watch)) {
            list.push(Arc::clone(watch));
        }
    }

    /// What has been noted so far.
    pub(crate) fn noted(&self, core: &Core) -> Option<DeviceError> {
        self.0.lock().iter().find_map(|watch| watch.noted(core))
    }

    /// Those whose program is gone by now: whoever waits for the stream after this has waited for all of their kernels.
    pub(crate) fn orphans(&self) -> Orphans {
        let is_orphan = |watch: &&Arc<Watch>| watch.program.strong_count() == 0;
        Orphans(self.0.lock().iter().filter(is_orphan).map(Arc::clone).collect())
    }

    /// Forgets orphans that noted nothing and can note nothing any more: the stream was waited for.
    pub(crate) fn settle(&self, orphans: &Orphans) {
        let is_done =
            |watch: &Arc<Watch>| watch.word.load() == 0 && orphans.0.iter().any(|orphan| Arc::ptr_eq(orphan, watch));
        self.0.lock().retain(|watch| !is_done(watch));
    }

    /// Forgets all; nothing may run any more.
    pub(crate) fn forget(&self) {
        let list = std::mem::take(&mut *self.0.lock());
        list.iter().for_each(|watch| {
            watch.word.swap(0);
        });
    }
}

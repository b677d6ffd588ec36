//! What a device keeps between nodes: threads, scratch memory, instruction set.

use super::isa::Isa;
use super::matmul::activation::Source;
use super::ops::rope::Table;
use super::region::Region;
use std::cell::Cell;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Threads that kernels may use. Clones share them.
#[derive(Clone, Debug)]
pub struct Workers {
    pool: Option<Arc<rayon::ThreadPool>>,
    threads: NonZeroUsize,
}

/// The threads could not be started.
#[derive(Debug, thiserror::Error)]
#[error("{threads} worker threads could not be started: {reason}")]
pub struct WorkersError {
    /// How many were asked for.
    pub threads: NonZeroUsize,
    /// The system's words.
    pub reason: String,
}

impl Workers {
    /// Only the calling thread.
    #[must_use]
    pub fn single() -> Self {
        Self { pool: None, threads: NonZeroUsize::MIN }
    }

    /// The calling thread and `threads` − 1 others. Errors: the system refuses a thread.
    pub fn new(threads: NonZeroUsize) -> Result<Self, WorkersError> {
        if threads.get() == 1 {
            return Ok(Self::single());
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads.get() - 1)
            .thread_name(|i| format!("kernel-{i}"))
            .build()
            .map_err(|e| WorkersError { threads, reason: e.to_string() })?;
        Ok(Self { pool: Some(Arc::new(pool)), threads })
    }

    /// How many threads take part, the calling one included.
    #[must_use]
    pub fn threads(&self) -> NonZeroUsize {
        self.threads
    }
}

/// Per device: worker threads, instruction set and scratch memory that only grows. One list of nodes runs at a time; a
/// second caller waits.
pub struct ComputeCtx {
    workers: Workers,
    isa: Isa,
    region: Arc<Region>,
    scratch: Mutex<Scratch>,
}

impl std::fmt::Debug for ComputeCtx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ComputeCtx").field("workers", &self.workers).field("isa", &self.isa).finish_non_exhaustive()
    }
}

impl ComputeCtx {
    /// With the strongest instruction set of this machine.
    #[must_use]
    pub fn new(workers: Workers) -> Self {
        Self::build(workers, Isa::best())
    }

    /// With a chosen instruction set; `None` if this machine lacks it.
    #[must_use]
    pub fn with_isa(workers: Workers, isa: Isa) -> Option<Self> {
        isa.present().then(|| Self::build(workers, isa))
    }

    fn build(workers: Workers, isa: Isa) -> Self {
        Self { workers, isa, region: Region::new(), scratch: Mutex::new(Scratch::default()) }
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Runs `body` with this context's threads and scratch.
    pub(crate) fn enter<R>(&self, body: impl FnOnce(&mut Env<'_>) -> R) -> R {
        // A panic in a kernel leaves scratch bytes behind, which nobody reads before writing them.
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        let team = Team { workers: &self.workers, region: &self.region, opened: Cell::new(false) };
        body(&mut Env { isa: self.isa, team, scratch: &mut scratch, prepared: None })
    }
}

/// What a kernel is given beside its node.
pub(crate) struct Env<'a> {
    pub(crate) isa: Isa,
    pub(crate) team: Team<'a>,
    pub(crate) scratch: &'a mut Scratch,
    /// What `scratch.activations` holds.
    pub(crate) prepared: Option<Source>,
}

/// An estimate of work: about a third of a nanosecond each.
#[derive(Clone, Copy)]
pub(crate) struct Cost(pub(crate) u64);

impl Cost {
    /// Below this a share is not worth handing to another thread.
    const SHARE: u64 = 12_000;
}

/// The threads of one list of nodes.
pub(crate) struct Team<'a> {
    workers: &'a Workers,
    region: &'a Arc<Region>,
    opened: Cell<bool>,
}

impl Team<'_> {
    /// How many threads may take part.
    pub(crate) fn threads(&self) -> usize {
        self.workers.threads.get()
    }

    fn open(&self, pool: &rayon::ThreadPool) {
        if self.opened.replace(true) {
            return;
        }
        let session = self.region.open();
        for _ in 1..self.threads() {
            let region = Arc::clone(self.region);
            pool.spawn(move || region.help(session));
        }
    }

    /// Runs tasks `0..tasks`, each once, in any order and on any thread. The first argument is a slot below
    /// [`Self::threads`] that no other participant has.
    pub(crate) fn run(&self, tasks: usize, task: impl Fn(usize, usize) + Sync) {
        match &self.workers.pool {
            Some(pool) if tasks > 1 => {
                self.open(pool);
                self.region.run(tasks, self.threads(), &task);
            }
            _ => (0..tasks).for_each(|i| task(0, i)),
        }
    }

    /// Cuts `0..items` into ranges whose starts are multiples of `grain` and runs them.
    pub(crate) fn split(&self, items: usize, grain: usize, per_item: Cost, task: impl Fn(usize, Range<usize>) + Sync) {
        let grains = items.div_ceil(grain);
        let work = (items as u64).saturating_mul(per_item.0);
        let shares = usize::try_from(work / Cost::SHARE).unwrap_or(usize::MAX).min(self.threads() * 4).min(grains);
        if self.threads() == 1 || shares < 2 {
            if items > 0 {
                task(0, 0..items);
            }
            return;
        }
        let share = grains.div_ceil(shares) * grain;
        self.run(items.div_ceil(share), |slot, i| task(slot, i * share..((i + 1) * share).min(items)));
    }
}

impl Drop for Team<'_> {
    fn drop(&mut self) {
        if self.opened.get() {
            self.region.close();
        }
    }
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Memory that grows to the largest need and stays.
#[derive(Default)]
pub(crate) struct Buffer(Vec<Line>);

impl Buffer {
    /// At least `bytes` bytes, aligned to 64; contents unspecified. Valid until the next call or the buffer's end.
    pub(crate) fn bytes(&mut self, bytes: usize) -> *mut u8 {
        let lines = bytes.div_ceil(64);
        if self.0.len() < lines {
            self.0.clear();
            self.0.resize(lines, Line([0; 64]));
        }
        self.0.as_mut_ptr().cast()
    }
}

/// Scratch memory by use.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Activations converted for a product.
    pub(crate) activations: Buffer,
    /// Column lists.
    pub(crate) columns: Buffer,
    /// Per participant: unpacked weights, score rows.
    pub(crate) per_slot: Buffer,
    /// Angles of rotations.
    pub(crate) rope: Table,
}

/// An address that closures may carry to other threads.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(pub(crate) *mut T);

// SAFETY: plain addresses; whoever reads or writes through them vouches that participants touch disjoint parts.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// The address (a method, so that closures capture the whole value).
    #[inline]
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}

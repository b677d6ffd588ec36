//! Puts a launch together.

use super::types::{Base, Launch, Launches, Layout, LmArgs, LmTensor, MAX_SOURCES, Place, WATCH_SOURCE, Work};
use loadmaster_graph::DType;

/// Threads of a block where each takes elements of its own.
const FLAT_THREADS: u32 = 256;
/// Most blocks of one dimension where blocks take several turns.
const MOST_BLOCKS: u64 = 1 << 20;

/// The result's place.
pub(super) const DST: Place = Place { base: Base::Dst, offset: 0 };

/// A source's place.
pub(super) const fn source(i: u8) -> Place {
    Place { base: Base::Source(i), offset: 0 }
}
/// A place in scratch memory.
pub(super) const fn scratch(offset: u64) -> Place {
    Place { base: Base::Scratch, offset }
}

/// Extents and strides as a kernel reads them.
pub(super) fn tensor(layout: &Layout) -> LmTensor {
    LmTensor {
        data: 0,
        ne: layout.ne.map(|n| n as i64),
        nb: layout.nb.map(|n| n as i64),
        dtype: layout.dtype.number() as i32,
        pad: 0,
    }
}

/// A launch that is being described.
#[derive(Clone)]
pub(super) struct Build(Launch);

impl Build {
    /// A kernel, its result at its place.
    pub(super) fn new(source: &'static str, kernel: &'static str, dst: &Layout) -> Self {
        let args = LmArgs { dst: tensor(dst), ..LmArgs::default() };
        Self(Launch {
            source,
            kernel,
            grid: [1; 3],
            block: [FLAT_THREADS, 1, 1],
            shared_bytes: 0,
            args,
            dst: DST,
            src: [Place::default(); MAX_SOURCES],
        })
    }
    /// The result somewhere else.
    pub(super) fn dst_at(mut self, place: Place) -> Self {
        self.0.dst = place;
        self
    }
    /// The kernel's source `i`, at the node's source `i`.
    pub(super) fn source(self, i: u8, layout: &Layout) -> Self {
        self.source_at(i, layout, source(i))
    }
    /// The kernel's source `i`, if the node has one.
    pub(super) fn optional(self, i: u8, layout: Option<Layout>) -> Self {
        match layout {
            Some(layout) => self.source(i, &layout),
            None => self,
        }
    }
    /// The kernel's source `i`, anywhere.
    pub(super) fn source_at(mut self, i: u8, layout: &Layout, place: Place) -> Self {
        self.0.args.src[usize::from(i)] = tensor(layout);
        self.0.src[usize::from(i)] = place;
        self
    }
    /// Whole numbers from the first on.
    pub(super) fn ints<const N: usize>(mut self, values: [i32; N]) -> Self {
        self.0.args.i[..N].copy_from_slice(&values);
        self
    }
    /// Floats from the first on.
    pub(super) fn floats<const N: usize>(mut self, values: [f32; N]) -> Self {
        self.0.args.f[..N].copy_from_slice(&values);
        self
    }
    /// Long numbers from the first on.
    pub(super) fn longs<const N: usize>(mut self, values: [u64; N]) -> Self {
        for (to, value) in self.0.args.l.iter_mut().zip(values) {
            *to = value as i64;
        }
        self
    }
    /// A kernel that looks at indices, and notes one that names no row.
    pub(super) fn watched(self) -> Self {
        let word = Layout { dtype: DType::I64, ne: [1; 4], nb: [8; 4] };
        self.source_at(WATCH_SOURCE as u8, &word, Place { base: Base::Watch, offset: 0 })
    }
    /// A thread for each of `n` things.
    pub(super) fn each(mut self, n: u64) -> Self {
        self.0.grid = [blocks(n.div_ceil(FLAT_THREADS.into())), 1, 1];
        self
    }
    /// A block of threads for each of `rows` rows of `width` elements.
    pub(super) fn rows(mut self, rows: u64, width: u64) -> Self {
        self.0.grid = [blocks(rows), 1, 1];
        self.0.block = [row_threads(width), 1, 1];
        self
    }
    /// Dynamic shared memory of a block.
    pub(super) fn shared(mut self, bytes: u32) -> Self {
        self.0.shared_bytes = bytes;
        self
    }
    /// This grid of blocks of this many threads.
    pub(super) fn grid(mut self, grid: [u32; 3], threads: u32) -> Self {
        self.0.grid = grid;
        self.0.block = [threads, 1, 1];
        self
    }
    pub(super) fn done(self) -> Work {
        Work::Kernel(Box::new(self.0))
    }
}

impl From<Build> for Launches {
    fn from(build: Build) -> Self {
        Self { list: [build.done()].into_iter().collect(), scratch_bytes: 0 }
    }
}

fn blocks(n: u64) -> u32 {
    n.clamp(1, MOST_BLOCKS) as u32
}

/// Whole warps, about four elements to a thread.
fn row_threads(width: u64) -> u32 {
    (width / 4).clamp(32, 1024).next_power_of_two() as u32
}

/// Bytes as a tensor: `ne[0]` of them in a row, outer extents as given.
pub(super) fn byte_rows(bytes: u64, outer: [u64; 3]) -> Layout {
    let [a, b, c] = outer;
    Layout { dtype: DType::I8, ne: [bytes, a, b, c], nb: [1, bytes, bytes * a, bytes * a * b] }
}

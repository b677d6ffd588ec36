//! What is cut: a row of items over a row of devices, in bytes and seconds.
//!
//! Items go to devices in order, each device a contiguous range that may be empty; the experts of an item may stay on
//! the host instead. `labels.rs` finds the best cut.

use super::pipeline::makespan;
use std::ops::Range;

pub use super::labels::{MAX_LABELS, solve, solve_below, why_empty};

/// Something that goes to one device as a whole: the embedding, a layer, the output.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Item {
    /// Bytes that go with it: weights and KV cache.
    pub bytes: u64,
    /// Bytes of experts, which may go to the host instead.
    pub experts: u64,
    /// The bytes by device, where its memory pads them otherwise; empty: the same everywhere.
    pub bytes_on: Vec<u64>,
    /// The bytes of experts by device; empty: the same everywhere.
    pub experts_on: Vec<u64>,
    /// Seconds by device, its experts not counted.
    pub seconds: Vec<f64>,
    /// Seconds of its experts by device, if they are there.
    pub experts_here: Vec<f64>,
    /// Seconds of its experts by device, if they are on the host.
    pub experts_away: Vec<f64>,
}

/// A device in the row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stage {
    /// Pools that its bytes count in: its own, and those that contain that one.
    pub pools: Vec<usize>,
}

/// What is to be minimal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Goal {
    /// The sum of all times: one token after another.
    Sum,
    /// The time of the slowest device: a full pipeline. Ties by the sum.
    Slowest,
    /// The time of so many micro-batches, of which at most so many are under way at once.
    Pipeline {
        /// Micro-batches.
        micro_batches: u32,
        /// Under way at once.
        depth: u32,
    },
}

impl Goal {
    /// What is minimal, of the sum of all times and that of the slowest device. It grows with both.
    #[must_use]
    pub fn cost(self, sum: f64, slowest: f64) -> f64 {
        match self {
            Self::Sum => sum,
            Self::Slowest => slowest,
            Self::Pipeline { micro_batches, depth } => makespan(sum, slowest, micro_batches, depth),
        }
    }
}

/// What the bytes that a device computes in may depend on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Span {
    /// The device, by its place in the row.
    pub device: usize,
    /// Its first item.
    pub start: usize,
    /// Past its last item.
    pub end: usize,
    /// Whether experts of these items are on the host.
    pub away: bool,
    /// Whether the first device of the row has items.
    pub hosted: bool,
}

impl Span {
    /// Whether the device has no items. It may need bytes all the same: for weights that are sent to it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }
}

/// What of a range its arena depends on, beside what is added to the range later: ranges of one device that end at the same
/// item and are of one class have equal arenas, and again equal ones with more items.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SpanClass(pub [u64; 5]);

/// Bytes that devices need to compute ranges of items. A function of spans is one, of which nothing more is known.
pub trait Arena {
    /// The bytes.
    fn size(&self, span: &Span) -> u64;

    /// What they depend on: unless told otherwise, where a range starts and all else.
    fn class(&self, span: &Span) -> SpanClass {
        SpanClass([span.start as u64, 0, 0, 0, 0])
    }
}

impl<F: Fn(&Span) -> u64> Arena for F {
    fn size(&self, span: &Span) -> u64 {
        self(span)
    }
}

/// What is to be placed where.
#[derive(Clone)]
pub struct Problem<'a> {
    /// The row of items.
    pub items: Vec<Item>,
    /// The row of devices.
    pub stages: Vec<Stage>,
    /// Free bytes by pool; `None`: not known, and taken as enough.
    pub pools: Vec<Option<u64>>,
    /// Pools in which experts on the host count.
    pub host: Vec<usize>,
    /// Seconds to carry a result from one device to another: `cut[from][to]`.
    pub cut: Vec<Vec<f64>>,
    /// Whether experts may be on the host although their items are not.
    pub experts_may_leave: bool,
    /// Bytes to compute in.
    pub arena: &'a dyn Arena,
    /// What is to be minimal.
    pub goal: Goal,
    /// Devices that must not stay empty.
    pub must_use: Vec<usize>,
}

/// A best placement.
#[derive(Clone, PartialEq, Debug)]
pub struct Solution {
    /// Items of each device.
    pub ranges: Vec<Range<usize>>,
    /// Whether the experts of each item are on its device.
    pub experts_here: Vec<bool>,
    /// The sum of all times.
    pub sum: f64,
    /// The time of the slowest device.
    pub slowest: f64,
    /// Bytes by pool.
    pub used: Vec<u64>,
    /// Whether nothing was left out of the search.
    pub exact: bool,
}

impl Solution {
    /// What was minimised.
    #[must_use]
    pub fn cost(&self, goal: Goal) -> f64 {
        goal.cost(self.sum, self.slowest)
    }
}

impl Problem<'_> {
    /// The times of a placement, whether it fits or not: the sum, and the slowest device's. Items of each device stand
    /// in `ranges`.
    #[must_use]
    pub fn seconds(&self, ranges: &[Range<usize>], experts_here: &[bool]) -> (f64, f64) {
        let (mut sum, mut slowest, mut before) = (0.0, 0.0f64, None::<usize>);
        for (device, range) in ranges.iter().enumerate().filter(|(_, r)| !r.is_empty()) {
            let carried = before.map_or(0.0, |b| self.cut[b][device]);
            let items = range.clone().map(|i| self.items[i].seconds_on(device, experts_here[i]));
            let stage = carried + items.sum::<f64>();
            (sum, slowest, before) = (sum + stage, slowest.max(stage), Some(device));
        }
        (sum, slowest)
    }

    /// What all placements cost at least, if memory and copies were no matter.
    #[must_use]
    pub fn least(&self) -> f64 {
        let rest = self.least_rest();
        let sum = rest.first().copied().unwrap_or(0.0);
        let slowest = sum / self.stages.len().max(1) as f64;
        self.goal.cost(sum, slowest)
    }

    /// By item: the seconds of it and of those after it, each where it is fastest.
    pub(super) fn least_rest(&self) -> Vec<f64> {
        let fastest = |item: &Item| {
            let on = |d: usize| [true, false].map(|here| item.seconds_on(d, here || item.experts == 0));
            (0..self.stages.len()).flat_map(on).fold(f64::INFINITY, f64::min)
        };
        let mut rest = vec![0.0; self.items.len() + 1];
        for i in (0..self.items.len()).rev() {
            rest[i] = rest[i + 1] + fastest(&self.items[i]);
        }
        rest
    }

    /// Bytes of the items on each device, and on the first of the experts that are away.
    #[must_use]
    pub fn bytes(&self, ranges: &[Range<usize>], experts_here: &[bool]) -> Vec<u64> {
        let mut sums = vec![0u64; ranges.len()];
        for (device, range) in ranges.iter().enumerate() {
            for i in range.clone() {
                let item = &self.items[i];
                let home = if experts_here[i] { device } else { 0 };
                sums[device] = sums[device].saturating_add(item.bytes_on(device));
                sums[home] = sums[home].saturating_add(item.experts_on(home));
            }
        }
        sums
    }

    /// What each device's arena depends on in a placement.
    #[must_use]
    pub fn spans(&self, ranges: &[Range<usize>], experts_here: &[bool]) -> Vec<Span> {
        let hosted = ranges.first().is_some_and(|r| !r.is_empty());
        let span = |(device, r): (usize, &Range<usize>)| {
            let away = r.clone().any(|i| !experts_here[i]);
            Span { device, start: r.start, end: r.end, away, hosted }
        };
        ranges.iter().enumerate().map(span).collect()
    }
}

impl Item {
    pub(super) fn bytes_on(&self, device: usize) -> u64 {
        self.bytes_on.get(device).copied().unwrap_or(self.bytes)
    }

    pub(super) fn experts_on(&self, device: usize) -> u64 {
        self.experts_on.get(device).copied().unwrap_or(self.experts)
    }

    /// Seconds on a device, its experts there or on the host.
    pub(super) fn seconds_on(&self, device: usize, here: bool) -> f64 {
        let experts = if here { &self.experts_here } else { &self.experts_away };
        self.seconds[device] + experts.get(device).copied().unwrap_or(0.0)
    }
}

/// Why a device has nothing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum WhyEmpty {
    /// No placement that uses it fits.
    NoRoom,
    /// The best placement that uses it costs so many seconds more.
    Slower(f64),
}

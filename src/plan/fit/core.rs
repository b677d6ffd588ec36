//! The best cut of a row of items over a row of devices: exact dynamic programming over labels.
//!
//! Items go to devices in order, each device a contiguous range that may be empty; the experts of an item may stay on
//! the host instead. A label is a partial answer; one that is nowhere better than another is dropped.

use super::pipeline::makespan;
use std::ops::Range;

/// Labels kept for one state; more would make the search slow, and dropping them is told.
pub const MAX_LABELS: usize = 4096;

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

/// Bytes that a device needs to compute a range of items.
pub type ArenaSize<'a> = &'a dyn Fn(&Span) -> u64;

/// What is to be placed where.
#[derive(Clone)]
pub struct Problem<'a> {
    /// The row of items.
    pub items: Vec<Item>,
    /// The row of devices.
    pub stages: Vec<Stage>,
    /// Free bytes by pool.
    pub pools: Vec<u64>,
    /// Pools in which experts on the host count.
    pub host: Vec<usize>,
    /// Seconds to carry a result from one device to another: `cut[from][to]`.
    pub cut: Vec<Vec<f64>>,
    /// Whether experts may be on the host although their items are not.
    pub experts_may_leave: bool,
    /// Bytes to compute in.
    pub arena: ArenaSize<'a>,
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
    fn least_rest(&self) -> Vec<f64> {
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
    fn bytes_on(&self, device: usize) -> u64 {
        self.bytes_on.get(device).copied().unwrap_or(self.bytes)
    }

    fn experts_on(&self, device: usize) -> u64 {
        self.experts_on.get(device).copied().unwrap_or(self.experts)
    }

    /// Seconds on a device, its experts there or on the host.
    fn seconds_on(&self, device: usize, here: bool) -> f64 {
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

#[derive(Clone, Debug)]
struct Label {
    device: usize,
    start: usize,
    /// Experts of the device's items are on the host.
    away: bool,
    /// The first device has items.
    hosted: bool,
    used: Vec<u64>,
    stage: f64,
    worst: f64,
    sum: f64,
    /// The device of each item so far, and whether its experts are there.
    path: Vec<(usize, bool)>,
}

/// The best placement; `None` if nothing fits. O(items · devices · labels²).
#[must_use]
pub fn solve(problem: &Problem<'_>) -> Option<Solution> {
    solve_below(problem, f64::INFINITY).0
}

/// The best placement that costs less than `beat`, and whether nothing was left out: then `None` means that there is none.
/// Partial answers that cannot become one, even
/// if memory were no matter, are not followed.
#[must_use]
pub fn solve_below(problem: &Problem<'_>, beat: f64) -> (Option<Solution>, bool) {
    let mut search = Search { problem, exact: true, beat, rest: problem.least_rest() };
    let first = Label {
        device: 0,
        start: 0,
        away: false,
        hosted: false,
        used: vec![0; problem.pools.len()],
        stage: 0.0,
        worst: 0.0,
        sum: 0.0,
        path: Vec::new(),
    };
    let mut labels = search.moved(vec![first]);
    for item in 0..problem.items.len() {
        let taken: Vec<Label> = labels.iter().flat_map(|l| search.take(l, item)).collect();
        labels = search.moved(taken.into_iter().filter(|l| search.may_win(l)).collect());
    }
    let Some(last) = problem.stages.len().checked_sub(1) else { return (None, true) };
    let closed = labels.into_iter().filter(|l| l.device == last).filter_map(|l| search.close(&l));
    let closed = closed.filter(|l| problem.goal.cost(l.sum, l.worst) < beat);
    let key = |l: &Label| match problem.goal {
        Goal::Sum => (l.sum, l.worst),
        other => (other.cost(l.sum, l.worst), l.sum),
    };
    let best = closed.min_by(|a, b| {
        let (a, b) = (key(a), key(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
    (best.map(|label| solution(problem, label, search.exact)), search.exact)
}

/// Why a device is empty in a best placement of this cost.
#[must_use]
pub fn why_empty(problem: &Problem<'_>, best: &Solution, device: usize) -> WhyEmpty {
    let mut forced = problem.clone();
    forced.must_use.push(device);
    match solve(&forced) {
        None => WhyEmpty::NoRoom,
        Some(used) => WhyEmpty::Slower(used.cost(problem.goal) - best.cost(problem.goal)),
    }
}

fn solution(problem: &Problem<'_>, best: Label, exact: bool) -> Solution {
    let mut at = 0;
    let ranges = (0..problem.stages.len()).map(|device| {
        let start = at;
        at += best.path[start..].iter().take_while(|(d, _)| *d == device).count();
        start..at
    });
    Solution {
        ranges: ranges.collect(),
        experts_here: best.path.iter().map(|(_, here)| *here).collect(),
        sum: best.sum,
        slowest: best.worst,
        used: best.used,
        exact,
    }
}

struct Search<'p, 'a> {
    problem: &'p Problem<'a>,
    exact: bool,
    beat: f64,
    /// By item: what it and those after it cost at least.
    rest: Vec<f64>,
}

impl Search<'_, '_> {
    /// The label with one item more on its device: its experts there or on the host.
    fn take(&self, label: &Label, item: usize) -> Vec<Label> {
        let problem = self.problem;
        let what = &problem.items[item];
        let with = |here: bool| {
            let mut next = label.clone();
            let stage = &problem.stages[label.device];
            let bytes = what.bytes_on(label.device);
            let own = if here { bytes.saturating_add(what.experts_on(label.device)) } else { bytes };
            stage.pools.iter().for_each(|&p| next.used[p] = next.used[p].saturating_add(own));
            if !here {
                problem.host.iter().for_each(|&p| next.used[p] = next.used[p].saturating_add(what.experts_on(0)));
            }
            let seconds = what.seconds_on(label.device, here);
            let before = label.path.last().map(|&(from, _)| from).filter(|&from| from != label.device);
            let carried = before.map_or(0.0, |from| problem.cut[from][label.device]);
            next.stage += seconds + carried;
            next.sum += seconds + carried;
            next.path.push((label.device, here));
            next.away |= !here;
            next.hosted |= label.device == 0;
            self.fits(&next).then_some(next)
        };
        let choices = if what.experts > 0 && problem.experts_may_leave { &[true, false][..] } else { &[true][..] };
        choices.iter().filter_map(|&here| with(here)).collect()
    }

    /// Whether the label can still come to cost less than what is to be beaten.
    fn may_win(&self, label: &Label) -> bool {
        let sum = label.sum + self.rest[label.path.len()];
        self.beat == f64::INFINITY || self.problem.goal.cost(sum, label.worst.max(label.stage)) < self.beat
    }

    fn fits(&self, label: &Label) -> bool {
        label.used.iter().zip(&self.problem.pools).all(|(used, free)| used <= free)
    }

    /// The label with its device done: the arena counted.
    fn close(&self, label: &Label) -> Option<Label> {
        let range = label.start..label.path.len();
        let mut next = label.clone();
        next.worst = next.worst.max(next.stage);
        if range.is_empty() && self.problem.must_use.contains(&label.device) {
            return None;
        }
        let (device, start, end) = (label.device, range.start, range.end);
        let span = Span { device, start, end, away: label.away, hosted: label.hosted };
        let arena = (self.problem.arena)(&span);
        let pools = &self.problem.stages[label.device].pools;
        pools.iter().for_each(|&p| next.used[p] = next.used[p].saturating_add(arena));
        self.fits(&next).then_some(next)
    }

    /// All labels, and what they become on later devices, without those that others beat.
    fn moved(&mut self, labels: Vec<Label>) -> Vec<Label> {
        let mut by_device: Vec<Vec<Label>> = vec![Vec::new(); self.problem.stages.len()];
        labels.into_iter().for_each(|l| by_device[l.device].push(l));
        for device in 0..by_device.len() {
            let kept = self.undominated(std::mem::take(&mut by_device[device]));
            if device + 1 < by_device.len() {
                let next = kept.iter().filter_map(|l| self.close(l)).map(|mut l| {
                    (l.device, l.start, l.stage, l.away) = (device + 1, l.path.len(), 0.0, false);
                    l
                });
                by_device[device + 1].extend(next);
            }
            by_device[device] = kept;
        }
        by_device.into_iter().flatten().collect()
    }

    fn undominated(&mut self, mut labels: Vec<Label>) -> Vec<Label> {
        labels.sort_by(|a, b| a.start.cmp(&b.start).then(a.sum.total_cmp(&b.sum)).then(a.worst.total_cmp(&b.worst)));
        let mut kept: Vec<Label> = Vec::new();
        for label in labels {
            let beaten = kept.iter().rev().take_while(|k| k.start == label.start).any(|k| self.beats(k, &label));
            if !beaten {
                kept.push(label);
            }
        }
        if kept.len() > MAX_LABELS {
            self.exact = false;
            kept.truncate(MAX_LABELS);
        }
        kept
    }

    /// Whether the first is nowhere worse. An earlier start is another arena, and the device before another cut.
    fn beats(&self, a: &Label, b: &Label) -> bool {
        let from = |l: &Label| l.path.last().map(|p| p.0);
        let live = |p: usize| {
            let of_stages = self.problem.stages[a.device..].iter().any(|s| s.pools.contains(&p));
            of_stages || self.problem.host.contains(&p)
        };
        let smaller = (0..a.used.len()).filter(|&p| live(p)).all(|p| a.used[p] <= b.used[p]);
        let faster = a.sum <= b.sum && (self.problem.goal == Goal::Sum || (a.stage <= b.stage && a.worst <= b.worst));
        let alike = a.start == b.start && from(a) == from(b) && (a.away, a.hosted) == (b.away, b.hosted);
        alike && smaller && faster
    }
}

//! The best cut, by exact dynamic programming over labels: partial answers, of which one that is nowhere better than another
//! is dropped.

use super::core::{Goal, Problem, Solution, Span, SpanClass, WhyEmpty};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Labels kept for one state; more would make the search slow, and dropping them is told.
pub const MAX_LABELS: usize = 4096;

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
    /// Items so far.
    items: usize,
    /// Where the last of them went.
    last: Option<StepId>,
}

/// Where an item went, and what was decided before: labels share what they have in common.
#[derive(Clone, Copy, Debug)]
struct Taken {
    device: usize,
    here: bool,
    before: Option<StepId>,
}

/// A place in the list of decisions of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct StepId(usize);

/// The best placement; `None` if nothing fits. O(items · devices · labels²).
#[must_use]
pub fn solve(problem: &Problem<'_>) -> Option<Solution> {
    solve_below(problem, f64::INFINITY).0
}

/// The best placement that costs less than `beat`, and whether nothing was left out: then `None` means that there is none.
/// Partial answers that cannot become one, even if memory were no matter, are not followed.
#[must_use]
pub fn solve_below(problem: &Problem<'_>, beat: f64) -> (Option<Solution>, bool) {
    let mut search = Search { problem, exact: true, beat, rest: problem.least_rest(), taken: Vec::new() };
    let first = Label {
        device: 0,
        start: 0,
        away: false,
        hosted: false,
        used: vec![0; problem.pools.len()],
        stage: 0.0,
        worst: 0.0,
        sum: 0.0,
        items: 0,
        last: None,
    };
    let mut labels = search.moved(vec![first]);
    for item in 0..problem.items.len() {
        let mut next = Vec::with_capacity(labels.len() * 2);
        labels.iter().for_each(|label| search.take(label, item, &mut next));
        labels = search.moved(next);
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
    (best.map(|label| search.solution(label)), search.exact)
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

struct Search<'p, 'a> {
    problem: &'p Problem<'a>,
    exact: bool,
    beat: f64,
    /// By item: what it and those after it cost at least.
    rest: Vec<f64>,
    /// Decisions of all labels that were followed.
    taken: Vec<Taken>,
}

impl Search<'_, '_> {
    /// The label with one item more on its device: its experts there or on the host.
    fn take(&mut self, label: &Label, item: usize, into: &mut Vec<Label>) {
        let problem = self.problem;
        let what = &problem.items[item];
        let choices = if what.experts > 0 && problem.experts_may_leave { &[true, false][..] } else { &[true][..] };
        for &here in choices {
            let mut next = label.clone();
            let stage = &problem.stages[label.device];
            let bytes = what.bytes_on(label.device);
            let own = if here { bytes.saturating_add(what.experts_on(label.device)) } else { bytes };
            stage.pools.iter().for_each(|&p| next.used[p] = next.used[p].saturating_add(own));
            if !here {
                problem.host.iter().for_each(|&p| next.used[p] = next.used[p].saturating_add(what.experts_on(0)));
            }
            let seconds = what.seconds_on(label.device, here);
            let before = self.device_before(label).filter(|&from| from != label.device);
            let carried = before.map_or(0.0, |from| problem.cut[from][label.device]);
            next.stage += seconds + carried;
            next.sum += seconds + carried;
            next.items += 1;
            next.away |= !here;
            next.hosted |= label.device == 0;
            if self.fits(&next) && self.may_win(&next) {
                next.last = Some(StepId(self.taken.len()));
                self.taken.push(Taken { device: label.device, here, before: label.last });
                into.push(next);
            }
        }
    }

    /// The device of the last item.
    fn device_before(&self, label: &Label) -> Option<usize> {
        label.last.map(|step| self.taken[step.0].device)
    }

    fn solution(&self, best: Label) -> Solution {
        let steps =
            std::iter::successors(best.last.map(|step| self.taken[step.0]), |t| t.before.map(|b| self.taken[b.0]));
        let mut path: Vec<Taken> = steps.collect();
        path.reverse();
        let mut at = 0;
        let ranges = (0..self.problem.stages.len()).map(|device| {
            let start = at;
            at += path[start..].iter().take_while(|t| t.device == device).count();
            start..at
        });
        Solution {
            ranges: ranges.collect(),
            experts_here: path.iter().map(|t| t.here).collect(),
            sum: best.sum,
            slowest: best.worst,
            used: best.used,
            exact: self.exact,
        }
    }

    /// Whether the label can still come to cost less than what is to be beaten.
    fn may_win(&self, label: &Label) -> bool {
        let sum = label.sum + self.rest[label.items];
        self.beat == f64::INFINITY || self.problem.goal.cost(sum, label.worst.max(label.stage)) < self.beat
    }

    fn fits(&self, label: &Label) -> bool {
        label.used.iter().zip(&self.problem.pools).all(|(used, free)| free.is_none_or(|free| *used <= free))
    }

    fn span(&self, label: &Label) -> Span {
        Span { device: label.device, start: label.start, end: label.items, away: label.away, hosted: label.hosted }
    }

    /// The label with its device done: the arena counted.
    fn close(&self, label: &Label) -> Option<Label> {
        let span = self.span(label);
        if span.is_empty() && self.problem.must_use.contains(&label.device) {
            return None;
        }
        let mut next = label.clone();
        next.worst = next.worst.max(next.stage);
        let arena = self.problem.arena.size(&span);
        let pools = &self.problem.stages[label.device].pools;
        pools.iter().for_each(|&p| next.used[p] = next.used[p].saturating_add(arena));
        self.fits(&next).then_some(next)
    }

    /// All labels, and what they become on later devices, without those that others beat.
    fn moved(&mut self, labels: Vec<Label>) -> Vec<Label> {
        let mut by_device: Vec<Vec<Label>> = vec![Vec::new(); self.problem.stages.len()];
        labels.into_iter().for_each(|l| by_device[l.device].push(l));
        for device in 0..by_device.len() {
            let kept = self.undominated(device, std::mem::take(&mut by_device[device]));
            if device + 1 < by_device.len() {
                let next = kept.iter().filter_map(|l| self.close(l)).map(|mut l| {
                    (l.device, l.start, l.stage, l.away) = (device + 1, l.items, 0.0, false);
                    l
                });
                by_device[device + 1].extend(next);
            }
            by_device[device] = kept;
        }
        by_device.into_iter().flatten().collect()
    }

    /// Those of one device that are worth following, in an order that depends on nothing but them.
    fn undominated(&mut self, device: usize, labels: Vec<Label>) -> Vec<Label> {
        let live = self.live(device);
        let mut rivals: BTreeMap<Rivals, Vec<Label>> = BTreeMap::new();
        labels.into_iter().for_each(|l| rivals.entry(self.rivals(&l)).or_default().push(l));
        let mut kept: Vec<Label> = Vec::new();
        for mut labels in rivals.into_values() {
            labels.sort_by(|a, b| by_times(a, b).then_with(|| by_bytes(&live, a, b)).then(a.start.cmp(&b.start)));
            let first = kept.len();
            for label in labels {
                if !kept[first..].iter().rev().any(|k| self.beats(&live, k, &label)) {
                    kept.push(label);
                }
            }
        }
        if kept.len() > MAX_LABELS {
            self.exact = false;
            kept.truncate(MAX_LABELS);
        }
        kept
    }

    /// Pools in which more may come to be used, and that have a limit.
    fn live(&self, device: usize) -> Vec<usize> {
        let problem = self.problem;
        let used_later = |p: usize| {
            let hosts = problem.experts_may_leave && problem.host.contains(&p);
            hosts || problem.stages[device..].iter().any(|s| s.pools.contains(&p))
        };
        (0..problem.pools.len()).filter(|&p| problem.pools[p].is_some() && used_later(p)).collect()
    }

    fn rivals(&self, label: &Label) -> Rivals {
        let is_empty = label.start == label.items;
        Rivals {
            class: self.problem.arena.class(&self.span(label)),
            away: label.away,
            hosted: label.hosted,
            is_empty,
            before: if is_empty { self.device_before(label) } else { None },
        }
    }

    /// Whether the first of two rivals is nowhere worse.
    fn beats(&self, live: &[usize], a: &Label, b: &Label) -> bool {
        let smaller = live.iter().all(|&p| a.used[p] <= b.used[p]);
        let faster = a.sum <= b.sum && (self.problem.goal == Goal::Sum || (a.stage <= b.stage && a.worst <= b.worst));
        smaller && faster
    }
}

/// What labels of one device and of equally many items must share for one to make the other needless: equal arenas, whatever
/// follows, and for a device without items the device from which results come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rivals {
    class: SpanClass,
    away: bool,
    hosted: bool,
    is_empty: bool,
    before: Option<usize>,
}

fn by_times(a: &Label, b: &Label) -> Ordering {
    a.sum.total_cmp(&b.sum).then(a.worst.total_cmp(&b.worst)).then(a.stage.total_cmp(&b.stage))
}

fn by_bytes(pools: &[usize], a: &Label, b: &Label) -> Ordering {
    pools.iter().map(|&p| a.used[p].cmp(&b.used[p])).fold(Ordering::Equal, Ordering::then)
}

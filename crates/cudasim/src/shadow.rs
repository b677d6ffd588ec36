//! Who touched which bytes of a piece of memory, as far as it still matters.
//!
//! Disjoint segments, each with its last write and the reads since. A write replaces what it covers, so there are about
//! as many segments as there are different ranges in use, however many operations ran.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::clock::{Clock, Epoch};

/// What an operation does to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Read,
    Write,
}

/// Who touches: when, knowing what, called how.
#[derive(Clone, Debug)]
pub struct Actor {
    /// None for the host, which needs no record: whatever is queued later knows of it.
    pub epoch: Option<Epoch>,
    pub clock: Clock,
    pub label: Arc<str>,
}

#[derive(Clone, Debug)]
struct Touch {
    epoch: Epoch,
    label: Arc<str>,
}

#[derive(Clone, Default, Debug)]
struct Segment {
    end: u64,
    write: Option<Touch>,
    reads: Vec<Touch>,
}

/// A touch that the new one is not ordered with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    pub label: Arc<str>,
    pub mode: Mode,
    pub start: u64,
    pub end: u64,
}

/// The touches of one piece of memory, by first address.
#[derive(Default, Debug)]
pub struct Shadow(BTreeMap<u64, Segment>);

impl Shadow {
    /// Records a touch of `start..end`; what it conflicts with. Linear in the segments touched.
    pub fn touch(&mut self, start: u64, end: u64, mode: Mode, actor: &Actor) -> Vec<Conflict> {
        let conflicts = self.conflicts(start, end, mode, actor);
        let Some(epoch) = actor.epoch else { return conflicts };
        let touch = Touch { epoch, label: Arc::clone(&actor.label) };
        self.split_at(start);
        self.split_at(end);
        match mode {
            Mode::Write => self.write(start, end, touch),
            Mode::Read => self.read(start, end, touch, &actor.clock),
        }
        conflicts
    }

    /// Starts of the segments that overlap a range.
    fn overlapping(&self, start: u64, end: u64) -> Vec<u64> {
        let before = self.0.range(..start).next_back().filter(|(_, s)| s.end > start).map(|(at, _)| *at);
        before.into_iter().chain(self.0.range(start..end).map(|(at, _)| *at)).collect()
    }

    fn conflicts(&self, start: u64, end: u64, mode: Mode, actor: &Actor) -> Vec<Conflict> {
        let mut found: Vec<Conflict> = Vec::new();
        for at in self.overlapping(start, end) {
            let segment = &self.0[&at];
            let writes = segment.write.iter().map(|touch| (touch, Mode::Write));
            let reads = segment.reads.iter().filter(|_| mode == Mode::Write).map(|touch| (touch, Mode::Read));
            let unknown = writes.chain(reads).filter(|(touch, _)| !actor.clock.covers(touch.epoch));
            for (touch, mode) in unknown {
                let (start, end) = (at.max(start), segment.end.min(end));
                match found.last_mut().filter(|c| c.label == touch.label && c.mode == mode && c.end == start) {
                    Some(last) => last.end = end,
                    None => found.push(Conflict { label: Arc::clone(&touch.label), mode, start, end }),
                }
            }
        }
        found
    }

    fn split_at(&mut self, place: u64) {
        let Some((_, segment)) = self.0.range_mut(..place).next_back().filter(|(_, s)| s.end > place) else { return };
        let upper = segment.clone();
        segment.end = place;
        self.0.insert(place, upper);
    }

    fn write(&mut self, start: u64, end: u64, touch: Touch) {
        for at in self.overlapping(start, end) {
            self.0.remove(&at);
        }
        self.0.insert(start, Segment { end, write: Some(touch), reads: Vec::new() });
    }

    fn read(&mut self, start: u64, end: u64, touch: Touch, clock: &Clock) {
        let mut gap = start;
        for at in self.overlapping(start, end) {
            if gap < at {
                self.0.insert(gap, Segment { end: at, write: None, reads: vec![touch.clone()] });
            }
            let Some(segment) = self.0.get_mut(&at) else { continue };
            // Who conflicts with an earlier read and knows of this one knows of the earlier one too.
            segment.reads.retain(|earlier| !clock.covers(earlier.epoch));
            segment.reads.push(touch.clone());
            gap = segment.end;
        }
        if gap < end {
            self.0.insert(gap, Segment { end, write: None, reads: vec![touch] });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;
    use crate::clock::Lane;
    use crate::rng::Rng;

    /// Every pair of touches compared: what the shadow must agree with.
    #[test]
    fn segments_find_what_comparing_every_pair_finds() {
        for seed in 0..300 {
            let mut rng = Rng::new(seed);
            let mut shadow = Shadow::default();
            let mut clocks = vec![Clock::default(); 3];
            let mut ticks = [0; 3];
            let mut log: Vec<(u64, u64, Mode, Epoch)> = Vec::new();
            for _ in 0..30 {
                let lane = rng.below(3);
                if rng.chance(30) {
                    let other = clocks[rng.below(3)].clone();
                    clocks[lane].join(&other);
                }
                let start = rng.below(20) as u64;
                let end = start + 1 + rng.below(10) as u64;
                let mode = if rng.chance(50) { Mode::Read } else { Mode::Write };
                ticks[lane] += 1;
                let epoch = Epoch { lane: Lane(lane as u32), tick: ticks[lane] };
                let actor = Actor { epoch: Some(epoch), clock: clocks[lane].clone(), label: Arc::from("touch") };
                let found = !shadow.touch(start, end, mode, &actor).is_empty();
                let clash = |(s, e, m, at): &(u64, u64, Mode, Epoch)| {
                    let writes = *m == Mode::Write || mode == Mode::Write;
                    *s < end && start < *e && writes && !clocks[lane].covers(*at)
                };
                let expected = log.iter().any(clash);
                assert_eq!(found, expected, "seed {seed}");
                if expected {
                    break;
                }
                log.push((start, end, mode, epoch));
                clocks[lane].set(epoch);
            }
        }
    }
}

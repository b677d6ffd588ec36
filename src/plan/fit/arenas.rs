//! What devices need to compute in: bounds that hold in every placement, and what was planned so far.

use super::core::{Arena, Span, SpanClass};
use super::costs::Costs;
use std::collections::BTreeMap;

/// Lengths of ranges that are told apart; longer ones are alike.
const LENGTHS: usize = 3;

/// Arenas by what they depend on: as planned for a placement of that kind before, else the least that they can be.
#[derive(Clone, Debug)]
pub(super) struct Arenas {
    /// By item: what a device with it has at once in any placement.
    floors: Vec<u64>,
    /// By item: items of one kind are alike in all that arenas depend on.
    kinds: Vec<u8>,
    /// By item: items of one kind are alike as weights that are sent elsewhere, too.
    weights: Vec<u8>,
    like: BTreeMap<Key, Learned>,
    exact: BTreeMap<Span, Learned>,
}

/// What a planned placement took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Learned {
    pub(super) bytes: u64,
    /// Whether that is all that such a placement takes, and not only the least.
    pub(super) is_whole: bool,
}

/// What an arena depends on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Key {
    device: usize,
    len: usize,
    is_first: bool,
    is_last: bool,
    away: bool,
    hosted: bool,
    /// Kinds of the first and the last item, and the set of all.
    ends: Option<(u8, u8)>,
    kinds: u64,
    /// For the device that weights of the host are sent to: the kinds of items there.
    sent: u64,
}

impl Arenas {
    pub(super) fn new(costs: &Costs) -> Self {
        let floors: Vec<u64> = costs.parts.iter().map(|p| p.floor).collect();
        let kinds = numbered(costs.parts.iter().map(|p| (p.floor, p.experts > 0)));
        let weights = numbered(costs.parts.iter().map(|p| (p.floor, p.bytes, p.experts)));
        Self { kinds, weights, floors, like: BTreeMap::new(), exact: BTreeMap::new() }
    }

    /// What no placement with such a range is below.
    pub(super) fn floor(&self, span: &Span) -> u64 {
        // Weights of the host may be sent elsewhere for the work.
        if span.device == 0 {
            return 0;
        }
        self.floors[span.start..span.end].iter().copied().max().unwrap_or(0)
    }

    /// Takes in what was planned. Whether that is news.
    pub(super) fn learn(&mut self, span: &Span, now: Learned) -> bool {
        let key = self.key(span);
        let Some(known) = self.like.get_mut(&key) else {
            self.like.insert(key, now);
            return true;
        };
        // What the host holds for others depends on where all layers are: the most seen so far. So does what was seen in
        // part, until all of it is seen.
        if span.device == 0 || !known.is_whole {
            let before = known.bytes;
            *known = Learned { bytes: before.max(now.bytes), is_whole: known.is_whole || now.is_whole };
            return known.bytes != before;
        }
        let before = self.exact.get(span).unwrap_or(known);
        if before.bytes == now.bytes || before.is_whole && !now.is_whole && now.bytes < before.bytes {
            return false;
        }
        self.exact.insert(span.clone(), now);
        true
    }

    fn key(&self, span: &Span) -> Key {
        let own = &self.kinds[span.start..span.end];
        let set = |kinds: &[u8]| kinds.iter().fold(0u64, |set, k| set | 1 << k);
        let is_sent_to = span.hosted && span.device == 1;
        Key {
            device: span.device,
            len: own.len().min(LENGTHS),
            is_first: span.start == 0,
            is_last: span.end == self.kinds.len(),
            away: span.away,
            hosted: span.hosted,
            ends: own.first().copied().zip(own.last().copied()),
            kinds: set(own),
            sent: if is_sent_to { set(&self.weights[..span.start]) } else { 0 },
        }
    }
}

/// Numbers for values, equal ones for equal values.
fn numbered<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<u8> {
    let mut known: Vec<T> = Vec::new();
    let number = |value: T| {
        let at = known.iter().position(|k| *k == value).unwrap_or_else(|| {
            known.push(value);
            known.len() - 1
        });
        // More kinds than bits share the last one; what then differs is learned range by range.
        at.min(63) as u8
    };
    values.map(number).collect()
}

impl Arena for Arenas {
    /// As planned, or the floor.
    fn size(&self, span: &Span) -> u64 {
        let exact = self.exact.get(span).or_else(|| self.like.get(&self.key(span)));
        exact.map_or_else(|| self.floor(span), |learned| learned.bytes)
    }

    /// Ranges that were learned one by one are told apart by their starts.
    fn class(&self, span: &Span) -> SpanClass {
        let Key { len, is_first, ends, kinds, sent, .. } = self.key(span);
        let starts_like = |s: &Span| (s.device, s.start) == (span.device, span.start) && s.end >= span.end;
        let start = if self.exact.keys().any(starts_like) { span.start as u64 + 1 } else { 0 };
        let first = ends.map_or(0, |(first, _)| u64::from(first) + 1);
        let shape = (first << 8) | (len as u64) << 1 | u64::from(is_first);
        SpanClass([start, shape, kinds, sent, self.floor(span)])
    }
}

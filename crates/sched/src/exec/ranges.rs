//! Sets of bytes as sorted, disjoint, half-open ranges.

use loadmaster_graph::Bytes;

/// A half-open range of byte offsets.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Span {
    /// The first byte.
    pub start: Bytes,
    /// Past the last byte.
    pub end: Bytes,
}

impl Span {
    /// `len` bytes from `start`; saturates.
    #[must_use]
    pub fn new(start: Bytes, len: Bytes) -> Self {
        Self { start, end: start.saturating_add(len) }
    }
    /// Whether it holds no byte.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }
    /// Whether two ranges have a byte in common.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end
    }
}

/// A set of bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct RangeSet {
    /// Sorted, neither overlapping nor touching.
    spans: Vec<Span>,
}

impl RangeSet {
    /// The ranges, sorted.
    pub(super) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Ranges that have a byte in common with, or touch, `span`.
    fn touching(&self, span: Span) -> std::ops::Range<usize> {
        let first = self.spans.partition_point(|s| s.end < span.start);
        let count = self.spans[first..].partition_point(|s| s.start <= span.end);
        first..first + count
    }

    /// Adds a range. O(log ranges) and what it moves.
    pub(super) fn insert(&mut self, span: Span) {
        if span.is_empty() {
            return;
        }
        let range = self.touching(span);
        let merged = self.spans[range.clone()]
            .iter()
            .fold(span, |sum, s| Span { start: sum.start.min(s.start), end: sum.end.max(s.end) });
        self.spans.splice(range, std::iter::once(merged));
    }

    /// Calls `each` for the parts of `span` that are not in the set.
    pub(super) fn missing(&self, span: Span, mut each: impl FnMut(Span)) {
        let mut start = span.start;
        for s in &self.spans[self.touching(span)] {
            if s.start > start {
                each(Span { start, end: s.start.min(span.end) });
            }
            start = start.max(s.end);
        }
        if start < span.end {
            each(Span { start, end: span.end });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_ranges_agrees_with_a_set_of_bytes() {
        let mut state = 1_u64;
        let mut next = |n: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % n
        };
        for _ in 0..300 {
            let mut set = RangeSet::default();
            let mut bytes = [false; 40];
            for _ in 0..next(12) {
                let span = Span::new(Bytes(next(36)), Bytes(next(5)));
                set.insert(span);
                bytes[span.start.get() as usize..span.end.get() as usize].fill(true);
            }
            let mut seen = [false; 40];
            for s in set.spans() {
                seen[s.start.get() as usize..s.end.get() as usize].fill(true);
            }
            assert_eq!(seen, bytes);
            assert!(set.spans().windows(2).all(|w| w[0].end < w[1].start));
            let span = Span::new(Bytes(next(30)), Bytes(next(10)));
            let mut missing = [false; 40];
            set.missing(span, |s| missing[s.start.get() as usize..s.end.get() as usize].fill(true));
            for (i, &missing) in missing.iter().enumerate() {
                let inside = (span.start.get()..span.end.get()).contains(&(i as u64));
                assert_eq!(missing, inside && !bytes[i], "byte {i} of {span:?} in {set:?}");
            }
        }
    }
}

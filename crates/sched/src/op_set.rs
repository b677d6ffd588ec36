//! Sets of operations: what a device supports.

use loadmaster_graph::Op;
use std::fmt;

/// A set of operations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct OpSet {
    /// Operations are numbered by a byte.
    words: [u64; 4],
}

impl OpSet {
    /// No operation.
    #[must_use]
    pub const fn none() -> Self {
        Self { words: [0; 4] }
    }
    /// Every operation.
    #[must_use]
    pub fn all() -> Self {
        Op::ALL.iter().copied().collect()
    }
    /// The set with an operation more.
    #[must_use]
    pub const fn with(mut self, op: Op) -> Self {
        let n = op as usize;
        self.words[n / 64] |= 1 << (n % 64);
        self
    }
    /// The set without an operation.
    #[must_use]
    pub const fn without(mut self, op: Op) -> Self {
        let n = op as usize;
        self.words[n / 64] &= !(1 << (n % 64));
        self
    }
    /// Whether it holds an operation.
    #[inline]
    #[must_use]
    pub const fn contains(self, op: Op) -> bool {
        let n = op as usize;
        self.words[n / 64] >> (n % 64) & 1 == 1
    }
    /// Its operations, in table order.
    pub fn iter(self) -> impl Iterator<Item = Op> {
        Op::ALL.iter().copied().filter(move |&op| self.contains(op))
    }
}

impl FromIterator<Op> for OpSet {
    fn from_iter<I: IntoIterator<Item = Op>>(ops: I) -> Self {
        ops.into_iter().fold(Self::none(), Self::with)
    }
}

impl fmt::Debug for OpSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::all() {
            return f.write_str("{all ops}");
        }
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_all_operations_loses_exactly_the_one_taken_out() {
        let set = OpSet::all().without(Op::Rope);
        assert!(!set.contains(Op::Rope));
        assert_eq!(set.iter().count(), Op::ALL.len() - 1);
        assert_eq!(set.with(Op::Rope), OpSet::all());
        assert_eq!(OpSet::none().iter().count(), 0);
    }
}

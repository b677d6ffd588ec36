//! A set of sequences.

use super::SequenceId;

/// Most sequences of a cache (llama.cpp's limit).
pub const MAX_SEQUENCES: u32 = 256;

const WORDS: usize = MAX_SEQUENCES as usize / 64;

/// A set of sequences below [`MAX_SEQUENCES`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SequenceSet([u64; WORDS]);

impl SequenceSet {
    /// Whether the sequence is in the set.
    #[inline]
    #[must_use]
    pub fn contains(&self, id: SequenceId) -> bool {
        self.0.get(id.index() / 64).is_some_and(|word| word >> (id.index() % 64) & 1 == 1)
    }

    /// Adds a sequence; one at or above the limit is not added.
    pub fn insert(&mut self, id: SequenceId) {
        if let Some(word) = self.0.get_mut(id.index() / 64) {
            *word |= 1 << (id.index() % 64);
        }
    }

    /// Takes a sequence out.
    pub fn remove(&mut self, id: SequenceId) {
        if let Some(word) = self.0.get_mut(id.index() / 64) {
            *word &= !(1 << (id.index() % 64));
        }
    }

    /// Whether the set is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Number of sequences.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.iter().map(|w| w.count_ones()).sum()
    }

    /// The sequences, in rising order.
    pub fn iter(&self) -> impl Iterator<Item = SequenceId> + '_ {
        let ones =
            |(i, &word): (usize, &u64)| (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| i * 64 + bit);
        self.0.iter().enumerate().flat_map(ones).map(SequenceId::new)
    }

    /// The only sequence, if there is just one.
    #[must_use]
    pub fn only(&self) -> Option<SequenceId> {
        if self.len() == 1 { self.iter().next() } else { None }
    }
}

impl FromIterator<SequenceId> for SequenceSet {
    fn from_iter<I: IntoIterator<Item = SequenceId>>(ids: I) -> Self {
        let mut set = Self::default();
        ids.into_iter().for_each(|id| set.insert(id));
        set
    }
}

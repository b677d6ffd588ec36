//! Sets of devices as bit masks: one word where a machine has up to 64 devices, more beyond.

use loadmaster_graph::DeviceId;
use smallvec::SmallVec;
use std::fmt;

const WORD: usize = u64::BITS as usize;

/// A set of devices of a machine.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeviceSet {
    /// Never ends in a zero word, so that equal sets compare equal.
    words: SmallVec<[u64; 1]>,
}

impl DeviceSet {
    /// No device.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
    /// Adds a device.
    pub fn insert(&mut self, device: DeviceId) {
        let word = device.index() / WORD;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (device.index() % WORD);
    }
    /// Whether it holds a device.
    #[must_use]
    pub fn contains(&self, device: DeviceId) -> bool {
        contains(&self.words, device)
    }
    /// The device of the highest priority.
    #[must_use]
    pub fn first(&self) -> Option<DeviceId> {
        first_common(&self.words, &self.words)
    }
    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }
    /// The number of devices.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|w| w.count_ones() as usize).sum()
    }
    /// Its devices, highest priority first.
    pub fn iter(&self) -> impl Iterator<Item = DeviceId> {
        bits(&self.words)
    }
}

impl FromIterator<DeviceId> for DeviceSet {
    fn from_iter<I: IntoIterator<Item = DeviceId>>(devices: I) -> Self {
        let mut set = Self::new();
        devices.into_iter().for_each(|d| set.insert(d));
        set
    }
}

impl fmt::Display for DeviceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("{")?;
        for (i, device) in self.iter().enumerate() {
            write!(f, "{}{device}", if i == 0 { "" } else { ", " })?;
        }
        f.write_str("}")
    }
}

impl fmt::Debug for DeviceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One row of a [`MaskTable`].
pub(crate) type Mask = [u64];

/// Whether a mask holds a device.
#[inline]
pub(crate) fn contains(mask: &Mask, device: DeviceId) -> bool {
    mask.get(device.index() / WORD).is_some_and(|w| w >> (device.index() % WORD) & 1 == 1)
}

/// The first device that both masks hold.
#[inline]
pub(crate) fn first_common(a: &Mask, b: &Mask) -> Option<DeviceId> {
    let word = a.iter().zip(b).position(|(a, b)| a & b != 0)?;
    Some(DeviceId::new(word * WORD + (a[word] & b[word]).trailing_zeros() as usize))
}

/// The devices of a mask, highest priority first.
pub(crate) fn bits(mask: &Mask) -> impl Iterator<Item = DeviceId> {
    mask.iter().enumerate().flat_map(|(i, &word)| {
        std::iter::successors((word != 0).then_some(word), |w| Some(w & (w - 1)).filter(|&w| w != 0))
            .map(move |w| DeviceId::new(i * WORD + w.trailing_zeros() as usize))
    })
}

/// Device masks of equal width, by row.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct MaskTable {
    words: usize,
    bits: Vec<u64>,
}

impl MaskTable {
    /// `rows` empty masks for `devices` devices.
    pub(crate) fn new(rows: usize, devices: usize) -> Self {
        let words = devices.div_ceil(WORD).max(1);
        Self { words, bits: vec![0; rows * words] }
    }
    /// A row for each set.
    pub(crate) fn of_sets<'a>(sets: impl ExactSizeIterator<Item = &'a DeviceSet>, devices: usize) -> Self {
        let mut table = Self::new(sets.len(), devices);
        for (row, set) in sets.enumerate() {
            set.iter().filter(|d| d.index() < devices).for_each(|d| table.insert(row, d));
        }
        table
    }
    /// Adds a device to a row.
    pub(crate) fn insert(&mut self, row: usize, device: DeviceId) {
        self.bits[row * self.words + device.index() / WORD] |= 1 << (device.index() % WORD);
    }
    /// A row.
    #[inline]
    pub(crate) fn row(&self, row: usize) -> &Mask {
        &self.bits[row * self.words..(row + 1) * self.words]
    }
    /// Whether a row holds a device.
    #[inline]
    pub(crate) fn contains(&self, row: usize, device: DeviceId) -> bool {
        self.bits[row * self.words + device.index() / WORD] >> (device.index() % WORD) & 1 == 1
    }
    /// Whether no row holds any device.
    pub(crate) fn is_empty(&self) -> bool {
        self.bits.iter().all(|&w| w == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ids: &[usize]) -> DeviceSet {
        ids.iter().map(|&i| DeviceId::new(i)).collect()
    }

    #[test]
    fn a_set_of_many_devices_lists_them_in_priority_order() {
        let many = set(&[200, 3, 64, 63, 0]);
        let listed: Vec<usize> = many.iter().map(DeviceId::index).collect();
        assert_eq!(listed, [0, 3, 63, 64, 200]);
        assert_eq!(many.len(), 5);
        assert!(many.contains(DeviceId::new(200)) && !many.contains(DeviceId::new(201)));
        assert!(!many.contains(DeviceId::new(4000)));
        assert_eq!(many.to_string(), "{dev0, dev3, dev63, dev64, dev200}");
    }

    #[test]
    fn the_first_common_device_is_found_across_words() {
        let table = MaskTable::of_sets([&set(&[1, 70, 130]), &set(&[2, 130]), &set(&[])].into_iter(), 140);
        assert_eq!(first_common(table.row(0), table.row(1)), Some(DeviceId::new(130)));
        assert_eq!(first_common(table.row(0), table.row(2)), None);
        assert!(table.contains(0, DeviceId::new(70)) && !table.contains(1, DeviceId::new(70)));
        assert_eq!(set(&[]).first(), None);
        assert_eq!(set(&[9, 77]).first(), Some(DeviceId::new(9)));
    }
}

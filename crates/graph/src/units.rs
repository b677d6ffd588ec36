//! Units as types: bytes, alignments and steps. Arithmetic is checked and named.

use std::fmt;
use std::iter::Sum;

/// A number of bytes or a byte offset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// The largest value.
    pub const MAX: Self = Self(u64::MAX);

    /// The plain number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
    /// A whole number of MiB.
    #[must_use]
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
    /// A whole number of GiB.
    #[must_use]
    pub const fn gib(n: u64) -> Self {
        Self(n << 30)
    }
    /// The sum, or `None` on overflow.
    #[inline]
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }
    /// The difference, or `None` if it would be negative.
    #[inline]
    #[must_use]
    pub fn checked_sub(self, other: Self) -> Option<Self> {
        self.0.checked_sub(other.0).map(Self)
    }
    /// The product, or `None` on overflow.
    #[inline]
    #[must_use]
    pub fn checked_mul(self, n: u64) -> Option<Self> {
        self.0.checked_mul(n).map(Self)
    }
    /// The difference, or zero if it would be negative.
    #[inline]
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
    /// The sum, or the largest value on overflow.
    #[inline]
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
    /// Rounded up to `align`, or `None` on overflow.
    #[inline]
    #[must_use]
    pub fn checked_align_up(self, align: Align) -> Option<Self> {
        let mask = align.get() - 1;
        self.0.checked_add(mask).map(|v| Self(v & !mask))
    }
}

impl fmt::Display for Bytes {
    /// Binary prefixes, two decimals: `1.50 MiB`; whole bytes below 1 KiB.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return f.pad(&format!("{} B", self.0));
        }
        let mut value = self.0 as f64 / 1024.0;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        f.pad(&format!("{value:.2} {}", UNITS[unit]))
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}B", self.0)
    }
}

impl Sum for Bytes {
    /// Saturates: sums of capped counts of checked sizes do not reach the limit.
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Self::saturating_add)
    }
}

/// An alignment: a power of two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Align(u64);

impl Align {
    /// No constraint.
    pub const ONE: Self = Self(1);

    /// `value` if it is a power of two.
    #[must_use]
    pub const fn new(value: u64) -> Option<Self> {
        if value.is_power_of_two() { Some(Self(value)) } else { None }
    }
    /// The plain number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for Align {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Debug for Align {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "align {}", self.0)
    }
}

/// A point in execution order. Lifetimes are half-open ranges of steps.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Step(pub u32);

impl Step {
    /// The plain number.
    #[inline]
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}", self.0)
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}

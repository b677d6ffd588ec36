//! Goals known to fail.

/// A table of 128-bit signatures of goals that cannot be reached. Newer entries overwrite older ones.
pub(super) struct Memo {
    slots: Vec<u128>,
}

impl Memo {
    const SLOTS: usize = 1 << 16;

    pub fn new() -> Self {
        Self { slots: vec![0; Self::SLOTS] }
    }

    pub fn clear(&mut self) {
        self.slots.fill(0);
    }

    pub fn insert(&mut self, signature: u128) {
        self.slots[signature as usize % Self::SLOTS] = signature;
    }

    pub fn contains(&self, signature: u128) -> bool {
        self.slots[signature as usize % Self::SLOTS] == signature
    }
}

/// Collects what a goal's outcome depends on, in any order.
#[derive(Clone, Copy)]
pub(super) struct Signature(u128);

impl Signature {
    pub fn new() -> Self {
        Self(0)
    }

    #[inline]
    pub fn add(&mut self, item: u32, (low, wait): (u64, u64)) {
        let a = mix(low.wrapping_add(u64::from(item).wrapping_mul(0x9E37_79B9_7F4A_7C15)));
        let b = mix(wait ^ a.rotate_left(23));
        self.0 = self.0.wrapping_add(u128::from(a) << 64 | u128::from(b));
    }

    /// Never 0.
    pub fn get(self) -> u128 {
        self.0 | 1
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
#[inline]
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

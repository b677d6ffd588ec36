//! Memory straight from the system: reserved address ranges that fault, and real bytes between guards.

use std::ptr;

/// Byte that fresh and freed memory is filled with: NaN in every float format, -1 as an index, and a scale of NaN in
/// every quantized block.
pub const POISON: u8 = 0xFF;

/// Byte of the guards around real memory.
const GUARD: u8 = 0xA5;

/// Bytes of each guard.
const GUARD_BYTES: usize = 4096;

/// A range of addresses that nobody can read or write: the device addresses that a backend sees.
#[derive(Debug)]
pub struct Reservation {
    base: usize,
    len: usize,
}

impl Reservation {
    /// Reserves `len` bytes of addresses; none if the system has none left.
    pub fn new(len: usize) -> Option<Reservation> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous mapping at an address of the system's choice touches no memory of ours.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, libc::PROT_NONE, flags, -1, 0) };
        (base != libc::MAP_FAILED).then_some(Reservation { base: base as usize, len })
    }

    /// The first address.
    pub fn base(&self) -> u64 {
        self.base as u64
    }

    /// Bytes reserved.
    pub fn size(&self) -> u64 {
        self.len as u64
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, whole, and never readable.
        unsafe { libc::munmap(self.base as *mut _, self.len) };
    }
}

/// Real bytes of an allocation, with guards on both sides, poisoned at birth and at death.
#[derive(Debug)]
pub struct Mapping {
    base: *mut u8,
    len: usize,
    whole: usize,
}

// SAFETY: the mapping is owned by whoever holds the value; the simulator's lock orders all access through it.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps `len` bytes and fills them with [`POISON`]; none if the system has no memory. Linear in `len`.
    pub fn new(len: usize) -> Option<Mapping> {
        let whole = len.checked_add(2 * GUARD_BYTES)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: an anonymous mapping at an address of the system's choice touches no memory of ours.
        let base = unsafe { libc::mmap(ptr::null_mut(), whole, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        let base = base.cast::<u8>();
        // SAFETY: `whole` bytes from `base` were just mapped for writing; the three parts lie inside.
        unsafe {
            ptr::write_bytes(base, GUARD, GUARD_BYTES);
            ptr::write_bytes(base.add(GUARD_BYTES), POISON, len);
            ptr::write_bytes(base.add(GUARD_BYTES + len), GUARD, GUARD_BYTES);
        }
        Some(Mapping { base, len, whole })
    }

    /// First byte after the lower guard.
    pub fn start(&self) -> *mut u8 {
        // SAFETY: the lower guard lies inside the mapping.
        unsafe { self.base.add(GUARD_BYTES) }
    }

    /// Fills the bytes with [`POISON`] again.
    pub fn poison(&mut self) {
        // SAFETY: `len` bytes from `start` are mapped for writing.
        unsafe { ptr::write_bytes(self.start(), POISON, self.len) };
    }

    /// Whether nothing wrote into the guards.
    pub fn guards_intact(&self) -> bool {
        let intact = |from: *const u8| {
            // SAFETY: both guards are mapped, initialised, and written by nobody while the simulator's lock is held.
            let guard = unsafe { std::slice::from_raw_parts(from, GUARD_BYTES) };
            guard.iter().all(|b| *b == GUARD)
        };
        // SAFETY: the upper guard begins inside the mapping.
        let upper = unsafe { self.start().add(self.len) };
        intact(self.base) && intact(upper)
    }

    /// Writes the guards again, after a report.
    pub fn mend(&mut self) {
        // SAFETY: both guards lie inside the mapping, which is writable.
        unsafe {
            ptr::write_bytes(self.base, GUARD, GUARD_BYTES);
            ptr::write_bytes(self.start().add(self.len), GUARD, GUARD_BYTES);
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this mapping is ours, whole; nobody keeps pointers into it beyond the value's life.
        unsafe { libc::munmap(self.base.cast(), self.whole) };
    }
}

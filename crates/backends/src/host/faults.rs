//! Faults on demand, for tests: what a device can be told to do wrong.

use crate::error::Fault;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Fails once, at the n-th time from when it was armed.
#[derive(Debug, Default)]
pub struct Trip {
    left: AtomicU64,
}

impl Trip {
    /// Lets the `n`-th time from now fail (1: the next). Zero disarms.
    pub fn arm(&self, n: u64) {
        self.left.store(n, Ordering::SeqCst);
    }
    /// Whether it is still waiting to fail.
    #[must_use]
    pub fn is_armed(&self) -> bool {
        self.left.load(Ordering::SeqCst) > 0
    }
    /// Counts one time; true if this one is to fail.
    pub(crate) fn trips(&self) -> bool {
        let before = self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        before == Ok(1)
    }
}

/// The faults of one device.
#[derive(Debug, Default)]
pub struct Faults {
    /// Allocations of memory.
    pub allocations: Trip,
    /// Copies, in streams and at once.
    pub copies: Trip,
    /// Nodes.
    pub kernels: Trip,
    /// Programs to compile.
    pub compiles: Trip,
    /// Streams and events to make.
    pub creations: Trip,
    /// The node at which the device dies.
    pub death: Trip,
    corrupt_peer: AtomicBool,
    dead: AtomicBool,
    stalled: Mutex<bool>,
    released: Condvar,
}

impl Faults {
    /// From now on direct copies to other devices deliver wrong bytes, and say nothing.
    pub fn corrupt_peer_copies(&self) {
        self.corrupt_peer.store(true, Ordering::SeqCst);
    }
    /// From now on direct copies deliver what they read.
    pub fn heal_peer_copies(&self) {
        self.corrupt_peer.store(false, Ordering::SeqCst);
    }
    /// The device is lost at once: queued commands are skipped, later calls fail, a stalled stream goes on to fail.
    pub fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.wake();
    }
    /// Lets all streams of the device stop before their next command until [`Self::release`].
    pub fn stall(&self) {
        *self.stalled.lock() = true;
    }
    /// Lets stalled streams go on.
    pub fn release(&self) {
        *self.stalled.lock() = false;
        self.wake();
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    pub(crate) fn corrupts_peer(&self) -> bool {
        self.corrupt_peer.load(Ordering::SeqCst)
    }

    /// Blocks while the device is stalled, unless it dies or `closed` is set.
    pub(crate) fn gate(&self, closed: &AtomicBool) {
        let mut stalled = self.stalled.lock();
        while *stalled && !self.is_dead() && !closed.load(Ordering::SeqCst) {
            self.released.wait(&mut stalled);
        }
    }

    /// Lets gates look again.
    pub(crate) fn wake(&self) {
        let _held = self.stalled.lock();
        self.released.notify_all();
    }

    /// The answer of a lost device.
    pub(crate) fn check_alive(&self) -> Result<(), Fault> {
        if self.is_dead() { Err(Self::lost()) } else { Ok(()) }
    }

    pub(crate) fn lost() -> Fault {
        Fault::Lost { why: "told to die".into() }
    }

    pub(crate) fn injected(call: &str) -> Fault {
        Fault::Driver { code: -1, reason: format!("this {call} was told to fail") }
    }
}

//! Counters of what a device did.

use loadmaster_graph::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number and bytes of copies of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopyCount {
    /// How many.
    pub copies: u64,
    /// How many bytes together.
    pub bytes: Bytes,
}

/// The way that bytes take.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Route {
    /// Host memory to the device.
    ToDevice,
    /// The device to host memory.
    ToHost,
    /// Within one memory.
    Local,
    /// Device to device, without the host.
    Peer,
}

/// What a device did since it was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DeviceStats {
    /// Buffers that are allocated now.
    pub live_buffers: u64,
    /// Bytes of these.
    pub live_bytes: Bytes,
    /// Most bytes that were ever allocated at once.
    pub peak_bytes: Bytes,
    /// Allocations that succeeded so far.
    pub allocations: u64,
    /// Copies from host memory, in streams or at once.
    pub to_device: CopyCount,
    /// Copies to host memory, in streams or at once.
    pub to_host: CopyCount,
    /// Copies within the device's memory (for a CPU: within host memory).
    pub local: CopyCount,
    /// Copies to or from another device's memory.
    pub peer: CopyCount,
    /// Nodes computed.
    pub kernels: u64,
    /// Programs compiled.
    pub compiled: u64,
    /// Events recorded.
    pub records: u64,
    /// Waits put into streams.
    pub waits: u64,
}

/// Where an allocation counts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Space {
    /// The device's own memory, of this capacity.
    Limited(Bytes),
    /// Host memory without a limit of its own.
    Unlimited,
}

/// The counters behind [`DeviceStats`].
#[derive(Debug, Default)]
pub(crate) struct Counters {
    live_buffers: AtomicU64,
    live_bytes: AtomicU64,
    peak_bytes: AtomicU64,
    own_bytes: AtomicU64,
    allocations: AtomicU64,
    copies: [AtomicU64; 4],
    copied: [AtomicU64; 4],
    pub(crate) kernels: AtomicU64,
    pub(crate) compiled: AtomicU64,
    pub(crate) records: AtomicU64,
    pub(crate) waits: AtomicU64,
}

impl Counters {
    /// Takes `bytes` of a space. Errors: how many are free, if that is fewer.
    pub(crate) fn take(&self, space: Space, bytes: Bytes) -> Result<(), Bytes> {
        if let Space::Limited(capacity) = space {
            let take = |used: u64| used.checked_add(bytes.get()).filter(|&sum| sum <= capacity.get());
            let taken = self.own_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
            taken.map_err(|used| Bytes(capacity.get().saturating_sub(used)))?;
        }
        self.allocations.fetch_add(1, Ordering::Relaxed);
        self.live_buffers.fetch_add(1, Ordering::Relaxed);
        let live = self.live_bytes.fetch_add(bytes.get(), Ordering::Relaxed) + bytes.get();
        self.peak_bytes.fetch_max(live, Ordering::Relaxed);
        Ok(())
    }

    /// Gives back what [`Self::take`] took.
    pub(crate) fn give_back(&self, space: Space, bytes: Bytes) {
        if let Space::Limited(_) = space {
            self.own_bytes.fetch_sub(bytes.get(), Ordering::Relaxed);
        }
        self.live_buffers.fetch_sub(1, Ordering::Relaxed);
        self.live_bytes.fetch_sub(bytes.get(), Ordering::Relaxed);
    }

    /// Bytes taken of the limited space.
    pub(crate) fn own_bytes(&self) -> Bytes {
        Bytes(self.own_bytes.load(Ordering::Relaxed))
    }

    pub(crate) fn copied(&self, route: Route, bytes: Bytes) {
        self.copies[route as usize].fetch_add(1, Ordering::Relaxed);
        self.copied[route as usize].fetch_add(bytes.get(), Ordering::Relaxed);
    }

    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }

    fn route(&self, route: Route) -> CopyCount {
        CopyCount {
            copies: self.copies[route as usize].load(Ordering::Relaxed),
            bytes: Bytes(self.copied[route as usize].load(Ordering::Relaxed)),
        }
    }

    pub(crate) fn snapshot(&self) -> DeviceStats {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        DeviceStats {
            live_buffers: get(&self.live_buffers),
            live_bytes: Bytes(get(&self.live_bytes)),
            peak_bytes: Bytes(get(&self.peak_bytes)),
            allocations: get(&self.allocations),
            to_device: self.route(Route::ToDevice),
            to_host: self.route(Route::ToHost),
            local: self.route(Route::Local),
            peer: self.route(Route::Peer),
            kernels: get(&self.kernels),
            compiled: get(&self.compiled),
            records: get(&self.records),
            waits: get(&self.waits),
        }
    }
}

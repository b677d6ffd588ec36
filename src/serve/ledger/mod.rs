//! The ledger: who holds how many bytes of which pool, by exact plans. Pure bookkeeping: no device is asked.
//!
//! What a model holds is what its plan needs, which is what it takes to the byte. So whether another one fits is a
//! question to the ledger, and so is who must go for it ([`Ledger::who_must_go`]): a query that changes nothing.

mod subsets;

use crate::engine::DeviceNeed;
use loadmaster_graph::{Bytes, DeviceId, IdVec, PoolId};
use loadmaster_sched::Machine;
use std::collections::BTreeMap;
use subsets::{Candidate, Subsets};

/// Sets that are looked at before the query gives up: more than sixteen models have.
const MOST_SETS: usize = 1 << 16;

/// What a model holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// By device of the service's machine.
    pub needs: IdVec<DeviceId, DeviceNeed>,
    /// Bytes by pool of the service's machine.
    pub pools: IdVec<PoolId, Bytes>,
}

impl Holding {
    /// Of needs by device. The devices are those of `machine`, in its order.
    #[must_use]
    pub fn new(machine: &Machine, needs: IdVec<DeviceId, DeviceNeed>) -> Self {
        let mut pools = IdVec::filled(Bytes::ZERO, machine.pools().len());
        for (device, need) in needs.iter() {
            let held: &mut Bytes = &mut pools[machine.compute_type(device).pool];
            *held = held.saturating_add(need.total());
        }
        Self { needs, pools }
    }

    /// All of it.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.pools.values().copied().sum()
    }
}

/// A model that may go.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Idle {
    /// Its id.
    pub id: String,
    /// Milliseconds since its last request.
    pub idle_ms: u64,
}

/// The ledger.
#[derive(Clone, Debug)]
pub struct Ledger {
    capacity: IdVec<PoolId, Option<Bytes>>,
    held: BTreeMap<String, Holding>,
}

impl Ledger {
    /// Nobody holds anything of the machine's pools.
    #[must_use]
    pub fn new(machine: &Machine) -> Self {
        Self { capacity: machine.pools().values().map(|p| p.capacity).collect(), held: BTreeMap::new() }
    }

    /// What a pool has; `None`: not known, and never an obstacle.
    #[must_use]
    pub fn capacity(&self, pool: PoolId) -> Option<Bytes> {
        self.capacity[pool]
    }

    /// What is held of a pool.
    #[must_use]
    pub fn used(&self, pool: PoolId) -> Bytes {
        self.held.values().map(|h| h.pools[pool]).sum()
    }

    /// What is left of each pool once `gone` are gone.
    #[must_use]
    pub fn free_without(&self, gone: &[String]) -> IdVec<PoolId, Option<Bytes>> {
        let stays = || self.held.iter().filter(|(id, _)| !gone.contains(id)).map(|(_, h)| h);
        let free = |(pool, capacity): (PoolId, &Option<Bytes>)| {
            capacity.map(|c| c.saturating_sub(stays().map(|h| h.pools[pool]).sum()))
        };
        self.capacity.iter().map(free).collect()
    }

    /// Who holds what, by id.
    #[must_use]
    pub fn holdings(&self) -> &BTreeMap<String, Holding> {
        &self.held
    }

    /// Whether a holding fits beside the others.
    #[must_use]
    pub fn fits(&self, holding: &Holding) -> bool {
        let free = self.free_without(&[]);
        holding.pools.iter().all(|(pool, need)| free[pool].is_none_or(|free| *need <= free))
    }

    /// Enters a holding; one of the same id is replaced. Answers whether it was entered: not if it does not fit.
    #[must_use]
    pub fn enter(&mut self, id: &str, holding: Holding) -> bool {
        let before = self.held.remove(id);
        let fits = self.fits(&holding);
        if let Some(entered) = if fits { Some(holding) } else { before } {
            self.held.insert(id.to_owned(), entered);
        }
        fits
    }

    /// Strikes a holding out.
    pub fn strike(&mut self, id: &str) {
        self.held.remove(id);
    }

    /// Of the sets of `idle` models that make room, the one that holds the fewest bytes; of several such, the one that
    /// was idle for longest, all times added; then the one whose first models come first. `fits` says whether there is
    /// room with that much free in each pool, and must not say no where it said yes with less. The empty set, if there
    /// is room already; `None`, if there is none even without all of them.
    ///
    /// Pure. Calls `fits` for sets in the order of their bytes until one makes room: 2ⁿ times at most for n models.
    pub fn who_must_go(
        &self,
        idle: &[Idle],
        mut fits: impl FnMut(&IdVec<PoolId, Option<Bytes>>) -> bool,
    ) -> Option<Vec<String>> {
        let known: Vec<(&Idle, Bytes)> = idle
            .iter()
            .filter_map(|i| Some((i, self.held.get(&i.id)?.total())))
            .filter(|(_, b)| *b > Bytes::ZERO)
            .collect();
        let ids = |of: &[usize]| of.iter().map(|&i| known[i].0.id.clone()).collect::<Vec<_>>();
        let all: Vec<usize> = (0..known.len()).collect();
        if !fits(&self.free_without(&ids(&all))) {
            return None;
        }
        let candidate = |(i, b): &(&Idle, Bytes)| Candidate { bytes: b.get(), idle: i.idle_ms };
        let candidates: Vec<Candidate> = known.iter().map(candidate).collect();
        let found =
            Subsets::new(candidates).take(MOST_SETS).map(|set| ids(&set)).find(|set| fits(&self.free_without(set)));
        // Only beyond 16 models can the sets run out: then all of them go.
        Some(found.unwrap_or_else(|| ids(&all)))
    }
}

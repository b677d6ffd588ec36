//! Plans that a graph allocator has made, by structural key.

use crate::key::GraphKey;
use crate::lowered::{AllocGraph, Structure};
use crate::mismatch::Mismatch;
use crate::plan::AllocPlan;
use std::sync::Arc;

/// Plans that are kept; the one that was not used for longest goes first.
pub(crate) const MAX_PLANS: usize = 64;
/// Keys that are remembered for one plan: graphs of smaller sizes that were found to fit.
const MAX_KEYS: usize = 32;

#[derive(Debug, Default)]
pub(crate) struct Reservations {
    entries: Vec<Entry>,
    clock: u64,
}

#[derive(Debug)]
struct Entry {
    /// The first is the key of the graph that was planned.
    keys: Vec<GraphKey>,
    structure: Structure,
    plan: Arc<AllocPlan>,
    used: u64,
}

impl Reservations {
    /// Keeps a plan. One with the same key is replaced.
    pub(crate) fn insert(&mut self, graph: &AllocGraph<'_>, plan: Arc<AllocPlan>) {
        let key = graph.key();
        for entry in &mut self.entries {
            entry.keys.retain(|&k| k != key);
        }
        self.entries.retain(|e| !e.keys.is_empty());
        if self.entries.len() >= MAX_PLANS {
            self.forget_oldest();
        }
        let used = self.tick();
        self.entries.push(Entry { keys: vec![key], structure: graph.structure().clone(), plan, used });
    }

    /// The plan for a key.
    pub(crate) fn get(&mut self, key: GraphKey) -> Option<Arc<AllocPlan>> {
        let used = self.tick();
        let entry = self.entries.iter_mut().rev().find(|e| e.keys.contains(&key))?;
        entry.used = used;
        Some(Arc::clone(&entry.plan))
    }

    /// A plan that fits, according to `why_not`; the key is remembered with it. Otherwise the reason why the plan that
    /// comes closest does not fit: one whose overlay was built by the same steps, or else the one used last.
    pub(crate) fn find_fitting(
        &mut self,
        key: GraphKey,
        why_not: impl Fn(&Structure, &AllocPlan) -> Option<Mismatch>,
    ) -> Result<Arc<AllocPlan>, Mismatch> {
        let used = self.tick();
        let mut closest: Option<(bool, u64, Mismatch)> = None;
        for entry in self.entries.iter_mut().rev() {
            let Some(why) = why_not(&entry.structure, &entry.plan) else {
                entry.remember(key);
                entry.used = used;
                return Ok(Arc::clone(&entry.plan));
            };
            let (alike, last) = (entry.keys[0].same_overlay(key), entry.used);
            if closest.as_ref().is_none_or(|&(a, u, _)| (alike, last) > (a, u)) {
                closest = Some((alike, last, why));
            }
        }
        Err(closest.map_or(Mismatch::NothingReserved, |(_, _, why)| why))
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn forget_oldest(&mut self) {
        if let Some((oldest, _)) = self.entries.iter().enumerate().min_by_key(|(_, e)| e.used) {
            self.entries.remove(oldest);
        }
    }
}

impl Entry {
    fn remember(&mut self, key: GraphKey) {
        if self.keys.len() >= MAX_KEYS {
            self.keys.remove(1);
        }
        self.keys.push(key);
    }
}

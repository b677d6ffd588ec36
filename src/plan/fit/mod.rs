//! The best placement of a model: over real bytes and predicted times, checked by the planner that runs it.

#[cfg(test)]
mod arena_classes;
mod arenas;
pub mod core;
pub mod costs;
mod floors;
mod labels;
pub mod pipeline;
mod search;
pub mod speeds;
mod stages;

use self::core::WhyEmpty;
use super::{Choices, ChoicesError};
use crate::engine::{EngineError, Model, Outlook, Prepared, Room, prepare, prepare_while, rooms};
use loadmaster_alloc::{AllocError, Placer};
use loadmaster_graph::{Bytes, DeviceId, IdVec, PoolId};
use loadmaster_sched::exec::PathTable;
use loadmaster_sched::{Machine, SchedError};

pub use search::Judged;

/// What is to be fast, or small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// One token after another.
    Decode,
    /// Prompts.
    Prefill,
    /// The fullest device has the most room left.
    Memory,
}

/// Where to place a model.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The model.
    pub model: &'a Model,
    /// The machine.
    pub machine: &'a Machine,
    /// Speeds, by device.
    pub speeds: &'a [speeds::Speed],
    /// How tensors are placed.
    pub placer: &'a Placer,
    /// Kept free in every pool.
    pub reserve: Bytes,
}

/// A chosen placement.
#[derive(Clone, Debug)]
pub struct Fitted {
    /// How to get it.
    pub choices: Choices,
    /// What it takes.
    pub prepared: Prepared,
    /// What was minimised: predicted seconds, or for memory the share of the fullest device.
    pub cost: f64,
    /// By how much a better one could beat it at most, as a share of its cost; `None`: the search left something out.
    pub gap: Option<f64>,
    /// Placements that were planned to find it.
    pub planned: usize,
    /// Devices without layers, and why.
    pub empty: Vec<(DeviceId, WhyEmpty)>,
}

/// Why nothing was chosen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FitError {
    /// Choices that make no sense.
    #[error(transparent)]
    Choices(#[from] ChoicesError),
    /// The model cannot be prepared.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// No placement fits.
    #[error("no placement over {devices} devices fits")]
    NoneFits {
        /// Devices.
        devices: usize,
    },
}

/// A tensor that is longer than any buffer of its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeverFits<'e> {
    /// The device's kind of memory.
    pub buffer_type: &'e str,
    /// The tensor's name.
    pub tensor: &'e str,
    /// Its bytes.
    pub needed: Bytes,
    /// The longest buffer.
    pub largest: Bytes,
}

impl FitError {
    /// The tensor that no buffer is long enough for, if that is what is wrong.
    #[must_use]
    pub fn never_fits(&self) -> Option<NeverFits<'_>> {
        let Self::Engine(EngineError::Plan(SchedError::Alloc(error))) = self else { return None };
        let AllocError::NeverFits { tensor, buffer_type, needed, largest } = error else { return None };
        Some(NeverFits { buffer_type, tensor: &tensor.name, needed: *needed, largest: *largest })
    }
}

impl Request<'_> {
    /// Prepares the model as chosen.
    pub fn prepare(&self, choices: &Choices) -> Result<Prepared, FitError> {
        let settings = choices.settings(&self.model.params, self.machine, self.placer.clone())?;
        Ok(prepare(self.model, self.machine, &settings)?)
    }

    /// Prepares the model as chosen until it is all known, or what is known of it no longer goes on.
    pub(super) fn prepare_while(
        &self,
        choices: &Choices,
        goes_on: impl Fn(&Prepared) -> bool,
    ) -> Result<Outlook, FitError> {
        let settings = choices.settings(&self.model.params, self.machine, self.placer.clone())?;
        Ok(prepare_while(self.model, self.machine, &settings, &PathTable::expected(self.machine), &goes_on)?)
    }

    /// Whether nothing is missing.
    #[must_use]
    pub(super) fn fits(&self, prepared: &Prepared) -> bool {
        self.short(prepared) == Bytes::ZERO
    }

    /// Whether nothing would be missing if the graphs were placed as well as can be.
    pub(super) fn might_fit(&self, prepared: &Prepared) -> bool {
        self.short_of(&self.least(prepared)) == Bytes::ZERO
    }

    /// Bytes that are missing, all pools together.
    #[must_use]
    pub fn short(&self, prepared: &Prepared) -> Bytes {
        self.short_of(&prepared.pools(self.machine))
    }

    /// What each pool holds at least, however the graphs are placed in their arenas.
    pub(super) fn least(&self, prepared: &Prepared) -> IdVec<PoolId, Bytes> {
        let mut least = prepared.clone();
        least.devices.values_mut().for_each(|need| need.compute = need.bound.min(need.compute));
        least.pools(self.machine)
    }

    /// Bytes that are missing of a use of the pools.
    pub(super) fn short_of(&self, used: &IdVec<PoolId, Bytes>) -> Bytes {
        let rooms = rooms(self.machine, used, self.reserve);
        rooms.values().map(Room::missing).fold(Bytes::ZERO, Bytes::saturating_add)
    }
}

//! What handlers and the threads of models share.
//!
//! Locks, in the order in which they are taken: the admission (whoever loads or unloads), the models, the ledger. All
//! others (events, counters, history, traces, mailboxes) are leafs: nothing is locked while one of them is held.

use super::config::Config;
use super::events::{EventKind, Events};
use super::history::History;
use super::ledger::Ledger;
use super::requests::Requests;
use super::stats::Stats;
use crate::engine::EngineError;
use loadmaster_backends::Device;
use loadmaster_graph::{DeviceId, IdVec};
use loadmaster_sched::Machine;
use loadmaster_sched::exec::{PathReport, Runtime};
use parking_lot::Mutex;
use serde_json::json;
use std::sync::Arc;
use std::time::Instant;

/// Shared by everything.
pub struct Core {
    /// How the service is set up.
    pub config: Config,
    /// The machine.
    pub machine: Machine,
    /// Its devices, open.
    pub devices: IdVec<DeviceId, Arc<dyn Device>>,
    /// How bytes travel between them.
    pub paths: Vec<PathReport>,
    /// Who holds what.
    pub ledger: Mutex<Ledger>,
    /// What happened.
    pub events: Events,
    /// Counters.
    pub stats: Stats,
    /// What was held when.
    pub history: History,
    /// The last requests, and what queues did for them.
    pub requests: Requests,
}

impl Core {
    /// Tests the paths between the devices, which are those of `machine`, in its order.
    ///
    /// Errors: a device that fails.
    pub fn new(
        config: Config,
        machine: Machine,
        devices: Vec<Arc<dyn Device>>,
        requests: Requests,
    ) -> Result<Self, EngineError> {
        let paths = Runtime::new(machine.clone(), devices.clone())?.path_report().to_vec();
        let events = Events::new(Instant::now());
        let name = |d: DeviceId| machine.device(d).name.to_string();
        for path in &paths {
            let said =
                json!({ "from": name(path.from), "to": name(path.to), "path": path.path.to_string(), "why": path.why });
            events.tell(EventKind::CopyPath, said);
        }
        let ledger = Mutex::new(Ledger::new(&machine));
        let (stats, history) = (Stats::default(), History::default());
        Ok(Self { config, machine, devices: IdVec::from_vec(devices), paths, ledger, events, stats, history, requests })
    }

    /// Whether a device answers.
    #[must_use]
    pub fn is_alive(&self, device: DeviceId) -> bool {
        self.devices[device].health().is_ok()
    }

    /// Notes what every device holds now.
    pub(super) fn note_history(&self, cause: String) {
        let used = {
            let ledger = self.ledger.lock();
            let held = |id: DeviceId| ledger.holdings().values().map(|h| h.needs[id].total()).sum();
            self.machine.devices().iter().map(|(id, d)| (d.name.clone(), held(id))).collect()
        };
        self.history.push(self.events.now_us(), cause, used);
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Core({} devices)", self.devices.len())
    }
}

//! The service: its machine, its models, and who may be loaded. Everything here may block; handlers call what loads or
//! plans on threads that may.

use super::config::Config;
use super::core::Core;
use super::error::ApiError;
use super::events::EventKind;
use super::ledger::{Holding, Idle};
use super::model::{Entry, Phase, Wish};
use super::opening::{self, LoadSpec};
use super::picture::Picture;
use super::placing::{Placing, Question};
use super::replacing;
use super::requests::Requests;
use super::residual::Residual;
use super::worker::{End, Worker};
use crate::engine::{Engine, EngineError, Reserve};
use loadmaster_backends::Device;
use loadmaster_graph::{Bytes, IdVec, PoolId};
use loadmaster_sched::Machine;
use parking_lot::Mutex;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc;
use tokio::sync::{Semaphore, watch};

/// The service.
pub struct ServiceState {
    /// What everything shares.
    pub core: Arc<Core>,
    /// Held by whoever loads or unloads.
    admission: Mutex<()>,
    models: Mutex<BTreeMap<String, Arc<Entry>>>,
    ending: watch::Sender<bool>,
    /// Plans that may be made at the same time.
    pub(super) planners: Arc<Semaphore>,
    /// Connections that may follow events.
    pub(super) followers: Arc<Semaphore>,
}

impl ServiceState {
    /// A service on open devices: those of `machine`, in its order. No model is loaded. Errors: a device that fails.
    pub fn new(config: Config, machine: Machine, devices: Vec<Arc<dyn Device>>) -> Result<Arc<Self>, EngineError> {
        Self::with_requests(config, machine, devices, Requests::default())
    }

    /// The same, with a log of queues that somebody fills. Errors: a device that fails.
    pub fn with_requests(
        config: Config,
        machine: Machine,
        devices: Vec<Arc<dyn Device>>,
        requests: Requests,
    ) -> Result<Arc<Self>, EngineError> {
        let planners = Arc::new(Semaphore::new(config.limits.planners));
        let followers = Arc::new(Semaphore::new(config.limits.followers));
        // Plans are for the GPUs that are there.
        let machine = machine.with_gpus(devices.iter().map(|d| d.gpu()));
        let core = Arc::new(Core::new(config, machine, devices, requests)?);
        let (admission, models, ending) = (Mutex::default(), Mutex::default(), watch::Sender::new(false));
        Ok(Arc::new(Self { core, admission, models, ending, planners, followers }))
    }

    /// The models, by id.
    #[must_use]
    pub fn models(&self) -> Vec<Arc<Entry>> {
        self.models.lock().values().cloned().collect()
    }

    /// The model of that id; no id: the only one. Errors: 404.
    pub fn model(&self, id: Option<&str>) -> Result<Arc<Entry>, ApiError> {
        let models = self.models.lock();
        let loaded = || models.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        match id {
            Some(id) => models.get(id).cloned().ok_or_else(|| {
                let message = format!("the model `{id}` is not loaded; there are: {}", loaded());
                ApiError { field: Some("model".to_owned()), ..ApiError::not_found("model_not_found", message) }
            }),
            None => match models.len() {
                1 => models.values().next().cloned().ok_or_else(|| ApiError::internal("no model")),
                0 => Err(ApiError::not_found("model_not_found", "no model is loaded")),
                _ => Err(ApiError::field("model", format!("say which model: {}", loaded()))),
            },
        }
    }

    /// Whether it is ready: some model answers, and the service is not ending.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        !*self.ending.borrow() && self.models().iter().any(|m| m.phase() == Phase::Ready)
    }

    /// Loads a model. Blocks until it answers.
    ///
    /// Errors: 400 what makes no sense, 404 no such file, 409 the id is taken, 503 no room, or a device that fails.
    pub fn load(&self, spec: &LoadSpec) -> Result<Arc<Entry>, ApiError> {
        opening::check_id(&spec.id)?;
        let opened = opening::open(&self.core.config, spec)?;
        let choices = spec.choices(&self.core.config, &opened.model)?;
        let _admission = self.admission.lock();
        self.may_load(&spec.id)?;
        let question = Question { model: &opened.model, choices: &choices, elsewhere: spec.elsewhere() };
        let placing = self.admit(&spec.id, &question, spec.evict.unwrap_or(self.core.config.evict))?;
        let holding =
            Holding::new(&self.core.machine, placing.residual.lift(&self.core.machine, &placing.prepared.devices));
        let (needed, total) = (holding.clone(), holding.total());
        if !self.core.ledger.lock().enter(&spec.id, holding) {
            let message = "the room was taken by a model that lost a device; try again";
            return Err(ApiError::unavailable("room_taken", message));
        }
        self.tell_admission(&spec.id, &needed);
        let size = opening::size_of(&placing.settings, &placing.prepared);
        let queue = self.core.config.limits.queue;
        let wish = Wish { choices, elsewhere: spec.elsewhere() };
        let entry = Arc::new(Entry::new(spec.id.clone(), opened, wish, size, queue, spec.pin));
        self.models.lock().insert(spec.id.clone(), Arc::clone(&entry));
        if let Err(error) = self.start(&entry, placing) {
            self.forget(&entry);
            self.core.events.tell(EventKind::Failure, json!({ "model": entry.id, "why": error.message }));
            return Err(error);
        }
        self.core.events.tell(EventKind::Load, json!({ "model": entry.id, "bytes": total.get() }));
        self.core.note_history(format!("load of {}", entry.id));
        Ok(entry)
    }

    fn may_load(&self, id: &str) -> Result<(), ApiError> {
        if *self.ending.borrow() {
            return Err(ApiError::unavailable("ending", "the service is ending"));
        }
        let models = self.models.lock();
        if models.contains_key(id) {
            return Err(ApiError::conflict(
                "model_exists",
                format!("a model `{id}` is loaded already; unload it first"),
            ));
        }
        let limit = self.core.config.limits.models;
        if models.len() >= limit {
            let message = format!("{limit} models are loaded, which is the limit; unload one first");
            return Err(ApiError::unavailable("too_many_models", message).with("limit", limit));
        }
        Ok(())
    }

    /// A place for the model, for which idle models may have had to go.
    fn admit(&self, id: &str, question: &Question<'_>, evict: bool) -> Result<Placing, ApiError> {
        let (whole, free) = (&self.core.machine, self.core.ledger.lock().free_without(&[]));
        let now = self.residual(&free)?;
        if let Some(placing) = question.place(now.clone())? {
            return Ok(placing);
        }
        let refusal = || {
            let error = question.too_small(whole, &now);
            self.core
                .events
                .tell(EventKind::Admission, json!({ "model": id, "admitted": false, "why": error.message }));
            error
        };
        if !evict {
            return Err(refusal());
        }
        let Some(victims) = self.victims(question) else { return Err(refusal()) };
        for victim in &victims {
            self.evict(victim, id)?;
        }
        let free = self.core.ledger.lock().free_without(&[]);
        question.place(self.residual(&free)?)?.ok_or_else(refusal)
    }

    /// Who must go so that the model fits. Changes nothing.
    fn victims(&self, question: &Question<'_>) -> Option<Vec<String>> {
        let idle: Vec<Idle> = self
            .models()
            .iter()
            .filter(|m| !m.is_pinned())
            .filter_map(|m| Some(Idle { id: m.id.clone(), idle_ms: m.mailbox.idle()?.as_millis() as u64 }))
            .collect();
        let ledger = self.core.ledger.lock().clone();
        let fits = |free: &IdVec<PoolId, Option<Bytes>>| {
            self.residual(free).is_ok_and(|r| question.place(r).is_ok_and(|p| p.is_some()))
        };
        ledger.who_must_go(&idle, fits)
    }

    fn evict(&self, victim: &str, for_whom: &str) -> Result<(), ApiError> {
        let entry = self.model(Some(victim))?;
        if !entry.mailbox.close_if_idle() {
            let message = format!("the model `{victim}` would have to go, but a request has just come for it");
            return Err(ApiError::busy(message, 1));
        }
        self.remove(&entry);
        self.core.events.tell(EventKind::Eviction, json!({ "model": victim, "for": for_whom }));
        Ok(())
    }

    fn residual(&self, free: &IdVec<PoolId, Option<Bytes>>) -> Result<Residual, ApiError> {
        residual(&self.core, free)
    }

    fn tell_admission(&self, id: &str, holding: &Holding) {
        let needs = holding.needs.iter().filter(|(_, n)| n.total() > Bytes::ZERO);
        let needs: Vec<_> = needs
            .map(|(d, n)| json!({ "device": &*self.core.machine.device(d).name, "bytes": n.total().get() }))
            .collect();
        self.core.events.tell(EventKind::Admission, json!({ "model": id, "admitted": true, "devices": needs }));
    }

    /// Loads the model on a thread of its own, and waits until it has.
    fn start(&self, entry: &Arc<Entry>, placing: Placing) -> Result<(), ApiError> {
        let (core, own) = (Arc::clone(&self.core), Arc::clone(entry));
        let (said, heard) = mpsc::channel();
        let body = move || {
            match build(&core, &own, placing) {
                Ok(engine) => {
                    own.set_phase(Phase::Ready);
                    let worker = Worker::new(Arc::clone(&core), Arc::clone(&own), engine);
                    // Whoever loads waits for this.
                    let _ = said.send(Ok(()));
                    replacing::work(&core, &own, worker);
                }
                Err(error) => {
                    own.set_phase(Phase::Failed);
                    let _ = said.send(Err(error));
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("model {}", entry.id)).spawn(body);
        let thread =
            thread.map_err(|e| ApiError::unavailable("no_thread", format!("no thread could be started: {e}")))?;
        entry.set_thread(thread);
        let failed = || ApiError::internal(format!("the thread of the model `{}` ended while it loaded", entry.id));
        heard.recv().unwrap_or_else(|_| Err(failed()))
    }

    /// Unloads a model. `end` says what becomes of its requests. Blocks until it is gone. Errors: 404.
    pub fn unload(&self, id: &str, end: End) -> Result<(), ApiError> {
        let entry = self.model(Some(id))?;
        entry.mailbox.close(end);
        entry.set_phase(Phase::Unloading);
        // Others may load meanwhile, beside what this one still holds.
        entry.join();
        let _admission = self.admission.lock();
        self.remove(&entry);
        self.core.events.tell(EventKind::Unload, json!({ "model": id }));
        self.core.note_history(format!("unload of {id}"));
        Ok(())
    }

    /// Waits for a closed model's thread, and forgets it.
    fn remove(&self, entry: &Arc<Entry>) {
        entry.set_phase(Phase::Unloading);
        entry.join();
        self.forget(entry);
    }

    fn forget(&self, entry: &Arc<Entry>) {
        entry.mailbox.close(End::Now);
        entry.join();
        let mut models = self.models.lock();
        // Another of the same id may have come since.
        if models.get(&entry.id).is_some_and(|known| Arc::ptr_eq(known, entry)) {
            models.remove(&entry.id);
            self.core.ledger.lock().strike(&entry.id);
        }
    }

    /// Pins a model, or lets it go for others. Errors: 404.
    pub fn pin(&self, id: &str, pinned: bool) -> Result<(), ApiError> {
        self.model(Some(id))?.pin(pinned);
        Ok(())
    }

    /// Takes no more requests and loads no more models; what runs goes on.
    pub fn begin_end(&self) {
        self.ending.send_replace(true);
        self.models().iter().for_each(|m| m.mailbox.close(End::Drained));
    }

    /// Takes no more requests, lets those that run end, then lets all models go. Blocks.
    pub fn end(&self, end: End) {
        self.ending.send_replace(true);
        for entry in self.models() {
            entry.mailbox.close(end);
        }
        let _admission = self.admission.lock();
        for entry in self.models() {
            entry.mailbox.close(end);
            self.remove(&entry);
        }
    }

    /// Tells when the service begins to end.
    #[must_use]
    pub fn watch_end(&self) -> watch::Receiver<bool> {
        self.ending.subscribe()
    }

    /// Whether it is ending.
    #[must_use]
    pub fn is_ending(&self) -> bool {
        *self.ending.borrow()
    }
}

/// What is left of the machine. Errors: nothing that could compute.
pub(super) fn residual(core: &Core, free: &IdVec<PoolId, Option<Bytes>>) -> Result<Residual, ApiError> {
    let left = Residual::of(&core.machine, free, |d| core.is_alive(d));
    left.map_err(|e| ApiError::unavailable("no_device", format!("no device is left: {e}")))
}

/// Brings a model to its place.
pub(super) fn build(core: &Core, entry: &Entry, placing: Placing) -> Result<Engine, ApiError> {
    let Placing { residual, settings, prepared } = placing;
    let model = Arc::clone(&entry.opened.model);
    let failed = |e: EngineError| {
        ApiError::unavailable("load_failed", format!("the model `{}` could not be loaded: {e}", entry.id))
    };
    let picture = Picture::of(&model, &residual, &settings, &prepared).map_err(failed)?;
    let devices: Vec<Arc<dyn Device>> = residual.origin.values().map(|&d| Arc::clone(&core.devices[d])).collect();
    let reserved: Vec<_> = prepared
        .devices
        .iter()
        .filter(|(_, need)| need.compute > Bytes::ZERO)
        .map(|(d, need)| {
            let name = &*residual.machine.device(d).name;
            json!({ "device": name, "size": need.compute.get(), "bound": need.bound.get() })
        })
        .collect();
    let engine = Engine::load(model, &residual.machine, devices, settings, prepared, Reserve::Largest, &mut |_, _| ())
        .map_err(failed)?;
    core.events.tell(EventKind::Reserve, json!({ "model": entry.id, "arenas": reserved }));
    entry.set_picture(picture);
    Ok(engine)
}

impl std::fmt::Debug for ServiceState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ServiceState({:?})", self.models.lock().keys())
    }
}

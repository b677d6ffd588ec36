//! The life of a model's thread: it works, and when a device is lost, the model is placed again on what is left.
//!
//! The admission is not held here: whoever holds it may be waiting for this thread. The ledger decides who was first.

use super::core::Core;
use super::error::ApiError;
use super::events::EventKind;
use super::ledger::Holding;
use super::model::{Entry, Phase};
use super::placing::Question;
use super::state::{build, residual};
use super::worker::{End, Outcome, Update, Worker};
use crate::engine::Engine;
use serde_json::json;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Works until the model is told to end, or cannot be placed any more. A panic ends the model and nothing else.
pub(super) fn work(core: &Arc<Core>, entry: &Arc<Entry>, worker: Worker) {
    if catch_unwind(AssertUnwindSafe(|| work_on(core, entry, worker))).is_err() {
        let error = ApiError::internal("its thread panicked, which is our own fault; please report it");
        give_up(core, entry, "its thread", &error);
    }
}

fn work_on(core: &Arc<Core>, entry: &Arc<Entry>, mut worker: Worker) {
    loop {
        let Outcome::Lost { device } = worker.run() else { return };
        entry.set_phase(Phase::Replacing);
        core.events
            .tell(EventKind::Failure, json!({ "model": entry.id, "device": device, "why": "the device was lost" }));
        match place_again(core, entry) {
            Ok(engine) => {
                entry.set_phase(Phase::Ready);
                core.events.tell(EventKind::Load, json!({ "model": entry.id, "without": device }));
                core.note_history(format!("{} was placed again without {device}", entry.id));
                worker = Worker::new(Arc::clone(core), Arc::clone(entry), engine);
            }
            Err(error) => return give_up(core, entry, &device, &error),
        }
    }
}

/// The engine that lost a device is gone by now, and with it what it held.
fn place_again(core: &Core, entry: &Entry) -> Result<Engine, ApiError> {
    core.ledger.lock().strike(&entry.id);
    let question =
        Question { model: &entry.opened.model, choices: &entry.wish.choices, elsewhere: entry.wish.elsewhere };
    let free = core.ledger.lock().free_without(&[]);
    let left = residual(core, &free)?;
    let placing = question.place_anywhere(left.clone())?.ok_or_else(|| question.too_small(&core.machine, &left))?;
    let needs = placing.residual.lift(&core.machine, &placing.prepared.devices);
    if !core.ledger.lock().enter(&entry.id, Holding::new(&core.machine, needs)) {
        return Err(ApiError::unavailable("room_taken", "the room that was left was taken by another model"));
    }
    build(core, entry, placing)
}

fn give_up(core: &Core, entry: &Entry, device: &str, why: &ApiError) {
    entry.set_phase(Phase::Failed);
    core.ledger.lock().strike(&entry.id);
    core.events.tell(EventKind::Failure, json!({ "model": entry.id, "why": why.message }));
    core.note_history(format!("{} lost {device} and fits nowhere else", entry.id));
    let message = format!("the model `{}` lost {device} and could not be placed again: {}", entry.id, why.message);
    let error = ApiError { message, ..ApiError::unavailable("device_failed", "") };
    entry.mailbox.close(End::Now);
    for job in entry.mailbox.drain() {
        job.say(Update::Failed(error.clone()));
    }
}

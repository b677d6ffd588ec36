//! The thread of a loaded model. It alone owns the engine, so nothing about the model is locked.
//!
//! A turn: jobs enter free slots (a slot is a sequence of the cache), prompts are computed in pieces, then all answers
//! that have a token to compute take one step together. Kernels give a token the same bits whatever else is in its
//! batch, so an answer does not depend on who else is there. A client that is gone is noticed before each turn.

mod job;
mod mailbox;
mod probable;
mod stop;
mod voice;

pub(crate) use job::{Chosen, Finish, Job, Likely, Update};
pub use mailbox::{End, Mailbox, Refusal};

use crate::engine::{Engine, EngineError};
use crate::serve::core::Core;
use crate::serve::error::ApiError;
use crate::serve::events::EventKind;
use crate::serve::model::Entry;
use loadmaster_models::kv::{Batch, BatchToken, Pos, SequenceId, SequenceSet};
use loadmaster_models::sampling::Sampler;
use serde_json::json;
use std::sync::Arc;
use voice::{Next, Voice};

/// Tokens of prompts that are computed in a turn: what running answers wait for at most.
const PROMPT_TURN: usize = 256;

/// Why the thread stopped working.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It was told to.
    Ended,
    /// A device was lost.
    Lost {
        /// Its name.
        device: String,
    },
}

/// The thread's own.
pub(crate) struct Worker {
    pub(crate) core: Arc<Core>,
    pub(crate) entry: Arc<Entry>,
    pub(crate) engine: Engine,
    voices: Vec<Voice>,
    counted: (u64, u64, u64),
}

impl Worker {
    pub(crate) fn new(core: Arc<Core>, entry: Arc<Entry>, engine: Engine) -> Self {
        Self { core, entry, engine, voices: Vec::new(), counted: (0, 0, 0) }
    }

    /// Works until the mailbox is closed, when what still waits fails, or until a device is lost, when what runs fails.
    pub(crate) fn run(mut self) -> Outcome {
        self.count();
        loop {
            // A device that was lost while nothing ran costs nobody an answer: jobs are not taken before it is replaced.
            if self.voices.is_empty()
                && self.entry.mailbox.wait()
                && let Some(device) = self.lost()
            {
                return Outcome::Lost { device };
            }
            let taken = self.entry.mailbox.take(self.entry.slots.saturating_sub(self.voices.len()));
            taken.jobs.into_iter().for_each(|job| self.begin(job));
            match taken.end {
                Some(End::Now) => return self.give_up(),
                Some(End::Drained) if self.voices.is_empty() => return self.give_up(),
                _ => {}
            }
            self.drop_abandoned();
            if let Err(error) = self.turn_or_again() {
                self.failed(&error);
                if let Some(device) = self.lost() {
                    return Outcome::Lost { device };
                }
            }
            self.count();
        }
    }

    /// A device that does not answer any more.
    fn lost(&self) -> Option<String> {
        let devices = self.engine.runtime().devices();
        devices.values().find(|d| d.health().is_err()).map(|d| d.name().to_owned())
    }

    /// A turn that fails leaves everything as it was, so it is made again once, unless a device is lost.
    fn turn_or_again(&mut self) -> Result<(), EngineError> {
        let Err(error) = self.turn() else { return Ok(()) };
        if self.lost().is_some() { Err(error) } else { self.turn() }
    }

    fn begin(&mut self, job: Job) {
        let taken = |slot: &SequenceId| self.voices.iter().any(|v| v.slot == *slot);
        let Some(slot) = (0..self.entry.slots).map(SequenceId::new).find(|slot| !taken(slot)) else {
            self.entry.mailbox.ended(1);
            return job.say(Update::Failed(ApiError::internal("a job was taken without a slot")));
        };
        match Sampler::new(job.sampling) {
            Ok(sampler) => self.voices.push(Voice::new(slot, job, sampler)),
            Err(error) => {
                self.entry.mailbox.ended(1);
                job.say(Update::Failed(ApiError::field("temperature", error.to_string())));
            }
        }
    }

    fn drop_abandoned(&mut self) {
        let gone: Vec<SequenceId> = self.voices.iter().filter(|v| v.job.is_abandoned()).map(|v| v.slot).collect();
        gone.into_iter().for_each(|slot| self.end(slot, None));
    }

    /// Frees a slot, and says the last of its answer: whoever has an answer finds its slot free.
    fn end(&mut self, slot: SequenceId, last: Option<Update>) {
        let Some(at) = self.voices.iter().position(|v| v.slot == slot) else { return };
        let voice = self.voices.remove(at);
        // The sequence exists: it was in a slot.
        let _ = self.engine.state_mut().remove(slot, &(Pos(0)..Pos(u32::MAX)));
        self.entry.mailbox.ended(1);
        self.core.requests.ended(&voice.job.request, &self.entry.id, voice.job.arrived, voice.made());
        let said = json!({ "id": voice.job.request, "model": self.entry.id, "tokens": voice.made() });
        self.core.events.tell(EventKind::Request, said);
        last.into_iter().for_each(|last| voice.job.say(last));
    }

    fn give_up(mut self) -> Outcome {
        let error = ApiError::unavailable("model_unloaded", format!("the model `{}` was unloaded", self.entry.id));
        for job in self.entry.mailbox.drain() {
            job.say(Update::Failed(error.clone()));
        }
        self.fail_all(&error);
        self.count();
        Outcome::Ended
    }

    fn fail_all(&mut self, error: &ApiError) {
        let slots: Vec<SequenceId> = self.voices.iter().map(|v| v.slot).collect();
        slots.into_iter().for_each(|slot| self.end(slot, Some(Update::Failed(error.clone()))));
    }

    fn turn(&mut self) -> Result<(), EngineError> {
        self.prompts()?;
        self.step()
    }

    /// Computes pieces of prompts. Pieces are powers of two, so that few graphs serve all lengths; so nothing is said of
    /// what they are pieces of, and sums have the order of single tokens: an answer depends on no other, but may differ
    /// from `run`'s, which follows llama.cpp's order, where two tokens are almost equally likely.
    fn prompts(&mut self) -> Result<(), EngineError> {
        let mut left = PROMPT_TURN.min(self.engine.settings().largest_micro_batch() as usize);
        while let Some(at) = self.voices.iter().position(|v| !v.left().is_empty()).filter(|_| left > 0) {
            let voice = &self.voices[at];
            let piece = power_below(voice.left().len().min(left));
            let (slot, first) = (voice.slot, voice.fed as u32);
            let mut batch = Batch::new();
            let last = piece == voice.left().len();
            for (i, &token) in voice.left()[..piece].iter().enumerate() {
                batch.push(token_of(slot, token, Pos(first + i as u32), last && i + 1 == piece));
            }
            left -= piece;
            self.decode(&batch)?;
            self.core.stats.prompt(piece);
            if let Some(voice) = self.voices.iter_mut().find(|v| v.slot == slot) {
                voice.fed += piece;
            }
        }
        Ok(())
    }

    /// One token of every answer that has one to compute.
    fn step(&mut self) -> Result<(), EngineError> {
        let mut batch = Batch::new();
        for voice in &mut self.voices {
            if let Some(token) = voice.next {
                batch.push(token_of(voice.slot, token, self.engine.state().next(voice.slot), true));
            }
        }
        if batch.tokens().is_empty() {
            return Ok(());
        }
        self.decode(&batch)
    }

    /// Computes a batch; whoever wanted logits chooses the next token.
    fn decode(&mut self, batch: &Batch) -> Result<(), EngineError> {
        let room = self.entry.room as usize;
        let (voices, entry, core) = (&mut self.voices, &self.entry, &self.core);
        let tokens = batch.tokens();
        let mut chosen = Vec::new();
        // Nothing is said before the whole batch has succeeded: a step that fails can then be made again.
        let mut logits_of: Vec<(SequenceId, Vec<f32>)> = Vec::new();
        self.engine.decode(batch, |index, logits| {
            if let Some(slot) = tokens.get(index).and_then(|t| t.sequences.only()) {
                logits_of.push((slot, logits.to_vec()));
            }
        })?;
        for (slot, logits) in logits_of {
            let Some(voice) = voices.iter_mut().find(|v| v.slot == slot) else { continue };
            voice.next = None;
            chosen.push((slot, voice.choose(&logits, entry.tokenizer.as_deref(), room, &core.stats)));
        }
        self.core.stats.generated(chosen.len() as u32);
        for (slot, next) in chosen {
            if let Next::Ended(last) = next {
                self.end(slot, Some(last));
            }
        }
        Ok(())
    }

    fn failed(&mut self, error: &EngineError) {
        let message = format!("the model `{}` failed while it computed: {error}", self.entry.id);
        self.core.events.tell(EventKind::Failure, json!({ "model": self.entry.id, "why": error.to_string() }));
        self.core.stats.failure("device_failed");
        let error = ApiError::unavailable("device_failed", message);
        self.fail_all(&error);
    }

    /// Adds what the engine counted since the last time.
    fn count(&mut self) {
        let stats = self.engine.session_stats();
        // Every plan that was made was bound. (`planned` leaves out those for which the old places did.)
        let now = (stats.bound, self.engine.graphs_reused(), stats.grown);
        let (bound, reused, grown) = std::mem::replace(&mut self.counted, now);
        self.core.stats.plans(now.0 - bound, now.1 - reused);
        if now.2 > grown {
            self.core.events.tell(EventKind::Grow, json!({ "model": self.entry.id, "times": now.2 - grown }));
        }
        if now.0 > bound {
            self.core.events.tell(EventKind::Bind, json!({ "model": self.entry.id, "plans": now.0 - bound }));
        }
    }
}

fn token_of(
    slot: SequenceId,
    token: loadmaster_models::tokenizer::TokenId,
    pos: Pos,
    wants_logits: bool,
) -> BatchToken {
    BatchToken { token, pos, sequences: SequenceSet::from_iter([slot]), wants_logits }
}

/// The largest power of two up to `n`, which is not 0.
fn power_below(n: usize) -> usize {
    1 << n.max(1).ilog2()
}

//! One answer being made: a sequence of the model's cache with its sampler and what it has said.

use super::job::{Chosen, Finish, Job, Update};
use super::probable;
use super::stop::{Said, StopFinder};
use crate::serve::error::ApiError;
use crate::serve::stats::Stats;
use loadmaster_models::kv::SequenceId;
use loadmaster_models::sampling::Sampler;
use loadmaster_models::tokenizer::{TokenId, TokenKind, Tokenizer, Utf8Stream};
use std::time::Instant;

/// Whether an answer goes on.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Next {
    /// It does.
    On,
    /// It was completed, or failed: what is to be said of that when its slot is free.
    Ended(Update),
}

/// An answer being made.
#[derive(Debug)]
pub(super) struct Voice {
    pub(super) slot: SequenceId,
    pub(super) job: Job,
    /// Tokens of the prompt that are in the cache.
    pub(super) fed: usize,
    /// Chosen, but not in the cache yet.
    pub(super) next: Option<TokenId>,
    sampler: Sampler,
    utf8: Utf8Stream,
    stop: StopFinder,
    made: u32,
    /// Chosen tokens that were not told yet.
    untold: Vec<Chosen>,
    last: Instant,
}

impl Voice {
    /// Begins, with a sampler without history.
    pub(super) fn new(slot: SequenceId, job: Job, mut sampler: Sampler) -> Self {
        job.prompt.iter().for_each(|&t| sampler.accept(t));
        let stop = StopFinder::new(&job.stops);
        let last = job.arrived;
        let (utf8, untold) = (Utf8Stream::new(), Vec::new());
        Self { slot, job, fed: 0, next: None, sampler, utf8, stop, made: 0, untold, last }
    }

    /// Tokens of the prompt that are not in the cache yet.
    pub(super) fn left(&self) -> &[TokenId] {
        self.job.prompt.get(self.fed..).unwrap_or_default()
    }

    /// Tokens in the cache when the next one is there.
    fn held(&self) -> usize {
        self.job.prompt.len() + self.made as usize
    }

    /// Chooses the next token from logits and says what can be said. `room`: tokens that a sequence has room for.
    pub(super) fn choose(&mut self, logits: &[f32], tokenizer: Option<&Tokenizer>, room: usize, stats: &Stats) -> Next {
        let token = match self.sampler.sample(logits) {
            Ok(token) => token,
            Err(error) => return Next::Ended(Update::Failed(ApiError::internal(error.to_string()))),
        };
        self.sampler.accept(token);
        self.note_time(stats);
        self.made += 1;
        if tokenizer.is_some_and(|t| t.ends_generation(token)) {
            return self.finish(Finish::Stop);
        }
        if let Some(count) = self.job.logprobs {
            self.untold.push(probable::chosen(tokenizer, logits, token, count));
        }
        let text = self.utf8.push(&shown(tokenizer, token));
        match self.stop.push(&text) {
            Said::Text(text) => self.tell(text),
            Said::Last(text) => {
                self.tell(text);
                return self.done(Finish::Stop);
            }
        }
        if self.made >= self.job.max_tokens || self.held() > room {
            return self.finish(Finish::Length);
        }
        self.next = Some(token);
        Next::On
    }

    fn note_time(&mut self, stats: &Stats) {
        let now = Instant::now();
        let after = now.duration_since(self.last);
        if self.made == 0 {
            stats.first_token(after)
        } else {
            stats.next_token(after)
        }
        self.last = now;
    }

    fn tell(&mut self, text: String) {
        if !text.is_empty() || !self.untold.is_empty() {
            let tokens = std::mem::take(&mut self.untold);
            self.job.say(Update::Text { text, tokens });
        }
    }

    /// Says what was held back; that was all.
    fn finish(&mut self, finish: Finish) -> Next {
        let rest = std::mem::take(&mut self.utf8).finish();
        let said = match self.stop.push(&rest) {
            Said::Text(text) => text + &std::mem::take(&mut self.stop).finish(),
            Said::Last(text) => text,
        };
        self.tell(said);
        self.done(finish)
    }

    fn done(&self, finish: Finish) -> Next {
        Next::Ended(Update::Done { finish, prompt_tokens: self.job.prompt.len(), tokens: self.made })
    }

    /// Tokens chosen so far.
    pub(super) fn made(&self) -> u32 {
        self.made
    }
}

/// The bytes of a token that are shown: none of those that only steer.
fn shown(tokenizer: Option<&Tokenizer>, token: TokenId) -> Vec<u8> {
    let Some(tokenizer) = tokenizer else { return Vec::new() };
    match tokenizer.kind(token) {
        Some(TokenKind::Control | TokenKind::Unknown) => Vec::new(),
        // A token that the model does not have was not chosen.
        _ => tokenizer.piece(token).unwrap_or_default(),
    }
}

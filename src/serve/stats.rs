//! Counters of the service, with plain getters. What devices and sessions count themselves is added by the reader.

use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Speed is told over this time.
const WINDOW: Duration = Duration::from_secs(5);
/// Upper ends of the classes of times, in seconds.
pub const TIME_CLASSES: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// How often times fell into which class.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Times {
    /// By class of [`TIME_CLASSES`], and beyond.
    pub counts: [u64; TIME_CLASSES.len() + 1],
    /// Seconds of all together.
    pub sum: f64,
}

impl Times {
    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        let class = TIME_CLASSES.iter().position(|&end| seconds <= end).unwrap_or(TIME_CLASSES.len());
        self.counts[class] += 1;
        self.sum += seconds;
    }
}

/// Counters. A leaf lock each: nothing else is locked while one is held.
#[derive(Debug, Default)]
pub struct Stats {
    requests: AtomicU64,
    failures: AtomicU64,
    prompt_tokens: AtomicU64,
    tokens: AtomicU64,
    plans_made: AtomicU64,
    plans_reused: AtomicU64,
    recent: Mutex<VecDeque<(Instant, u32)>>,
    by_kind: Mutex<BTreeMap<&'static str, u64>>,
    first_token: Mutex<Times>,
    per_token: Mutex<Times>,
}

impl Stats {
    /// Requests for generation that were taken.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
    /// Requests that failed, for whatever reason.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
    /// Failures by kind: the codes of errors.
    #[must_use]
    pub fn failures_by_kind(&self) -> BTreeMap<&'static str, u64> {
        self.by_kind.lock().clone()
    }
    /// Tokens of prompts that were computed.
    #[must_use]
    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens.load(Ordering::Relaxed)
    }
    /// Tokens that were generated.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.tokens.load(Ordering::Relaxed)
    }
    /// Graphs that were planned, of models that are gone, too.
    #[must_use]
    pub fn plans_made(&self) -> u64 {
        self.plans_made.load(Ordering::Relaxed)
    }
    /// Runs of graphs whose plan was known.
    #[must_use]
    pub fn plans_reused(&self) -> u64 {
        self.plans_reused.load(Ordering::Relaxed)
    }
    /// From a request's arrival to its first token.
    #[must_use]
    pub fn time_to_first_token(&self) -> Times {
        *self.first_token.lock()
    }
    /// From one token of a request to the next.
    #[must_use]
    pub fn time_per_token(&self) -> Times {
        *self.per_token.lock()
    }
    /// Tokens generated in a second, over the last five.
    #[must_use]
    pub fn tokens_per_second(&self) -> f64 {
        let mut recent = self.recent.lock();
        let Some(oldest) = Instant::now().checked_sub(WINDOW) else { return 0.0 };
        while recent.front().is_some_and(|(at, _)| *at < oldest) {
            recent.pop_front();
        }
        let sum: u64 = recent.iter().map(|(_, n)| u64::from(*n)).sum();
        sum as f64 / WINDOW.as_secs_f64()
    }

    pub(super) fn request(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
    pub(super) fn failure(&self, kind: &'static str) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        *self.by_kind.lock().entry(kind).or_default() += 1;
    }
    pub(super) fn prompt(&self, tokens: usize) {
        self.prompt_tokens.fetch_add(tokens as u64, Ordering::Relaxed);
    }
    pub(super) fn generated(&self, tokens: u32) {
        self.tokens.fetch_add(tokens.into(), Ordering::Relaxed);
        let now = Instant::now();
        let mut recent = self.recent.lock();
        while recent.front().is_some_and(|(at, _)| now.duration_since(*at) > WINDOW) {
            recent.pop_front();
        }
        recent.push_back((now, tokens));
    }
    pub(super) fn plans(&self, made: u64, reused: u64) {
        self.plans_made.fetch_add(made, Ordering::Relaxed);
        self.plans_reused.fetch_add(reused, Ordering::Relaxed);
    }
    pub(super) fn first_token(&self, after: Duration) {
        self.first_token.lock().add(after);
    }
    pub(super) fn next_token(&self, after: Duration) {
        self.per_token.lock().add(after);
    }
}

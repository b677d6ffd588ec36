//! The last requests, and what the devices' queues did while they ran.
//!
//! A leaf lock; it is not held while the log of queues is asked, which has a lock of its own.

use crate::telemetry::{QueueLog, QueueSpan};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests that are kept.
const KEPT: usize = 64;
/// Spans of queues that are kept: a few hundred tokens over several devices.
const SPANS: usize = 65_536;
/// Spans that are told of one request: the last of them.
const TOLD: usize = 16_384;

/// A request that has ended. Times are those of the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// Its id.
    pub id: String,
    /// The model that answered.
    pub model: String,
    /// When it arrived.
    pub start: Duration,
    /// When its last answer ended.
    pub end: Duration,
    /// Tokens of all its answers.
    pub tokens: u64,
}

/// What queues did in the time of a request, whoever asked for it: requests that run together share their steps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestTrace {
    /// The request.
    pub request: Request,
    /// By beginning.
    pub spans: Vec<QueueSpan>,
    /// Earlier spans that are left out, because there are too many.
    pub left_out: usize,
}

/// The last requests.
#[derive(Debug)]
pub struct Requests {
    log: Arc<QueueLog>,
    kept: Mutex<VecDeque<Request>>,
}

impl Default for Requests {
    fn default() -> Self {
        Self::new(QueueLog::new(SPANS))
    }
}

impl Requests {
    /// None yet. The log is filled by who listens ([`crate::telemetry::Telemetry::with_queue_log`]).
    #[must_use]
    pub fn new(log: Arc<QueueLog>) -> Self {
        Self { log, kept: Mutex::default() }
    }

    /// The log of queues.
    #[must_use]
    pub fn log(&self) -> &Arc<QueueLog> {
        &self.log
    }

    /// An answer has ended. Answers of one request are one entry.
    pub(super) fn ended(&self, id: &str, model: &str, arrived: Instant, tokens: u32) {
        let (start, end) = (self.log.at(arrived), self.log.now());
        let mut kept = self.kept.lock();
        if let Some(known) = kept.iter_mut().find(|r| r.id == id) {
            known.end = end;
            known.tokens += u64::from(tokens);
            return;
        }
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back(Request { id: id.to_owned(), model: model.to_owned(), start, end, tokens: tokens.into() });
    }

    /// The requests that are kept, oldest first.
    #[must_use]
    pub fn list(&self) -> Vec<Request> {
        self.kept.lock().iter().cloned().collect()
    }

    /// What queues did for a request; `None` if it is not kept.
    #[must_use]
    pub fn trace(&self, id: &str) -> Option<RequestTrace> {
        let request = self.kept.lock().iter().find(|r| r.id == id).cloned()?;
        let mut spans = self.log.between(request.start, request.end);
        let left_out = spans.len().saturating_sub(TOLD);
        spans.drain(..left_out);
        Some(RequestTrace { request, spans, left_out })
    }
}

//! What happened, in order: kept for a while, and told to those who follow.

use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::broadcast;

/// Events that are kept for those who come back.
const KEPT: usize = 1024;
/// Events that a follower may lag behind before it misses some.
const LAG: usize = 1024;

/// What kind of event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EventKind {
    /// Compute memory was taken for the largest graphs.
    Reserve,
    /// Compute memory grew.
    Grow,
    /// A plan was bound to memory.
    Bind,
    /// A way for bytes between two devices was chosen.
    CopyPath,
    /// Whether a model may be loaded was decided.
    Admission,
    /// A model had to go for another.
    Eviction,
    /// A model was loaded.
    Load,
    /// A model was unloaded.
    Unload,
    /// Something failed.
    Failure,
    /// A request ended.
    Request,
    /// Counters.
    Stats,
}

impl EventKind {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reserve => "reserve",
            Self::Grow => "grow",
            Self::Bind => "bind",
            Self::CopyPath => "copy_path",
            Self::Admission => "admission",
            Self::Eviction => "eviction",
            Self::Load => "load",
            Self::Unload => "unload",
            Self::Failure => "failure",
            Self::Request => "request",
            Self::Stats => "stats",
        }
    }
}

/// An event.
#[derive(Clone, Debug)]
pub struct Event {
    /// Its number, from 1.
    pub seq: u64,
    /// Its kind.
    pub kind: EventKind,
    /// As JSON, the number, the time and the kind included.
    pub data: String,
}

struct Log {
    next: u64,
    kept: VecDeque<Arc<Event>>,
}

/// The events of a service. A leaf lock: nothing else is locked while it is held.
pub struct Events {
    epoch: Instant,
    log: Mutex<Log>,
    live: broadcast::Sender<Arc<Event>>,
}

impl Events {
    /// None yet. Times count from `epoch`.
    #[must_use]
    pub fn new(epoch: Instant) -> Self {
        Self { epoch, log: Mutex::new(Log { next: 1, kept: VecDeque::new() }), live: broadcast::channel(LAG).0 }
    }

    /// Microseconds since the service began.
    #[must_use]
    pub fn now_us(&self) -> u64 {
        // 584,000 years fit.
        self.epoch.elapsed().as_micros() as u64
    }

    /// Tells an event with the fields of `fields`, an object. Counters are told but not kept.
    pub fn tell(&self, kind: EventKind, fields: Value) {
        let at_us = self.now_us();
        let mut object = match fields {
            Value::Object(object) => object,
            Value::Null => Map::new(),
            other => Map::from_iter([("value".to_owned(), other)]),
        };
        let mut log = self.log.lock();
        let seq = log.next;
        log.next += 1;
        let named = [("seq", json!(seq)), ("at_us", json!(at_us)), ("kind", json!(kind.name()))];
        object.extend(named.map(|(k, v)| (k.to_owned(), v)));
        let event = Arc::new(Event { seq, kind, data: Value::Object(object).to_string() });
        if kind != EventKind::Stats {
            if log.kept.len() == KEPT {
                log.kept.pop_front();
            }
            log.kept.push_back(Arc::clone(&event));
        }
        // Nobody may be listening.
        let _ = self.live.send(event);
    }

    /// The events after `last` that are still kept, and those to come; nothing is missed or told twice in between.
    #[must_use]
    pub fn follow(&self, last: u64) -> (Vec<Arc<Event>>, broadcast::Receiver<Arc<Event>>) {
        let log = self.log.lock();
        let live = self.live.subscribe();
        (log.kept.iter().filter(|e| e.seq > last).cloned().collect(), live)
    }

    /// Whether anybody follows.
    #[must_use]
    pub fn is_followed(&self) -> bool {
        self.live.receiver_count() > 0
    }
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Events({})", self.log.lock().next - 1)
    }
}

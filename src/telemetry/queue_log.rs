//! The last spans of the devices' queues, and totals by link: what the service answers from.
//!
//! One lock, taken when a span ends; readers copy what they want while they hold it.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// What a queue did.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SpanKind {
    /// It computed nodes of a split.
    Split,
    /// It copied.
    Copy,
    /// It waited for another queue.
    Sync,
}

impl SpanKind {
    /// As the API and the spans call it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::Copy => "copy",
            Self::Sync => "sync",
        }
    }
}

/// Something that a queue did, with its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueSpan {
    /// The device whose queue it is.
    pub device: Box<str>,
    /// What was done.
    pub kind: SpanKind,
    /// The split or the tensor.
    pub name: Box<str>,
    /// From the beginning of the log.
    pub start: Duration,
    /// From the beginning of the log.
    pub end: Duration,
    /// Bytes that were copied; zero for what is no copy.
    pub bytes: u64,
    /// The link of a copy, such as `sim0→sim1`.
    pub link: Option<Box<str>>,
}

/// What went over a link so far.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkTotal {
    /// The link, such as `sim0→sim1`.
    pub link: Box<str>,
    /// `direct`, `pinned` or `pageable`.
    pub path: Box<str>,
    /// Copies; a staged one counts once.
    pub copies: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Spans of queues, the last so many.
#[derive(Debug)]
pub struct QueueLog {
    epoch: Instant,
    room: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    spans: VecDeque<QueueSpan>,
    /// Few: one for each link and path that was used.
    totals: Vec<LinkTotal>,
}

impl QueueLog {
    /// A log with room for so many spans; its time begins now.
    #[must_use]
    pub fn new(room: usize) -> Arc<Self> {
        Arc::new(Self { epoch: Instant::now(), room, state: Mutex::default() })
    }

    /// The log's time.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// The log's time of an instant; zero for those before it began.
    #[must_use]
    pub fn at(&self, instant: Instant) -> Duration {
        instant.saturating_duration_since(self.epoch)
    }

    /// The spans that touch a time, by beginning. What is too old is not kept. O(spans kept).
    #[must_use]
    pub fn between(&self, from: Duration, to: Duration) -> Vec<QueueSpan> {
        let state = self.lock();
        let mut found: Vec<QueueSpan> =
            state.spans.iter().filter(|s| s.end >= from && s.start <= to).cloned().collect();
        drop(state);
        found.sort_by(|a, b| (a.start, &a.device, a.kind).cmp(&(b.start, &b.device, b.kind)));
        found
    }

    /// What went over each link, by link and path.
    #[must_use]
    pub fn totals(&self) -> Vec<LinkTotal> {
        let mut totals = self.lock().totals.clone();
        totals.sort_by(|a, b| (&a.link, &a.path).cmp(&(&b.link, &b.path)));
        totals
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, open: Open, end: Instant) {
        let Open { kind, since, told } = open;
        let name = match kind {
            SpanKind::Split => format!("split{}", told.split).into(),
            SpanKind::Copy => told.tensor,
            SpanKind::Sync => "wait".into(),
        };
        let (start, end) = (self.at(since), self.at(end));
        let mut state = self.lock();
        // The second hop of a staged copy moves the same bytes on.
        if let Some(link) = told.link.as_deref().filter(|_| !told.is_second_hop) {
            state.count(link, &told.path, told.bytes);
        }
        if state.spans.len() >= self.room {
            state.spans.pop_front();
        }
        let QueueTold { device, bytes, link, .. } = told;
        state.spans.push_back(QueueSpan { device, kind, name, start, end, bytes, link });
    }
}

impl State {
    fn count(&mut self, link: &str, path: &str, bytes: u64) {
        let known = self.totals.iter_mut().find(|t| &*t.link == link && &*t.path == path);
        match known {
            Some(total) => {
                total.copies += 1;
                total.bytes += bytes;
            }
            None => self.totals.push(LinkTotal { link: link.into(), path: path.into(), copies: 1, bytes }),
        }
    }
}

/// A span that is open.
struct Open {
    kind: SpanKind,
    since: Instant,
    told: QueueTold,
}

/// The fields that are kept. Read off one by one: a map of them would cost more than the rest.
#[derive(Default)]
struct QueueTold {
    device: Box<str>,
    link: Option<Box<str>>,
    path: Box<str>,
    tensor: Box<str>,
    is_second_hop: bool,
    bytes: u64,
    split: u64,
}

impl Visit for QueueTold {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "device" => self.device = value.into(),
            "link" => self.link = Some(value.into()),
            "path" => self.path = value.into(),
            "tensor" => self.tensor = value.into(),
            "hop" => self.is_second_hop = value == "in",
            _ => {}
        }
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "bytes" => self.bytes = value,
            "split" => self.split = value,
            _ => {}
        }
    }
    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

/// Fills a log.
#[derive(Debug)]
pub(super) struct QueueLayer {
    log: Arc<QueueLog>,
}

impl QueueLayer {
    pub(super) fn new(log: Arc<QueueLog>) -> Self {
        Self { log }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for QueueLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let kind = match attributes.metadata().name() {
            "split" => SpanKind::Split,
            "copy" => SpanKind::Copy,
            "sync" => SpanKind::Sync,
            _ => return,
        };
        let Some(span) = context.span(id) else { return };
        let mut told = QueueTold::default();
        attributes.record(&mut told);
        span.extensions_mut().insert(Open { kind, since: Instant::now(), told });
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let end = Instant::now();
        let Some(span) = context.span(&id) else { return };
        let open = span.extensions_mut().remove::<Open>();
        if let Some(open) = open {
            self.log.push(open, end);
        }
    }
}

//! Spans and events as a trace file that ui.perfetto.dev and chrome://tracing open.
//!
//! A span of a device's queue lies on the track of that queue, a copy on the track of its link and of the queue that makes it:
//! on such a track nothing overlaps. Other spans lie on the track of the thread that entered them, and nest there.

mod file;

pub use file::ChromeFile;

use super::fields::Fields;
use loadmaster_sched::exec::noted;
use std::sync::Arc;
use std::time::Instant;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;
use tracing_subscriber::registry::LookupSpan;

/// The process of the tracks of links.
const LINKS: &str = "links";
/// The process of the tracks of threads.
const HOST: &str = "host threads";

/// Writes to a file what it hears.
#[derive(Debug)]
pub(super) struct ChromeLayer {
    file: Arc<ChromeFile>,
}

/// What is kept of an open span.
struct Kept {
    fields: Fields,
    /// A queue's span begins when it is made, another one when it is entered.
    since: Option<Instant>,
}

impl ChromeLayer {
    pub(super) fn new(file: Arc<ChromeFile>) -> Self {
        Self { file }
    }

    fn write(&self, (process, track): (&str, &str), about: &Metadata<'_>, kept: &Kept, since: Instant) {
        let name = match (about.name(), kept.fields.text("tensor")) {
            ("split", _) => format!("split{}", kept.fields.count("split")),
            ("copy", tensor) if !tensor.is_empty() => tensor.to_owned(),
            (name, _) => name.to_owned(),
        };
        self.file.slice((process, track), &name, about.name(), (since, Instant::now()), &kept.fields.0);
    }
}

fn is_queue(about: &Metadata<'_>) -> bool {
    about.target() == noted::TARGET
}

fn thread_track() -> String {
    let thread = std::thread::current();
    thread.name().map_or_else(|| format!("{:?}", thread.id()), |name| format!("{name} {:?}", thread.id()))
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for ChromeLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let since = is_queue(attributes.metadata()).then(Instant::now);
        span.extensions_mut().insert(Kept { fields, since });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(kept) = span.extensions_mut().get_mut::<Kept>() {
            values.record(&mut kept.fields);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(kept) = span.extensions_mut().get_mut::<Kept>().filter(|_| !is_queue(span.metadata())) {
            kept.since = Some(Instant::now());
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| !is_queue(span.metadata())) else { return };
        let mut extensions = span.extensions_mut();
        let Some(kept) = extensions.get_mut::<Kept>() else { return };
        if let Some(since) = kept.since.take() {
            self.write((HOST, &thread_track()), span.metadata(), kept, since);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id).filter(|span| is_queue(span.metadata())) else { return };
        let extensions = span.extensions();
        let Some(kept) = extensions.get::<Kept>() else { return };
        let Some(since) = kept.since else { return };
        let (device, queue) = (kept.fields.text("device"), kept.fields.text("queue"));
        match kept.fields.text("link") {
            "" => self.write((device, queue), span.metadata(), kept, since),
            link => self.write((LINKS, &format!("{link} by {device} {queue}")), span.metadata(), kept, since),
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let name = fields.text("message").to_owned();
        self.file.instant((HOST, &thread_track()), &name, event.metadata().target(), Instant::now(), &fields.0);
    }
}

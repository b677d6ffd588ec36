//! docs/observability.md and what is said agree.

use crate::support::{engine, feed};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use tracing::{Event, Metadata, Subscriber, span};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};

/// By target and name: level and fields.
type Heard = BTreeMap<(String, String), (String, BTreeSet<String>)>;

#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Heard>>);

impl Ear {
    fn hear(&self, about: &Metadata<'_>, name: &str) {
        if !about.target().starts_with("loadmaster") {
            return;
        }
        let fields = about.fields().iter().map(|f| f.name().to_owned()).filter(|f| f != "message");
        let key = (about.target().to_owned(), name.to_owned());
        let mut heard = self.0.lock().unwrap();
        let entry = heard.entry(key).or_insert_with(|| (about.level().to_string().to_lowercase(), BTreeSet::new()));
        entry.1.extend(fields);
    }
}

struct Message(String);

impl tracing::field::Visit for Message {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl<S: Subscriber> Layer<S> for Ear {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        self.hear(attributes.metadata(), attributes.metadata().name());
    }
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut message = Message(String::new());
        event.record(&mut message);
        self.hear(event.metadata(), &message.0);
    }
}

/// Rows of the tables: the columns, without the marks of code.
pub fn rows(heading: &str) -> Vec<Vec<String>> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/observability.md");
    let text = std::fs::read_to_string(path).unwrap();
    let section = text.split("\n## ").find(|s| s.starts_with(heading)).unwrap_or_else(|| panic!("no {heading}"));
    let rows = section.lines().filter(|l| l.starts_with("| `"));
    rows.map(|l| l.trim_matches('|').split('|').map(|c| c.trim().replace('`', "")).collect()).collect()
}

#[test]
fn every_span_and_event_is_documented_with_its_level_and_fields() {
    let ear = Ear::default();
    let dispatch = tracing::Dispatch::new(tracing_subscriber::registry().with(ear.clone()));
    tracing::dispatcher::with_default(&dispatch, || {
        let mut engine = engine(2);
        feed(&mut engine, 3);
    });
    let documented: BTreeMap<(String, String), (String, BTreeSet<String>)> = rows("Spans and events")
        .into_iter()
        .map(|c| {
            let fields = c[4].split(", ").map(|f| f.split(' ').next().unwrap_or_default().to_owned());
            ((c[1].clone(), c[0].clone()), (c[3].clone(), fields.filter(|f| !f.is_empty()).collect()))
        })
        .collect();
    let heard = ear.0.lock().unwrap().clone();
    assert!(heard.len() >= 9, "{heard:?}");
    for (key, (level, fields)) in &heard {
        let (told_level, told) = documented.get(key).unwrap_or_else(|| panic!("{key:?} is not documented"));
        assert_eq!(level, told_level, "{key:?}");
        assert!(fields.is_subset(told), "{key:?} has {fields:?}, documented are {told:?}");
    }
}

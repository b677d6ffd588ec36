//! Prometheus' text from values.
//!
//! A scrape is a function of a [`Snapshot`]: the service fills one from its ledger and counters, and [`text`] writes it. So what
//! is scraped is what the ledger says, and a model that went has no series left. The metrics are listed in
//! `docs/observability.md`.

use super::queue_log::LinkTotal;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// What a model holds of a device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ModelBytes {
    /// The model.
    pub model: String,
    /// Bytes of weights.
    pub weights: u64,
    /// Bytes of KV cache.
    pub kv: u64,
    /// Bytes of compute buffers.
    pub compute: u64,
    /// Bytes that kernels need beside operands.
    pub workspace: u64,
    /// What compute buffers need at least.
    pub compute_bound: u64,
}

/// A device's memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DeviceBytes {
    /// The device.
    pub device: String,
    /// The pool that its bytes are of.
    pub pool: String,
    /// Bytes that may be used; `None`: not known, and no series.
    pub limit: Option<u64>,
    /// Bytes in use.
    pub used: u64,
    /// Bytes that are free; `None`: not known, and no series.
    pub free: Option<u64>,
    /// By model.
    pub models: Vec<ModelBytes>,
}

/// How often something took how long.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Distribution {
    /// Upper ends of the classes, in seconds, ascending.
    pub ends: Vec<f64>,
    /// How many fell into each class; one more than there are ends, for those beyond the last.
    pub counts: Vec<u64>,
    /// Seconds of all together.
    pub sum: f64,
}

impl EncodeMetric for Distribution {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let ends = self.ends.iter().copied().chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = ends.zip(self.counts.iter().copied().chain(std::iter::repeat(0))).collect();
        encoder.encode_histogram::<NoLabelSet>(self.sum, self.counts.iter().sum(), &buckets, None)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

/// Everything that a scrape says.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// By device.
    pub devices: Vec<DeviceBytes>,
    /// Graphs that were planned.
    pub plans_made: u64,
    /// Graphs whose plan was known.
    pub plans_reused: u64,
    /// What went over links, by path.
    pub links: Vec<LinkTotal>,
    /// Requests that wait.
    pub queue: u64,
    /// Sequences that run.
    pub running: u64,
    /// Requests that were taken.
    pub requests: u64,
    /// Tokens of prompts that were computed.
    pub prompt_tokens: u64,
    /// Tokens that were generated.
    pub generated_tokens: u64,
    /// By kind.
    pub failures: Vec<(String, u64)>,
    /// From a request's arrival to its first token.
    pub time_to_first_token: Distribution,
    /// From a token to the next of the same sequence.
    pub time_per_token: Distribution,
}

#[derive(Debug, EncodeLabelSet)]
struct Held {
    device: String,
    pool: String,
    model: String,
    kind: &'static str,
}

#[derive(Debug, EncodeLabelSet)]
struct Room {
    device: String,
    pool: String,
    state: &'static str,
}

#[derive(Debug, EncodeLabelSet)]
struct OfModel {
    device: String,
    model: String,
}

#[derive(Debug, EncodeLabelSet)]
struct Over {
    link: String,
    path: String,
}

#[derive(Debug, EncodeLabelSet)]
struct Kind {
    kind: String,
}

/// The media type of [`text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text of a scrape, in OpenMetrics' form. Errors: none in practice; a string takes what is written.
pub fn text(snapshot: &Snapshot) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("loadmaster");
    memory(&mut registry, &snapshot.devices);
    links(&mut registry, &snapshot.links);
    work(&mut registry, snapshot);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

/// Values by labels, in the order in which they were given.
#[derive(Debug)]
struct Series<L> {
    kind: MetricType,
    values: Vec<(L, u64)>,
}

impl<L> Series<L> {
    fn gauges(values: impl IntoIterator<Item = (L, u64)>) -> Self {
        Self { kind: MetricType::Gauge, values: values.into_iter().collect() }
    }

    fn counters(values: impl IntoIterator<Item = (L, u64)>) -> Self {
        Self { kind: MetricType::Counter, values: values.into_iter().collect() }
    }
}

impl<L: EncodeLabelSet> EncodeMetric for Series<L> {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        for (labels, value) in &self.values {
            let mut one = encoder.encode_family(labels)?;
            match self.kind {
                MetricType::Counter => one.encode_counter::<NoLabelSet, _, u64>(value, None)?,
                _ => one.encode_gauge(value)?,
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        self.kind
    }

    fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

fn memory(registry: &mut Registry, devices: &[DeviceBytes]) {
    let held = devices.iter().flat_map(|d| {
        d.models.iter().flat_map(move |m| {
            [("weights", m.weights), ("kv", m.kv), ("compute", m.compute), ("workspace", m.workspace)].map(
                |(kind, bytes)| {
                    let (device, pool, model) = (d.device.clone(), d.pool.clone(), m.model.clone());
                    (Held { device, pool, model, kind }, bytes)
                },
            )
        })
    });
    let help = "Memory that a model holds, by device, pool and kind";
    registry.register_with_unit("memory", help, Unit::Bytes, Series::gauges(held));
    let room = devices.iter().flat_map(|d| {
        let known = [("limit", d.limit), ("used", Some(d.used)), ("free", d.free)];
        known.into_iter().filter_map(|(state, bytes)| {
            let (device, pool) = (d.device.clone(), d.pool.clone());
            Some((Room { device, pool, state }, bytes?))
        })
    });
    registry.register_with_unit("device", "Memory of a device: limit, used, free", Unit::Bytes, Series::gauges(room));
    let bounds = devices.iter().flat_map(|d| {
        d.models.iter().map(|m| (OfModel { device: d.device.clone(), model: m.model.clone() }, m.compute_bound))
    });
    let help = "What the compute buffers of a model need at least";
    registry.register_with_unit("compute_bound", help, Unit::Bytes, Series::gauges(bounds));
}

fn links(registry: &mut Registry, links: &[LinkTotal]) {
    let labels = |l: &LinkTotal| Over { link: l.link.to_string(), path: l.path.to_string() };
    let copies = Series::counters(links.iter().map(|l| (labels(l), l.copies)));
    registry.register("copies", "Copies, by link and path", copies);
    let bytes = Series::counters(links.iter().map(|l| (labels(l), l.bytes)));
    registry.register_with_unit("copied", "Bytes that were copied, by link and path", Unit::Bytes, bytes);
}

fn work(registry: &mut Registry, snapshot: &Snapshot) {
    let counters = [
        ("plans_made", "Graphs that were planned", snapshot.plans_made),
        ("plans_reused", "Graphs whose plan was known", snapshot.plans_reused),
        ("requests", "Requests that were taken", snapshot.requests),
    ];
    for (name, help, value) in counters {
        registry.register(name, help, ConstCounter::new(value));
    }
    let gauges = [("queue", "Requests that wait", snapshot.queue), ("running", "Sequences that run", snapshot.running)];
    for (name, help, value) in gauges {
        registry.register(name, help, ConstGauge::new(value));
    }
    let kind = |kind: &str| Kind { kind: kind.to_owned() };
    let tokens = [(kind("prompt"), snapshot.prompt_tokens), (kind("generated"), snapshot.generated_tokens)];
    registry.register("tokens", "Tokens of prompts, and generated ones", Series::counters(tokens));
    let failures = snapshot.failures.iter().map(|(k, n)| (kind(k), *n));
    registry.register("failures", "Failures, by kind", Series::counters(failures));
    let help = "From a request's arrival to its first token";
    registry.register_with_unit("time_to_first_token", help, Unit::Seconds, snapshot.time_to_first_token.clone());
    let help = "From a token to the next of its sequence";
    registry.register_with_unit("time_per_token", help, Unit::Seconds, snapshot.time_per_token.clone());
}

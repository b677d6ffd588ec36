//! What the program says about itself while it runs: `tracing` spans and events, and where they go.
//!
//! Stages speak (`docs/observability.md` lists every name, level and field); layers listen: text or JSON lines on standard
//! error, a file for Perfetto, an OTLP collector, and [`QueueLog`], which the service answers from. [`metrics`] is apart: a
//! function from values to Prometheus' text.
//!
//! [`init`] is called once by a command, before it starts threads; what it returns is finished at the end.

pub mod chrome;
mod fields;
pub mod metrics;
mod otlp;
mod queue_log;

pub use chrome::ChromeFile;
pub use queue_log::{LinkTotal, QueueLog, QueueSpan, SpanKind};

use clap::{Args, ValueEnum};
use loadmaster_sched::exec::noted;
use opentelemetry_sdk::trace::SdkTracerProvider;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tracing::Level;
use tracing_subscriber::filter::{EnvFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, Registry};

/// How lines on standard error look.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum LogFormat {
    /// For people.
    #[default]
    Readable,
    /// An object in each line.
    Json,
}

/// Where spans and events go.
#[derive(Args, Clone, Debug, Default)]
pub struct Options {
    /// What is written to standard error: a level (error, warn, info, debug, trace), or levels by target as in
    /// `loadmaster::plan=debug` [default: warn; serve: info]
    #[arg(long, value_name = "FILTER")]
    pub log: Option<String>,
    /// How that looks
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    pub log_format: LogFormat,
    /// Write when each device and link did what, in Chrome's trace format (for ui.perfetto.dev)
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Send traces to an OpenTelemetry collector over HTTP, such as `http://127.0.0.1:4318`
    #[arg(long, value_name = "ENDPOINT")]
    pub otlp: Option<String>,
}

/// Why telemetry could not begin or end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TelemetryError {
    /// The filter cannot be read.
    #[error("--log {filter}: {why}")]
    Filter {
        /// What was given.
        filter: String,
        /// What is wrong with it.
        why: tracing_subscriber::filter::ParseError,
    },
    /// The trace file cannot be written.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// The exporter cannot be made.
    #[error("--otlp {endpoint}: {why}")]
    Otlp {
        /// What was given.
        endpoint: String,
        /// What is wrong with it.
        why: String,
    },
    /// Somebody listens already.
    #[error("telemetry was started twice in one process: {0}")]
    Twice(#[from] TryInitError),
}

type BoxedLayer = Box<dyn Layer<Registry> + Send + Sync>;

/// Layers that are not listening yet, and what must be finished when they have listened.
pub struct Telemetry {
    layers: Vec<BoxedLayer>,
    running: Running,
}

/// What listens. [`Running::finish`] writes what is still held back; dropping it does the same and tells nobody if that fails.
#[derive(Default)]
#[must_use]
pub struct Running {
    file: Option<Arc<ChromeFile>>,
    otlp: Option<(String, SdkTracerProvider)>,
}

/// Spans and events of this program from a level on; nothing of its libraries.
fn own(level: Level) -> Targets {
    Targets::new().with_target("loadmaster", level)
}

impl Telemetry {
    /// Layers as the options say. `usual` is the filter where none is given. Not within an async runtime: the exporter
    /// has a thread of its own that waits.
    ///
    /// Errors: a filter that cannot be read, a file that cannot be made, an endpoint that is none.
    pub fn new(options: &Options, usual: &str) -> Result<Self, TelemetryError> {
        let mut telemetry = Self { layers: vec![lines(options, usual)?], running: Running::default() };
        if let Some(path) = &options.trace {
            let file = ChromeFile::create(path).map_err(|why| TelemetryError::File { path: path.clone(), why })?;
            let file = Arc::new(file);
            let layer = chrome::ChromeLayer::new(Arc::clone(&file));
            telemetry.layers.push(layer.with_filter(own(Level::DEBUG)).boxed());
            telemetry.running.file = Some(file);
        }
        if let Some(endpoint) = &options.otlp {
            let (layer, provider) = otlp::layer(endpoint)
                .map_err(|why| TelemetryError::Otlp { endpoint: endpoint.clone(), why: why.to_string() })?;
            telemetry.layers.push(layer.with_filter(own(Level::DEBUG)).boxed());
            telemetry.running.otlp = Some((endpoint.clone(), provider));
        }
        Ok(telemetry)
    }

    /// Keeps the spans of queues in a log, too.
    #[must_use]
    pub fn with_queue_log(mut self, log: &Arc<QueueLog>) -> Self {
        let only = Targets::new().with_target(noted::TARGET, noted::LEVEL);
        self.layers.push(queue_log::QueueLayer::new(Arc::clone(log)).with_filter(only).boxed());
        self
    }

    /// Begins to listen, in the whole process. Errors: somebody listens already.
    pub fn start(self) -> Result<Running, TelemetryError> {
        tracing_subscriber::registry().with(self.layers).try_init()?;
        Ok(self.running)
    }

    /// The layers for one thread and those that get its dispatcher: for tests and for programs with several.
    pub fn into_dispatch(self) -> (tracing::Dispatch, Running) {
        (tracing::Dispatch::new(tracing_subscriber::registry().with(self.layers)), self.running)
    }
}

/// [`Telemetry::new`] and [`Telemetry::start`]. Errors: those of both.
pub fn init(options: &Options, usual: &str) -> Result<Running, TelemetryError> {
    Telemetry::new(options, usual)?.start()
}

fn lines(options: &Options, usual: &str) -> Result<BoxedLayer, TelemetryError> {
    let filter = options.log.as_deref().unwrap_or(usual);
    let read = EnvFilter::builder().parse(filter);
    let read = read.map_err(|why| TelemetryError::Filter { filter: filter.to_owned(), why })?;
    let layer = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    Ok(match options.log_format {
        LogFormat::Readable => layer.compact().with_ansi(false).with_filter(read).boxed(),
        LogFormat::Json => layer.json().flatten_event(true).with_filter(read).boxed(),
    })
}

impl Running {
    /// Ends the file and sends what was not sent yet. Errors: the first that failed.
    pub fn finish(mut self) -> Result<(), TelemetryError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), TelemetryError> {
        let file = self.file.take().map_or(Ok(()), |file| {
            file.finish().map_err(|why| TelemetryError::File { path: file.path().to_owned(), why })
        });
        let otlp = self.otlp.take().map_or(Ok(()), |(endpoint, provider)| {
            provider.shutdown().map_err(|why| TelemetryError::Otlp { endpoint, why: why.to_string() })
        });
        file.and(otlp)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Nobody is left to tell.
        let _ = self.end();
    }
}

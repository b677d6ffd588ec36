//! Spans to an OpenTelemetry collector: protocol buffers over HTTP, in batches, by a thread of their own.

use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{ExporterBuildError, Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::Registry;

/// Where collectors take traces.
const PATH: &str = "/v1/traces";

/// The layer, and what sends the rest when it is shut down. `endpoint` is the collector's address with or without the path.
///
/// Errors: an address that is none.
pub(super) fn layer(
    endpoint: &str,
) -> Result<(OpenTelemetryLayer<Registry, SdkTracer>, SdkTracerProvider), ExporterBuildError> {
    let base = endpoint.trim_end_matches('/');
    let whole = if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") };
    let exporter =
        SpanExporter::builder().with_http().with_protocol(Protocol::HttpBinary).with_endpoint(whole).build()?;
    let resource = Resource::builder().with_service_name("loadmaster").build();
    let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("loadmaster"));
    Ok((layer.with_location(false).with_threads(false), provider))
}

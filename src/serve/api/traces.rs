//! What devices did for the last requests.

use crate::serve::error::ApiError;
use crate::serve::requests::Request;
use crate::serve::state::ServiceState;
use crate::telemetry::QueueSpan;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// The requests that are kept.
#[utoipa::path(get, path = "/api/v1/traces", tag = "loadmaster",
    responses((status = 200, description = "the requests, oldest first; times in microseconds since the service began")))]
pub(super) async fn traces(State(state): State<Arc<ServiceState>>) -> Json<Value> {
    let traces: Vec<Value> = state.core.requests.list().iter().map(request).collect();
    Json(json!({ "traces": traces }))
}

/// What devices did for a request.
#[utoipa::path(get, path = "/api/v1/traces/{id}", tag = "loadmaster", params(("id" = String, Path, description = "its id")),
    responses(
        (status = 200, description = "what queues did while it ran, by beginning: `split`, `copy` and `sync`; times in microseconds from the request's start, below 0 for what had begun before"),
        (status = 404, description = "no such request is kept")))]
pub(super) async fn trace(
    State(state): State<Arc<ServiceState>>,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let trace = state.core.requests.trace(&id).ok_or_else(|| super::nothing("trace of that request"))?;
    let mut told = request(&trace.request);
    told["spans"] = trace.spans.iter().map(|s| span(s, trace.request.start)).collect();
    told["left_out"] = trace.left_out.into();
    Ok(Json(told))
}

fn request(request: &Request) -> Value {
    json!({
        "id": request.id,
        "model": request.model,
        "tokens": request.tokens,
        "started_us": micros(request.start),
        "duration_us": micros(request.end.saturating_sub(request.start)),
    })
}

fn span(span: &QueueSpan, start: Duration) -> Value {
    json!({
        "device": span.device,
        "kind": span.kind.word(),
        "name": span.name,
        "start_us": micros(span.start) - micros(start),
        "end_us": micros(span.end) - micros(start),
        "bytes": span.bytes,
        "link": span.link,
    })
}

/// With thousandths: copies are shorter than a microsecond.
fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1000.0
}

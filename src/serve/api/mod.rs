//! Loadmaster's own API: devices, models, placement, plans, events.

mod events;
mod models;
mod placement;
mod plans;
mod traces;

use super::error::ApiError;
use super::state::ServiceState;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use loadmaster_backends::DeviceStats;
use loadmaster_graph::Bytes;
use serde_json::{Value, json};
use std::sync::Arc;
use utoipa_axum::{router::OpenApiRouter, routes};

pub(super) fn router() -> OpenApiRouter<Arc<ServiceState>> {
    OpenApiRouter::new()
        .routes(routes!(placement::devices))
        .routes(routes!(placement::placement))
        .routes(routes!(placement::history))
        .routes(routes!(placement::arena))
        .routes(routes!(models::list, models::load))
        .routes(routes!(models::unload))
        .routes(routes!(models::pin))
        .routes(routes!(plans::plan))
        .routes(routes!(plans::graph))
        .routes(routes!(traces::traces))
        .routes(routes!(traces::trace))
        .routes(routes!(events::events))
        .routes(routes!(stats))
}

/// Paths that need no token: they tell nothing but a word.
pub(super) fn health_router() -> Router<Arc<ServiceState>> {
    Router::new().route("/health", get(health)).route("/ready", get(ready))
}

async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

async fn ready(State(state): State<Arc<ServiceState>>) -> (StatusCode, Json<Value>) {
    if state.is_ready() {
        return (StatusCode::OK, Json(json!({ "status": "ready" })));
    }
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "not ready" })))
}

/// Speed, queue, bytes moved, plans.
#[utoipa::path(get, path = "/api/v1/stats", tag = "loadmaster",
    responses((status = 200, description = "the counters")))]
async fn stats(State(state): State<Arc<ServiceState>>) -> Json<Value> {
    Json(stats_value(&state))
}

/// Bytes that devices copied.
pub(super) fn bytes_moved(stats: &DeviceStats) -> Bytes {
    [stats.to_device, stats.to_host, stats.peer].into_iter().map(|c| c.bytes).sum()
}

/// The counters as they are told.
pub(super) fn stats_value(state: &ServiceState) -> Value {
    let stats = &state.core.stats;
    let depths = state.models().into_iter().map(|m| m.mailbox.depth());
    let (queue, running) = depths.fold((0, 0), |(q, r), (waiting, running)| (q + waiting, r + running));
    let moved: Bytes = state.core.devices.values().map(|d| bytes_moved(&d.stats())).sum();
    json!({
        "tokens_per_second": stats.tokens_per_second(),
        "queue": queue,
        "running": running,
        "bytes_moved": moved.get(),
        "plans_made": stats.plans_made(),
        "plans_reused": stats.plans_reused(),
        "requests": stats.requests(),
        "failures": stats.failures(),
        "tokens": stats.tokens(),
        "prompt_tokens": stats.prompt_tokens(),
    })
}

/// 404.
pub(super) fn nothing(what: &str) -> ApiError {
    ApiError::not_found("not_found", format!("there is no {what}"))
}

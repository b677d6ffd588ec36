//! Loading, unloading, pinning.

use crate::serve::body::Json;
use crate::serve::error::ApiError;
use crate::serve::model::Entry;
use crate::serve::openai::blocking;
use crate::serve::opening::LoadSpec;
use crate::serve::state::ServiceState;
use crate::serve::worker::End;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use utoipa::ToSchema;

/// Whether a model stays.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PinSpec {
    /// Whether it never goes for another.
    pinned: bool,
}

fn described(entry: &Entry) -> Value {
    let (waiting, running) = entry.mailbox.depth();
    json!({
        "id": entry.id, "state": entry.phase().name(), "pinned": entry.is_pinned(), "slots": entry.slots,
        "room": entry.room, "queue": waiting, "running": running, "name": entry.opened.model.name,
        "idle_ms": entry.mailbox.idle().map_or(0, |d| d.as_millis() as u64),
    })
}

/// The models, with what they are doing.
#[utoipa::path(get, path = "/api/v1/models", tag = "loadmaster",
    responses((status = 200, description = "the models")))]
pub(super) async fn list(State(state): State<Arc<ServiceState>>) -> axum::Json<Value> {
    axum::Json(json!({ "models": state.models().iter().map(|m| described(m)).collect::<Vec<_>>() }))
}

/// Loads a model where its plan fits beside the others.
#[utoipa::path(post, path = "/api/v1/models", tag = "loadmaster", request_body = LoadSpec, responses(
    (status = 201, description = "it is loaded"), (status = 400, description = "a field that makes no sense"),
    (status = 404, description = "no such file"), (status = 408, description = "the body came too slowly"),
    (status = 409, description = "the id is taken"), (status = 413, description = "too long"),
    (status = 415, description = "no JSON"), (status = 429, description = "a model that would have to go is in use"),
    (status = 503, description = "over capacity: device, deficit and relaxations")))]
pub(super) async fn load(
    State(state): State<Arc<ServiceState>>,
    Json(spec): Json<LoadSpec>,
) -> Result<(StatusCode, axum::Json<Value>), ApiError> {
    let own = Arc::clone(&state);
    let loaded = blocking(move || own.load(&spec)).await;
    let entry = loaded.inspect_err(|e| state.core.stats.failure(e.code))?;
    Ok((StatusCode::CREATED, axum::Json(described(&entry))))
}

/// Unloads a model once its requests have ended.
#[utoipa::path(delete, path = "/api/v1/models/{id}", tag = "loadmaster",
    params(("id" = String, Path, description = "its id")),
    responses((status = 200, description = "it is gone"), (status = 404, description = "no such model")))]
pub(super) async fn unload(
    State(state): State<Arc<ServiceState>>,
    Path(id): Path<String>,
) -> Result<axum::Json<Value>, ApiError> {
    let gone = id.clone();
    blocking(move || state.unload(&id, End::Drained)).await?;
    Ok(axum::Json(json!({ "id": gone, "unloaded": true })))
}

/// Pins a model, or lets it go for others.
#[utoipa::path(post, path = "/api/v1/models/{id}/pin", tag = "loadmaster", request_body = PinSpec,
    params(("id" = String, Path, description = "its id")),
    responses((status = 200, description = "done"), (status = 400, description = "a field that makes no sense"),
        (status = 404, description = "no such model"), (status = 408, description = "the body came too slowly"),
        (status = 413, description = "too long"), (status = 415, description = "no JSON")))]
pub(super) async fn pin(
    State(state): State<Arc<ServiceState>>,
    Path(id): Path<String>,
    Json(spec): Json<PinSpec>,
) -> Result<axum::Json<Value>, ApiError> {
    state.pin(&id, spec.pinned)?;
    Ok(axum::Json(json!({ "id": id, "pinned": spec.pinned })))
}

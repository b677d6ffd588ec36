//! What devices did for the last requests.

use crate::serve::error::ApiError;
use crate::serve::state::ServiceState;
use axum::Json;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;

/// The requests that are kept.
#[utoipa::path(get, path = "/api/v1/traces", tag = "loadmaster",
    responses((status = 200, description = "the requests, oldest first")))]
pub(super) async fn traces(State(_state): State<Arc<ServiceState>>) -> Json<Value> {
    Json(json!({ "traces": [] }))
}

/// What devices did for a request.
#[utoipa::path(get, path = "/api/v1/traces/{id}", tag = "loadmaster", params(("id" = String, Path, description = "its id")),
    responses((status = 200, description = "spans by device"), (status = 404, description = "no such request is kept")))]
pub(super) async fn trace(
    State(_state): State<Arc<ServiceState>>,
    Path(_id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    Err(super::nothing("trace of that request"))
}

//! Bodies of requests: bounded in bytes and in time, JSON, and errors that say where.

use super::error::ApiError;
use super::state::ServiceState;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header;
use serde::de::DeserializeOwned;
use std::sync::Arc;

/// A body of JSON.
#[derive(Clone, Debug)]
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<ServiceState>> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &Arc<ServiceState>) -> Result<Self, ApiError> {
        if !is_json(&request) {
            return Err(ApiError::not_json());
        }
        let bytes = read(request.into_body(), state.core.config.limits.body_bytes, state).await?;
        parse(&bytes).map(Self)
    }
}

fn is_json(request: &Request) -> bool {
    let kind = request.headers().get(header::CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
}

/// The bytes of a body. Errors: 413 more than `limit`, 408 not there in time, 400 broken off.
pub(super) async fn read(body: Body, limit: usize, state: &ServiceState) -> Result<Bytes, ApiError> {
    let time = state.core.config.limits.body_time();
    let too_large = || ApiError::too_large(None, format!("the body has more than {limit} bytes"));
    let read = tokio::time::timeout(time, to_bytes(body, limit)).await;
    let read = read.map_err(|_| ApiError::slow(format!("the body was not there after {} s", time.as_secs())))?;
    read.map_err(|error| {
        // The only way to tell the two apart: what the limit says of itself.
        let causes = std::iter::successors(std::error::Error::source(&error), |e| e.source());
        let limited = causes.into_iter().any(|e| e.to_string().contains("length limit"));
        if limited { too_large() } else { ApiError::malformed(format!("the body broke off: {error}")) }
    })
}

/// From JSON. Errors: 400 with the field.
pub(super) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        match error.classify() {
            serde_json::error::Category::Data => ApiError::field(field_of(&path, &error), error.to_string()),
            _ => ApiError::malformed(format!("the body is no JSON: {error}")),
        }
    })?;
    reader.end().map_err(|e| ApiError::malformed(format!("the body is no JSON: {e}")))?;
    Ok(parsed)
}

/// The path, or the field that the message names where the path says nothing.
fn field_of(path: &str, error: &serde_json::Error) -> String {
    if path != "." {
        return path.to_owned();
    }
    error.to_string().split('`').nth(1).unwrap_or_default().to_owned()
}

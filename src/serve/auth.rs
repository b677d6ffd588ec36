//! The bearer token, if the service has one.

use super::error::ApiError;
use super::state::ServiceState;
use axum::extract::{Request, State};
use axum::http::header;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use subtle::ConstantTimeEq;

/// Lets nobody pass who does not know the token. The comparison takes the same time wherever a wrong token differs.
pub(super) async fn check(State(state): State<Arc<ServiceState>>, request: Request, next: Next) -> Response {
    let Some(token) = &state.core.config.token else { return next.run(request).await };
    let given = request.headers().get(header::AUTHORIZATION).map(|v| v.as_bytes()).unwrap_or_default();
    let bearer = given.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
    let knows = bearer.is_some_and(|(_, given)| bool::from(given.ct_eq(token.as_bytes())));
    if knows { next.run(request).await } else { ApiError::unauthorized().into_response() }
}

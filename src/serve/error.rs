//! What a client is told when something does not work.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

/// An answer that is no success. The body is `{"error": {"message", "type", "code", "param", …}}`, as clients of
/// OpenAI's API expect it.
#[derive(Clone, PartialEq, Debug)]
pub struct ApiError {
    /// The status.
    pub status: StatusCode,
    /// A word for programs.
    pub code: &'static str,
    /// For people: what, where, what would help.
    pub message: String,
    /// The field of the request that is wrong.
    pub field: Option<String>,
    /// More for programs.
    pub details: Map<String, Value>,
    /// Seconds after which it is worth asking again.
    pub retry_after: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), field: None, details: Map::new(), retry_after: None }
    }

    /// 400: a field that makes no sense.
    #[must_use]
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(StatusCode::BAD_REQUEST, "invalid_value", message) }
    }
    /// 400: no JSON, or not of the form that is expected.
    #[must_use]
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", message)
    }
    /// 401.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "send the service's token as `Authorization: Bearer TOKEN`")
    }
    /// 404.
    #[must_use]
    pub fn not_found(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, code, message)
    }
    /// 409: not in the state that things are in.
    #[must_use]
    pub fn conflict(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, code, message)
    }
    /// 408: the request did not come in time.
    #[must_use]
    pub fn slow(message: impl Into<String>) -> Self {
        Self::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message)
    }
    /// 413.
    #[must_use]
    pub fn too_large(field: Option<&str>, message: impl Into<String>) -> Self {
        Self { field: field.map(str::to_owned), ..Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message) }
    }
    /// 415.
    #[must_use]
    pub fn not_json() -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", "send JSON, with `Content-Type: application/json`")
    }
    /// 429: more is waiting than may wait.
    #[must_use]
    pub fn busy(message: impl Into<String>, seconds: u32) -> Self {
        Self { retry_after: Some(seconds), ..Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", message) }
    }
    /// 500: our fault.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
    }
    /// 503: not now.
    #[must_use]
    pub fn unavailable(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message)
    }

    /// The same with one detail more.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.details.insert(key.to_owned(), value.into());
        self
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> Value {
        let kind = match self.status {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            s if s.is_client_error() => "invalid_request_error",
            _ => "server_error",
        };
        let mut error = self.details.clone();
        let named = [
            ("message", json!(self.message)),
            ("type", json!(kind)),
            ("code", json!(self.code)),
            ("param", json!(self.field)),
        ];
        error.extend(named.map(|(k, v)| (k.to_owned(), v)));
        json!({ "error": error })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

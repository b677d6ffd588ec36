//! The service: plans, models and generation over HTTP, and a page that shows where everything lies.
//!
//! Threads: handlers run on tokio's workers and never wait for a model; a model has a thread of its own that owns its
//! engine ([`worker`]); whatever loads or plans runs on tokio's blocking threads. Locks and their order: [`core`].

pub mod api;
mod auth;
mod body;
pub mod config;
pub mod core;
pub mod dashboard;
pub mod error;
pub mod events;
pub mod history;
pub mod ledger;
mod listen;
pub mod model;
pub mod openai;
pub mod opening;
pub mod picture;
mod placing;
mod replacing;
pub mod requests;
pub mod residual;
pub mod scrape;
pub mod state;
pub mod stats;
pub mod worker;

pub use config::{Config, Limits};
pub use error::ApiError;
pub use listen::serve;
pub use opening::LoadSpec;
pub use state::ServiceState;
pub use worker::End;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::get;
use std::sync::Arc;
use tower_http::catch_panic::CatchPanicLayer;
use utoipa::OpenApi;
use utoipa_axum::router::OpenApiRouter;

#[derive(OpenApi)]
#[openapi(info(title = "loadmaster", description = "Plans, models and generation over several devices"))]
struct Described;

/// All routes of the service, in the form that a server or a test takes.
pub fn app(state: &Arc<ServiceState>) -> Router {
    let described = OpenApiRouter::with_openapi(Described::openapi()).merge(openai::router()).merge(api::router());
    let (routes, document) = described.split_for_parts();
    let document = Arc::new(document);
    let tell = move || std::future::ready(axum::Json((*document).clone()));
    let guarded = routes
        .route("/api/openapi.json", get(tell))
        .route("/metrics", get(scrape::scrape))
        .fallback(not_found)
        .method_not_allowed_fallback(not_allowed)
        .layer(from_fn_with_state(Arc::clone(state), auth::check));
    dashboard::router()
        .merge(api::health_router())
        .merge(guarded)
        .layer(from_fn_with_state(Arc::clone(state), listen::note_request))
        .layer(CatchPanicLayer::new())
        .with_state(Arc::clone(state))
}

async fn not_found(uri: axum::http::Uri) -> ApiError {
    ApiError::not_found("no_such_path", format!("there is nothing at {}", uri.path()))
}

async fn not_allowed(method: axum::http::Method, uri: axum::http::Uri) -> ApiError {
    ApiError {
        status: axum::http::StatusCode::METHOD_NOT_ALLOWED,
        ..ApiError::not_found("method_not_allowed", format!("{} cannot be asked with {method}", uri.path()))
    }
}

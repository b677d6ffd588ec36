//! A service that says what it was told to say, on a real socket.

use crate::canned::Canned;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::response::sse::{Event, Sse};
use axum::routing::get;
use axum::{Json, Router};
use loadmaster::serve::dashboard;
use serde_json::Value;
use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use tokio::sync::broadcast;
use tokio_stream::{Stream, StreamExt, wrappers::BroadcastStream};

/// The service; it ends with its value.
pub struct Fixture {
    /// Where it listens.
    pub address: SocketAddr,
    said: Arc<Said>,
    _runtime: tokio::runtime::Runtime,
}

struct Said {
    canned: Mutex<Canned>,
    events: broadcast::Sender<Value>,
}

type Shared = State<Arc<Said>>;

impl Fixture {
    pub fn start(canned: Canned) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let said = Arc::new(Said { canned: Mutex::new(canned), events: broadcast::channel(64).0 });
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let api = api().route_layer(middleware::from_fn_with_state(Arc::clone(&said), authorised));
        let app = api.merge(dashboard::router()).with_state(Arc::clone(&said));
        runtime.spawn(async move { axum::serve(listener, app).await });
        Self { address, said, _runtime: runtime }
    }

    pub fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    /// Changes what is said.
    pub fn change(&self, change: impl FnOnce(&mut Canned)) {
        change(&mut self.said.canned.lock().unwrap());
    }

    /// Sends an event to whoever listens. Returns how many do.
    pub fn send(&self, event: Value) -> usize {
        self.said.events.send(event).unwrap_or(0)
    }
}

fn api() -> Router<Arc<Said>> {
    Router::new()
        .route("/api/v1/devices", get(|s: Shared| answer(s, |c| c.devices.clone())))
        .route("/api/v1/placement", get(|s: Shared| answer(s, |c| c.placement.clone())))
        .route("/api/v1/placement/history", get(|s: Shared| answer(s, |c| c.history.clone())))
        .route("/api/v1/stats", get(|s: Shared| answer(s, |c| c.stats.clone())))
        .route("/api/v1/traces", get(|s: Shared| answer(s, |c| c.traces.clone())))
        .route("/api/v1/traces/{id}", get(trace))
        .route("/api/v1/models/{id}/arena", get(arena))
        .route("/api/v1/events", get(events))
}

/// Lets those through who bring the token, if there is one.
async fn authorised(State(said): Shared, request: Request, next: Next) -> Result<Response, StatusCode> {
    let wanted = said.canned.lock().unwrap().token.map(|t| format!("Bearer {t}"));
    let given = request.headers().get("authorization").and_then(|v| v.to_str().ok());
    match wanted {
        Some(wanted) if given != Some(wanted.as_str()) => Err(StatusCode::UNAUTHORIZED),
        _ => Ok(next.run(request).await),
    }
}

async fn answer(State(said): Shared, of: impl FnOnce(&Canned) -> Value) -> Json<Value> {
    Json(of(&said.canned.lock().unwrap()))
}

async fn trace(State(said): Shared, Path(id): Path<String>) -> Result<Json<Value>, StatusCode> {
    said.canned.lock().unwrap().trace.get(&id).cloned().map(Json).ok_or(StatusCode::NOT_FOUND)
}

async fn arena(
    State(said): Shared,
    Path(id): Path<String>,
    Query(asked): Query<HashMap<String, String>>,
) -> Result<Json<Value>, StatusCode> {
    let of = |name| asked.get(name).cloned().unwrap_or_default();
    let key = (id, of("device"), of("graph"));
    said.canned.lock().unwrap().arenas.get(&key).cloned().map(Json).ok_or(StatusCode::NOT_FOUND)
}

async fn events(State(said): Shared) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let received = BroadcastStream::new(said.events.subscribe()).filter_map(Result::ok);
    Sse::new(received.map(|e| Ok(Event::default().event(e["kind"].as_str().unwrap_or("")).data(e.to_string()))))
}

//! The part of OpenAI's API that generates: models, completions, conversations.

mod answer;
mod ask;
pub mod request;
mod shape;

use super::body::Json;
use super::config::Limits;
use super::error::ApiError;
use super::model::{Entry, Phase};
use super::state::ServiceState;
use super::worker::Refusal;
use answer::Answers;
use ask::Ask;
use axum::extract::{Path, State};
use axum::response::sse::{KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use request::{ChatRequest, CompletionRequest, Delivery};
use serde_json::{Value, json};
use shape::{Head, Shape};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;
use utoipa_axum::{router::OpenApiRouter, routes};

/// Seconds after which a full queue is worth asking again.
const RETRY_SECONDS: u32 = 1;

pub(super) fn router() -> OpenApiRouter<Arc<ServiceState>> {
    OpenApiRouter::new()
        .routes(routes!(models))
        .routes(routes!(model))
        .routes(routes!(completions))
        .routes(routes!(chat))
}

fn described(entry: &Entry) -> Value {
    json!({ "id": entry.id, "object": "model", "created": entry.created, "owned_by": "loadmaster" })
}

/// The models that are loaded.
#[utoipa::path(get, path = "/v1/models", tag = "openai", responses((status = 200, description = "a list of models")))]
async fn models(State(state): State<Arc<ServiceState>>) -> axum::Json<Value> {
    let models: Vec<Value> = state.models().iter().map(|m| described(m)).collect();
    axum::Json(json!({ "object": "list", "data": models }))
}

/// A model.
#[utoipa::path(get, path = "/v1/models/{id}", tag = "openai", params(("id" = String, Path, description = "its id")),
    responses((status = 200, description = "the model"), (status = 404, description = "no such model")))]
async fn model(State(state): State<Arc<ServiceState>>, Path(id): Path<String>) -> Result<axum::Json<Value>, ApiError> {
    Ok(axum::Json(described(&*state.model(Some(&id))?)))
}

/// Continues texts.
#[utoipa::path(post, path = "/v1/completions", tag = "openai", request_body = CompletionRequest, responses(
    (status = 200, description = "the answers, or a stream of their pieces"),
    (status = 400, description = "a field that makes no sense"), (status = 404, description = "no such model"),
    (status = 408, description = "the body came too slowly"), (status = 413, description = "too long"),
    (status = 415, description = "no JSON"), (status = 429, description = "too many wait"),
    (status = 503, description = "the model cannot answer now")))]
async fn completions(
    State(state): State<Arc<ServiceState>>,
    Json(request): Json<CompletionRequest>,
) -> Result<Response, ApiError> {
    let delivery = request.delivery();
    answer(&state, Shape::Text, delivery, move |entry, limits| Ask::completion(&request, entry, limits)).await
}

/// Goes on with a conversation.
#[utoipa::path(post, path = "/v1/chat/completions", tag = "openai", request_body = ChatRequest, responses(
    (status = 200, description = "the answers, or a stream of their pieces"),
    (status = 400, description = "a field that makes no sense"), (status = 404, description = "no such model"),
    (status = 408, description = "the body came too slowly"), (status = 413, description = "too long"),
    (status = 415, description = "no JSON"), (status = 429, description = "too many wait"),
    (status = 503, description = "the model cannot answer now")))]
async fn chat(State(state): State<Arc<ServiceState>>, Json(request): Json<ChatRequest>) -> Result<Response, ApiError> {
    let delivery = request.delivery();
    answer(&state, Shape::Chat, delivery, move |entry, limits| Ask::chat(&request, entry, limits)).await
}

/// Runs what may take long on a thread that may block.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|e| ApiError::internal(format!("a thread ended: {e}")))?
}

async fn answer(
    state: &Arc<ServiceState>,
    shape: Shape,
    Delivery { model, stream, options }: Delivery,
    ask: impl FnOnce(&Entry, &Limits) -> Result<Ask, ApiError> + Send + 'static,
) -> Result<Response, ApiError> {
    let entry = state.model(model.as_deref())?;
    let (own, limits) = (Arc::clone(&entry), state.core.config.limits.clone());
    let ask = blocking(move || ask(&own, &limits)).await?;
    if let Err(error) = may_answer(&entry) {
        state.core.stats.failure(error.code);
        return Err(error);
    }
    let head = Head { id: new_id(shape.prefix()), model: entry.id.clone(), created: super::opening::seconds() };
    let (out, updates) = mpsc::unbounded_channel();
    let jobs = ask.jobs(&head.id, &out);
    drop(out);
    let (count, choices) = (jobs.len(), ask.choices as usize);
    state.core.stats.request();
    if let Err(refusal) = entry.mailbox.push(jobs, entry.slots) {
        let error = refused(&entry, refusal);
        state.core.stats.failure(error.code);
        return Err(error);
    }
    let answers = Answers { shape, head, count, choices, updates, state: Arc::clone(state) };
    let limit = state.core.config.limits.request_time();
    if stream {
        let events = answers.stream(limit, options.include_usage);
        return Ok(Sse::new(events).keep_alive(KeepAlive::default()).into_response());
    }
    match answers.whole(limit).await {
        Ok(value) => Ok(axum::Json(value).into_response()),
        Err(error) => {
            state.core.stats.failure(error.code);
            Err(error)
        }
    }
}

fn may_answer(entry: &Entry) -> Result<(), ApiError> {
    match entry.phase() {
        Phase::Ready | Phase::Replacing => Ok(()),
        phase => {
            let message = format!("the model `{}` is {}", entry.id, phase.name());
            Err(ApiError { retry_after: Some(RETRY_SECONDS), ..ApiError::unavailable("model_not_ready", message) })
        }
    }
}

fn refused(entry: &Entry, refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::Full { waiting } => {
            let message = format!("{waiting} requests wait for the model `{}`, and more may not", entry.id);
            ApiError::busy(message, RETRY_SECONDS).with("waiting", waiting)
        }
        Refusal::Ending => ApiError::unavailable("model_unloaded", format!("the model `{}` is going", entry.id)),
    }
}

/// Ids that are different in every run of the service.
fn new_id(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}-{:016x}{number:08x}", RandomState::new().hash_one(number))
}

//! Events as they happen.

use crate::serve::error::ApiError;
use crate::serve::events::{Event, EventKind};
use crate::serve::state::ServiceState;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;
use tokio_stream::wrappers::{BroadcastStream, IntervalStream, WatchStream};
use tokio_stream::{Stream, StreamExt};

/// How often counters are told.
const STATS_EVERY: Duration = Duration::from_secs(1);
/// Seconds after which a follower may be welcome.
const RETRY_SECONDS: u32 = 5;

/// What a follower is told, or that it is over.
enum Told {
    Event(Arc<Event>),
    Stats,
    Over,
}

/// Follows what happens: reserve, grow, bind, copy_path, admission, eviction, load, unload, failure, request, stats.
/// `Last-Event-ID` tells what was seen already.
#[utoipa::path(get, path = "/api/v1/events", tag = "loadmaster", responses(
    (status = 200, description = "server-sent events, until the client goes"),
    (status = 429, description = "too many follow already")))]
pub(super) async fn events(State(state): State<Arc<ServiceState>>, headers: HeaderMap) -> Result<Response, ApiError> {
    let Ok(permit) = Arc::clone(&state.followers).try_acquire_owned() else {
        let limit = state.core.config.limits.followers;
        return Err(ApiError::busy(format!("{limit} clients follow the events, and more may not"), RETRY_SECONDS));
    };
    let last = headers.get("last-event-id").and_then(|v| v.to_str().ok()).and_then(|v| v.parse().ok()).unwrap_or(0);
    Ok(Sse::new(stream(state, last, permit)).keep_alive(KeepAlive::default()).into_response())
}

fn stream(
    state: Arc<ServiceState>,
    last: u64,
    permit: OwnedSemaphorePermit,
) -> impl Stream<Item = Result<sse::Event, Infallible>> {
    let (kept, live) = state.core.events.follow(last);
    // A follower that lags behind misses events: it sees that numbers are missing.
    let live =
        BroadcastStream::new(live).filter_map(Result::ok).filter(|e| e.kind != EventKind::Stats).map(Told::Event);
    let kept = tokio_stream::iter(kept).map(Told::Event);
    let every = IntervalStream::new(tokio::time::interval(STATS_EVERY)).map(|_| Told::Stats);
    let over = WatchStream::new(state.watch_end()).filter(|ends| *ends).map(|_| Told::Over);
    let all: Pin<Box<dyn Stream<Item = Told> + Send>> = Box::pin(kept.chain(live.merge(every).merge(over)));
    all.take_while(|told| !matches!(told, Told::Over)).map(move |told| {
        let _held = &permit;
        Ok(match told {
            Told::Event(event) => {
                sse::Event::default().event(event.kind.name()).id(event.seq.to_string()).data(&event.data)
            }
            Told::Stats | Told::Over => stats(&state),
        })
    })
}

/// Counters have no number: whoever comes back has missed none.
fn stats(state: &ServiceState) -> sse::Event {
    let mut value = super::stats_value(state);
    value["at_us"] = state.core.events.now_us().into();
    value["kind"] = EventKind::Stats.name().into();
    sse::Event::default().event(EventKind::Stats.name()).data(value.to_string())
}

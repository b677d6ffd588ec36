//! `GET /metrics`: the ledger and the counters as Prometheus reads them.

use super::error::ApiError;
use super::state::ServiceState;
use super::stats::{TIME_CLASSES, Times};
use crate::telemetry::metrics::{self, DeviceBytes, Distribution, ModelBytes, Snapshot};
use axum::extract::State;
use axum::http::{HeaderName, header};
use loadmaster_graph::{Bytes, DeviceId};
use std::sync::Arc;

pub(super) async fn scrape(
    State(state): State<Arc<ServiceState>>,
) -> Result<([(HeaderName, &'static str); 1], String), ApiError> {
    let text = metrics::text(&snapshot(&state)).map_err(|e| ApiError::internal(e.to_string()))?;
    Ok(([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text))
}

/// What a scrape says now.
#[must_use]
pub fn snapshot(state: &ServiceState) -> Snapshot {
    let (core, stats) = (&state.core, &state.core.stats);
    let depths = state.models().into_iter().map(|m| m.mailbox.depth());
    let (queue, running) = depths.fold((0, 0), |(q, r), (waiting, running)| (q + waiting, r + running));
    Snapshot {
        devices: devices(state),
        plans_made: stats.plans_made(),
        plans_reused: stats.plans_reused(),
        links: core.requests.log().totals(),
        queue: queue as u64,
        running: running as u64,
        requests: stats.requests(),
        prompt_tokens: stats.prompt_tokens(),
        generated_tokens: stats.tokens(),
        failures: stats.failures_by_kind().into_iter().map(|(kind, n)| (kind.to_owned(), n)).collect(),
        time_to_first_token: distribution(&stats.time_to_first_token()),
        time_per_token: distribution(&stats.time_per_token()),
    }
}

fn distribution(times: &Times) -> Distribution {
    Distribution { ends: TIME_CLASSES.to_vec(), counts: times.counts.to_vec(), sum: times.sum }
}

fn devices(state: &ServiceState) -> Vec<DeviceBytes> {
    let machine = &state.core.machine;
    let ledger = state.core.ledger.lock().clone();
    let holdings = ledger.holdings();
    let models = |id: DeviceId| {
        let needs = holdings.iter().map(move |(model, held)| (model, &held.needs[id]));
        let here = needs.filter(|(_, need)| need.total() > Bytes::ZERO);
        here.map(|(model, need)| ModelBytes {
            model: model.clone(),
            weights: need.weights.get(),
            kv: need.cache.get(),
            compute: need.compute.get(),
            workspace: need.workspace.get(),
            compute_bound: need.bound.get(),
        })
    };
    let device = |id: DeviceId| {
        let pool = machine.compute_type(id).pool;
        let (limit, held) = (ledger.capacity(pool), ledger.used(pool));
        let models: Vec<ModelBytes> = models(id).collect();
        DeviceBytes {
            device: machine.device(id).name.to_string(),
            pool: machine.pools()[pool].name.to_string(),
            limit: limit.map(Bytes::get),
            used: models.iter().map(|m| m.weights + m.kv + m.compute + m.workspace).sum(),
            free: limit.map(|l| l.saturating_sub(held).get()),
            models,
        }
    };
    machine.devices().ids().map(device).collect()
}

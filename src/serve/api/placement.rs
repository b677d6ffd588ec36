//! Devices, and what lies where.

use crate::serve::core::Core;
use crate::serve::error::ApiError;
use crate::serve::ledger::Ledger;
use crate::serve::model::Entry;
use crate::serve::picture::{ArenaPicture, GraphKind};
use crate::serve::state::ServiceState;
use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use loadmaster_graph::{Bytes, DeviceId};
use loadmaster_sched::machine::Pool;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use utoipa::IntoParams;

/// The devices with their pools and links.
#[utoipa::path(get, path = "/api/v1/devices", tag = "loadmaster",
    responses((status = 200, description = "the devices")))]
pub(super) async fn devices(State(state): State<Arc<ServiceState>>) -> Json<Value> {
    let core = &state.core;
    let devices: Vec<Value> = core.machine.devices().ids().map(|id| device(core, id)).collect();
    Json(json!({ "devices": devices }))
}

fn device(core: &Core, id: DeviceId) -> Value {
    let described = core.machine.device(id);
    let own = core.machine.compute_type(id).pool;
    let memory = core.devices[id].memory();
    let pool = |(pool, held): (_, &Pool)| {
        let total = held.capacity.or(memory.total.filter(|_| pool == own));
        let free = if pool == own { memory.free } else { None };
        json!({ "name": &*held.name, "kind": held.kind.to_string(), "total": total.map(Bytes::get), "free": free.map(Bytes::get) })
    };
    let pools: Vec<Value> =
        core.machine.pools().iter().filter(|(p, _)| described.pools.contains(p)).map(pool).collect();
    let link = |report: &loadmaster_sched::exec::PathReport| {
        json!({
            "to": &*core.machine.device(report.to).name,
            "path": report.path.to_string(),
            "why": report.why,
            "bandwidth": report.bandwidth.map(f64::round),
        })
    };
    let links: Vec<Value> = core.paths.iter().filter(|r| r.from == id).map(link).collect();
    let health = core.devices[id].health();
    json!({
        "name": &*described.name,
        "kind": described.kind.to_string(),
        "driver": described.driver.to_string(),
        "alive": health.is_ok(),
        "why": health.err().map(|e| e.to_string()),
        "pools": pools,
        "links": links,
    })
}

/// What lies where now.
#[utoipa::path(get, path = "/api/v1/placement", tag = "loadmaster",
    responses((status = 200, description = "devices with what models hold there, and models with their layers")))]
pub(super) async fn placement(State(state): State<Arc<ServiceState>>) -> Json<Value> {
    let core = &state.core;
    let ledger = core.ledger.lock().clone();
    let devices: Vec<Value> = core.machine.devices().ids().map(|id| held(core, &ledger, id)).collect();
    let models: Vec<Value> = state.models().iter().map(|m| placed(m)).collect();
    Json(json!({ "version": core.history.version(), "devices": devices, "models": models }))
}

fn held(core: &Core, ledger: &Ledger, id: DeviceId) -> Value {
    let pool = core.machine.compute_type(id).pool;
    let limit = ledger.capacity(pool);
    let used: Bytes = ledger.holdings().values().map(|h| h.needs[id].total()).sum();
    let models: Vec<Value> = ledger
        .holdings()
        .iter()
        .map(|(model, h)| (model, &h.needs[id]))
        .filter(|(_, need)| need.total() > Bytes::ZERO)
        .map(|(model, need)| {
            json!({
                "model": model, "weights": need.weights.get(), "kv": need.cache.get(), "compute": need.compute.get(),
                "compute_bound": need.bound.get(), "workspace": need.workspace.get(),
            })
        })
        .collect();
    json!({
        "name": &*core.machine.device(id).name,
        "kind": core.machine.device(id).kind.to_string(),
        "limit": limit.map(Bytes::get),
        "used": used.get(),
        "free": limit.map(|l| l.saturating_sub(ledger.used(pool)).get()),
        "models": models,
    })
}

fn placed(entry: &Entry) -> Value {
    let picture = entry.picture();
    let layers: Vec<Value> = picture
        .layers
        .iter()
        .map(|l| json!({ "layer": l.layer, "device": &*l.device, "cause": l.cause, "changed": l.changed }))
        .collect();
    json!({
        "id": entry.id,
        "state": entry.phase().name(),
        "pinned": entry.is_pinned(),
        "idle_ms": entry.mailbox.idle().map_or(0, |d| d.as_millis() as u64),
        "layers": layers,
        "arenas": picture.arenas.iter().map(arena_head).collect::<Vec<_>>(),
    })
}

fn arena_head(a: &ArenaPicture) -> Value {
    json!({
        "device": &*a.device, "buffer": a.buffer, "graph": a.graph.name(), "size": a.size.get(), "bound": a.bound.get(),
        "steps": a.steps, "peak_step": a.peak_step,
    })
}

/// What was held when.
#[utoipa::path(get, path = "/api/v1/placement/history", tag = "loadmaster",
    responses((status = 200, description = "the last changes, oldest first")))]
pub(super) async fn history(State(state): State<Arc<ServiceState>>) -> Json<Value> {
    let entries: Vec<Value> = state
        .core
        .history
        .moments()
        .into_iter()
        .map(|m| {
            let devices: Vec<Value> = m.used.iter().map(|(n, b)| json!({ "name": &**n, "used": b.get() })).collect();
            json!({ "at_us": m.at_us, "version": m.version, "cause": m.cause, "devices": devices })
        })
        .collect();
    Json(json!({ "entries": entries }))
}

/// Which arena.
#[derive(Debug, Deserialize, IntoParams)]
pub(super) struct ArenaQuery {
    /// The device's name.
    device: String,
    /// `prompt` or `decode`.
    graph: String,
}

/// The arena of a device for one of a model's graphs, tensor by tensor.
#[utoipa::path(get, path = "/api/v1/models/{id}/arena", tag = "loadmaster",
    params(("id" = String, Path, description = "the model's id"), ArenaQuery),
    responses((status = 200, description = "the arena"), (status = 400, description = "a parameter that makes no sense"),
        (status = 404, description = "no such model, or no arena there")))]
pub(super) async fn arena(
    State(state): State<Arc<ServiceState>>,
    Path(id): Path<String>,
    query: Result<Query<ArenaQuery>, QueryRejection>,
) -> Result<Json<Value>, ApiError> {
    let Query(query) = query.map_err(|e| ApiError::field("device", e.body_text()))?;
    let entry = state.model(Some(&id))?;
    let wrong = || ApiError::field("graph", format!("`{}` is no graph; write prompt or decode", query.graph));
    let kind = GraphKind::named(&query.graph).ok_or_else(wrong)?;
    let picture = entry.picture();
    let found = picture.arenas.iter().find(|a| *a.device == *query.device && a.graph == kind);
    let arena = found.ok_or_else(|| super::nothing("arena of that graph on that device"))?;
    let mut value = arena_head(arena);
    value["tensors"] = arena
        .tensors
        .iter()
        .map(|t| {
            json!({
                "name": t.name, "op": t.op, "chunk": t.chunk, "offset": t.offset.get(), "bytes": t.bytes.get(),
                "first": t.first, "last": t.last, "cause": t.cause,
            })
        })
        .collect();
    Ok(Json(value))
}

//! Plans without loading anything: of a model, and of a graph.

use crate::serve::body::{self, Json};
use crate::serve::error::ApiError;
use crate::serve::openai::blocking;
use crate::serve::opening;
use crate::serve::state::ServiceState;
use axum::extract::{Request, State};
use clap::Parser;
use loadmaster_graph::file::GraphFile;
use serde::Deserialize;
use serde_json::Value;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;
use utoipa::ToSchema;

/// Most devices that are planned for.
const MAX_DEVICES: usize = 64;
/// Longest value of an option.
const MAX_VALUE: usize = 4096;
/// Seconds after which a planner may be free.
const RETRY_SECONDS: u32 = 1;

/// A model to plan, as `loadmaster plan` takes it.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct PlanSpec {
    /// A file in the service's directory of models, or `embedded`.
    model: Option<String>,
    /// Devices, highest priority first, such as `rtx4090` or `sim:24GiB`; none: the service's machine.
    device: Vec<String>,
    /// Tokens of context, all sequences together.
    ctx: Option<u32>,
    /// Most tokens given at once.
    batch: Option<u32>,
    /// Most tokens of one run of a graph.
    ubatch: Option<u32>,
    /// Sequences.
    parallel: Option<u32>,
    /// `on` or `off`.
    flash_attn: Option<String>,
    /// Type of the KV cache.
    kv_type: Option<String>,
    /// Layers on GPUs.
    n_gpu_layers: Option<u32>,
    /// Shares of the GPUs, as `3,1`.
    tensor_split: Option<String>,
    /// Weights by name: `REGEX=DEVICE`.
    override_tensor: Vec<String>,
    /// Keep the KV cache on the host.
    no_kv_offload: bool,
    /// Bytes kept free in every pool, as `1GiB`.
    reserve: Option<String>,
    /// `decode`, `prefill` or `memory`.
    r#for: Option<String>,
    /// `best` or `ggml`.
    policy: Option<String>,
    /// Do not look for the longest context.
    no_longest: bool,
}

/// The command line that it stands for.
#[derive(Parser, Debug)]
#[command(no_binary_name = true)]
struct Line {
    #[command(flatten)]
    args: crate::commands::plan::Args,
}

impl PlanSpec {
    /// Values stand behind `=`, so that none of them is taken for an option.
    fn line(&self) -> Result<Line, ApiError> {
        let mut line = Vec::new();
        let mut say = |name: &str, value: Option<String>| {
            line.extend(value.map(|v| (name.to_owned(), v)));
        };
        self.device.iter().for_each(|d| say("device", Some(d.clone())));
        say("ctx", self.ctx.map(|n| n.to_string()));
        say("batch", self.batch.map(|n| n.to_string()));
        say("ubatch", self.ubatch.map(|n| n.to_string()));
        say("parallel", self.parallel.map(|n| n.to_string()));
        say("flash-attn", self.flash_attn.clone());
        say("kv-type", self.kv_type.clone());
        say("n-gpu-layers", self.n_gpu_layers.map(|n| n.to_string()));
        say("tensor-split", self.tensor_split.clone());
        self.override_tensor.iter().for_each(|o| say("override-tensor", Some(o.clone())));
        say("reserve", self.reserve.clone());
        say("for", self.r#for.clone());
        say("policy", self.policy.clone());
        if let Some((name, _)) = line.iter().find(|(_, v)| v.len() > MAX_VALUE) {
            return Err(ApiError::field(name.replace('-', "_"), format!("more than {MAX_VALUE} characters")));
        }
        let flags = [("--no-kv-offload", self.no_kv_offload), ("--no-longest", self.no_longest)];
        let flags = flags.into_iter().filter(|(_, set)| *set).map(|(name, _)| name.to_owned());
        let words = line.iter().map(|(name, value)| format!("--{name}={value}")).chain(flags);
        Line::try_parse_from(words).map_err(|e| {
            let said = e.to_string();
            let first = said.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned();
            let option = said.split("--").nth(1).map(|rest| rest.split([' ', '=', '\'']).next().unwrap_or_default());
            ApiError::field(option.unwrap_or_default().replace('-', "_"), first)
        })
    }
}

/// What a model takes on a machine, and where it fits best. Nothing is loaded.
#[utoipa::path(post, path = "/api/v1/plans", tag = "loadmaster", request_body = PlanSpec, responses(
    (status = 200, description = "what `loadmaster plan --format json` prints"),
    (status = 400, description = "a field that makes no sense"), (status = 404, description = "no such file"),
    (status = 408, description = "the body came too slowly"), (status = 413, description = "too long"),
    (status = 415, description = "no JSON"), (status = 429, description = "too many plans are being made")))]
pub(super) async fn plan(
    State(state): State<Arc<ServiceState>>,
    Json(spec): Json<PlanSpec>,
) -> Result<axum::Json<Value>, ApiError> {
    if spec.device.len() > MAX_DEVICES {
        return Err(ApiError::field("device", format!("more than {MAX_DEVICES} devices")));
    }
    let line = spec.line()?;
    let permit = permit(&state)?;
    let value = blocking(move || {
        let _held = permit;
        let model = opening::file_of(&state.core.config, spec.model.as_deref().unwrap_or(opening::EMBEDDED))?;
        let machine = spec.device.is_empty().then_some(&state.core.machine);
        let planned = crate::commands::plan::object(&line.args, &model, machine);
        planned.map_err(|e| ApiError::field("model", format!("{e:#}")))
    });
    Ok(axum::Json(value.await?))
}

/// The right to plan, held until planning has ended, whoever waits for it.
fn permit(state: &ServiceState) -> Result<OwnedSemaphorePermit, ApiError> {
    let limit = state.core.config.limits.planners;
    let busy = |_| ApiError::busy(format!("{limit} plans are being made, and no more may"), RETRY_SECONDS);
    Arc::clone(&state.planners).try_acquire_owned().map_err(busy)
}

/// Plans a graph file: devices, splits, ids, places. For back ends that schedule graphs of their own.
#[utoipa::path(post, path = "/api/v1/graphs", tag = "loadmaster", request_body(content = Object,
    description = "a graph file, as `loadmaster explain` reads it; `?policy=ggml` for ggml's rules"), responses(
    (status = 200, description = "what `loadmaster explain --format json` prints"),
    (status = 400, description = "no graph file, with the place"), (status = 408, description = "the body came too slowly"),
    (status = 413, description = "too long"), (status = 429, description = "too many plans are being made")))]
pub(super) async fn graph(
    State(state): State<Arc<ServiceState>>,
    request: Request,
) -> Result<axum::Json<Value>, ApiError> {
    let policy = match request.uri().query() {
        None | Some("" | "policy=best") => crate::commands::input::PolicyArg::Best,
        Some("policy=ggml") => crate::commands::input::PolicyArg::Ggml,
        Some(other) => return Err(ApiError::field("policy", format!("`{other}`: write policy=best or policy=ggml"))),
    };
    let bytes = body::read(request.into_body(), state.core.config.limits.graph_bytes, &state).await?;
    let permit = permit(&state)?;
    let value = blocking(move || {
        let _held = permit;
        let file = GraphFile::from_bytes(&bytes).map_err(|e| ApiError::field("graph", e.to_string()))?;
        crate::commands::explain::object(&file, policy).map_err(|e| ApiError::field("graph", format!("{e:#}")))
    });
    Ok(axum::Json(value.await?))
}

//! What a client may ask to be loaded, and the file that is meant.

use super::config::Config;
use super::error::ApiError;
use super::model::{EMBEDDED_TEMPLATE, Opened};
use super::placing::{Elsewhere, choice_refused, engine_refused};
use crate::engine::{Model, Prepared, Settings};
use crate::plan::Choices;
use crate::plan::choices::DEFAULT_KV_TYPE;
use loadmaster_models::chat::ChatTemplate;
use loadmaster_models::tokenizer::{Tokenizer, TokenizerError};
use serde::Deserialize;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use utoipa::ToSchema;

/// The path that means the model in the program.
pub const EMBEDDED: &str = "embedded";
/// Longest id of a model.
pub const MAX_ID: usize = 64;
/// Most tokens of a run of a graph, unless asked for: enough for a piece of a prompt.
const MICRO_BATCH: u32 = 256;

/// A model to load.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LoadSpec {
    /// What requests will call it: letters, digits, `-`, `_`, `.`.
    pub id: String,
    /// A file in the service's directory of models, or `embedded`.
    pub path: String,
    /// How it is placed and run.
    #[serde(default)]
    pub settings: SettingsSpec,
    /// Whether idle models may go for it; as the service is set up, if it is not said.
    #[serde(default)]
    pub evict: Option<bool>,
    /// Whether it never goes for another.
    #[serde(default)]
    pub pin: bool,
}

/// How a model is placed and run. What is not said is chosen by the service.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SettingsSpec {
    /// Tokens of context, all sequences together.
    pub ctx: Option<u32>,
    /// Most tokens of one run of a graph.
    pub ubatch: Option<u32>,
    /// Sequences that are decoded together.
    pub parallel: Option<u32>,
    /// Whether attention is one operation.
    pub flash_attn: Option<bool>,
    /// Type of the KV cache.
    pub kv_type: Option<String>,
    /// Layers on GPUs, counted from the last; the output counts as one.
    pub n_gpu_layers: Option<u32>,
    /// Shares of the GPUs.
    pub tensor_split: Option<Vec<f32>>,
    /// Weights by name: `REGEX=DEVICE`.
    pub override_tensor: Option<Vec<String>>,
    /// Whether the KV cache is with its layers.
    pub kv_offload: Option<bool>,
}

impl LoadSpec {
    /// The embedded model, under a name.
    #[must_use]
    pub fn embedded(id: impl Into<String>) -> Self {
        Self { id: id.into(), path: EMBEDDED.to_owned(), ..Self::default() }
    }

    /// What is chosen for a model. Errors: 400.
    pub(super) fn choices(&self, config: &Config, model: &Model) -> Result<Choices, ApiError> {
        let s = &self.settings;
        let parallel = s.parallel.unwrap_or(config.slots);
        let most = super::config::MAX_SLOTS;
        if parallel == 0 || parallel > most {
            let message = format!("parallel is {parallel}: it must be from 1 to {most}");
            return Err(ApiError::field("settings.parallel", message));
        }
        let usual = model.params.trained_context.min(config.context).saturating_mul(parallel);
        let ctx = s.ctx.unwrap_or(usual);
        if ctx < parallel {
            return Err(ApiError::field("settings.ctx", format!("ctx is {ctx}: {parallel} sequences share it")));
        }
        let ubatch = s.ubatch.unwrap_or_else(|| MICRO_BATCH.max(parallel).min(ctx));
        if ubatch > ctx {
            return Err(ApiError::field("settings.ubatch", format!("ubatch is {ubatch}, but ctx only {ctx}")));
        }
        let choices = Choices {
            ctx,
            batch: ubatch,
            ubatch,
            parallel,
            flash_attn: s.flash_attn.unwrap_or(false),
            kv_type: s.kv_type.clone().unwrap_or_else(|| DEFAULT_KV_TYPE.to_owned()),
            copies: 1,
            n_gpu_layers: s.n_gpu_layers,
            tensor_split: s.tensor_split.clone(),
            override_tensor: s.override_tensor.clone().unwrap_or_default(),
            kv_offload: s.kv_offload.unwrap_or(true),
        };
        choices.check().map_err(|e| choice_refused(&e))?;
        Ok(choices)
    }

    /// The search may look elsewhere where nothing says where anything goes.
    pub(super) fn elsewhere(&self) -> Elsewhere {
        let s = &self.settings;
        let said = s.n_gpu_layers.is_some() || s.tensor_split.is_some() || s.override_tensor.is_some();
        if said || s.kv_offload.is_some() { Elsewhere::Forbidden } else { Elsewhere::Allowed }
    }
}

/// Errors: 400, an id that could not stand in a path or that is too long.
pub(super) fn check_id(id: &str) -> Result<(), ApiError> {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    if id.is_empty() || id.len() > MAX_ID || !id.bytes().all(fits) || id.starts_with('.') {
        let message =
            format!("an id has 1 to {MAX_ID} letters, digits, `-`, `_` or `.`, and does not begin with a dot");
        return Err(ApiError::field("id", message));
    }
    Ok(())
}

/// The file that a path means: below the directory of models and nowhere else. Errors: 400.
pub(super) fn path_of(config: &Config, path: &str) -> Result<PathBuf, ApiError> {
    let plain = Path::new(path).components().all(|c| matches!(c, Component::Normal(_)));
    if path.is_empty() || path.contains('\0') || path.contains('\\') || !plain {
        let message = "a path names a file below the service's directory of models, without `..` and not from the root";
        return Err(ApiError::field("path", message));
    }
    Ok(config.models.join(path))
}

/// The file of a model. Errors: 400, 404.
pub(super) fn file_of(config: &Config, path: &str) -> Result<Model, ApiError> {
    if path == EMBEDDED {
        return Model::embedded().map_err(|e| ApiError::internal(e.to_string()));
    }
    let file = path_of(config, path)?;
    if !file.is_file() {
        let message = format!("there is no `{path}` in the service's directory of models");
        return Err(ApiError { field: Some("path".to_owned()), ..ApiError::not_found("file_not_found", message) });
    }
    if !lies_within(&file, &config.models) {
        let message = format!("`{path}` is a link that leads out of the service's directory of models");
        return Err(ApiError::field("path", message));
    }
    Model::open(&file).map_err(|e| {
        let refused = engine_refused(&e);
        // The client knows the file by the path that it gave.
        let message = refused.message.replace(&*file.to_string_lossy(), path);
        ApiError { message, ..refused }
    })
}

/// Whether a file is in a directory, links followed.
fn lies_within(file: &Path, directory: &Path) -> bool {
    let (Ok(file), Ok(directory)) = (file.canonicalize(), directory.canonicalize()) else { return false };
    file.starts_with(directory)
}

/// A model with its tokenizer and template. Errors: 400, 404.
pub(super) fn open(config: &Config, spec: &LoadSpec) -> Result<Opened, ApiError> {
    let model = Arc::new(file_of(config, &spec.path)?);
    let tokenizer = match Tokenizer::from_gguf(&model.file) {
        Ok(tokenizer) => Some(Arc::new(tokenizer)),
        Err(TokenizerError::NoVocabulary { .. }) => None,
        Err(error) => return Err(ApiError::field("path", error.to_string())),
    };
    let template = match &tokenizer {
        Some(_) if spec.path == EMBEDDED => ChatTemplate::new(EMBEDDED_TEMPLATE, "", ""),
        Some(tokenizer) => ChatTemplate::from_gguf(&model.file, tokenizer),
        None => Err(loadmaster_models::chat::ChatError::NoTemplate),
    };
    Ok(Opened { model, tokenizer, template })
}

/// Slots, and tokens that each has room for.
pub(super) fn size_of(settings: &Settings, prepared: &Prepared) -> (usize, u32) {
    let room = (settings.context / settings.sequences.max(1)).min(prepared.layout.cells);
    (settings.sequences as usize, room.max(1))
}

/// Seconds since 1970; 0 if the clock is set before that.
pub(super) fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

//! How the service is set up: TOML files as in `configs/serve`, read at the border with named limits.

use crate::files::{ReadError, read_text};
use serde::Deserialize;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest file in bytes.
pub const MAX_FILE_BYTES: u64 = 1 << 16;
/// Where the service listens unless told otherwise: this machine alone can reach it.
pub const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
/// Most slots of a model, as the KV cache has it.
pub const MAX_SLOTS: u32 = loadmaster_models::kv::MAX_SEQUENCES;

/// How the service is set up.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Models are loaded from here and from nowhere else.
    pub models: PathBuf,
    /// Who knows this may ask; `None`: everybody.
    pub token: Option<String>,
    /// Whether idle models may go so that another one fits, unless a request says otherwise.
    pub evict: bool,
    /// Sequences of a model that are decoded together.
    pub slots: u32,
    /// Tokens of context of each sequence, if the model's own is not shorter.
    pub context: u32,
    /// Limits.
    pub limits: Limits,
}

/// What is refused.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Bytes of the body of a request.
    pub body_bytes: usize,
    /// Bytes of the body of a graph file.
    pub graph_bytes: usize,
    /// Tokens of a prompt; the context is a limit, too.
    pub prompt_tokens: u32,
    /// Tokens of an answer.
    pub answer_tokens: u32,
    /// Answers to one prompt, and prompts of one request times answers.
    pub choices: u32,
    /// Stop strings of a request.
    pub stops: usize,
    /// Bytes of a stop string.
    pub stop_bytes: usize,
    /// Probable tokens that are told of each token.
    pub logprobs: u32,
    /// Requests that wait for a slot of a model.
    pub queue: usize,
    /// Models.
    pub models: usize,
    /// Connections; more wait until one ends.
    pub connections: usize,
    /// Connections that follow events.
    pub followers: usize,
    /// Plans that are made at the same time.
    pub planners: usize,
    /// Seconds in which the head of a request must have come.
    pub header_seconds: u64,
    /// Seconds in which the body of a request must have come.
    pub body_seconds: u64,
    /// Seconds that a request may take.
    pub request_seconds: u64,
    /// Seconds that running requests get when the service ends.
    pub shutdown_seconds: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 4 << 20,
            graph_bytes: 64 << 20,
            prompt_tokens: 1 << 17,
            answer_tokens: 1 << 14,
            choices: 8,
            stops: 16,
            stop_bytes: 256,
            logprobs: 20,
            queue: 64,
            models: 12,
            connections: 512,
            followers: 64,
            planners: 2,
            header_seconds: 10,
            body_seconds: 30,
            request_seconds: 600,
            shutdown_seconds: 30,
        }
    }
}

impl Limits {
    /// For the head of a request.
    #[must_use]
    pub fn header_time(&self) -> Duration {
        Duration::from_secs(self.header_seconds)
    }
    /// For the body of a request.
    #[must_use]
    pub fn body_time(&self) -> Duration {
        Duration::from_secs(self.body_seconds)
    }
    /// For all of a request.
    #[must_use]
    pub fn request_time(&self) -> Duration {
        Duration::from_secs(self.request_seconds)
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN,
            models: PathBuf::from("models"),
            token: None,
            evict: false,
            slots: 8,
            context: 4096,
            limits: Limits::default(),
        }
    }
}

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file system refused.
    #[error("{path}: {source}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The refusal.
        source: std::io::Error,
    },
    /// The file is too long.
    #[error("{path} has {found} bytes, the limit is {MAX_FILE_BYTES}", path = path.display())]
    TooLong {
        /// The file.
        path: PathBuf,
        /// Its length.
        found: u64,
    },
    /// Not the TOML that is expected.
    #[error("{0}")]
    Syntax(String),
    /// A number out of range.
    #[error("{key} is {found}: it must be from {least} to {most}")]
    Range {
        /// Where it stands.
        key: &'static str,
        /// The number.
        found: u64,
        /// The smallest allowed.
        least: u64,
        /// The largest allowed.
        most: u64,
    },
    /// A token that nobody could send, or that is easily guessed.
    #[error("the token must have at least {MIN_TOKEN} characters, all of them visible ASCII")]
    Token,
}

/// Shortest token.
pub const MIN_TOKEN: usize = 16;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawConfig {
    listen: SocketAddr,
    models: PathBuf,
    token_file: Option<PathBuf>,
    evict: bool,
    slots: u32,
    context: u32,
    limits: Limits,
}

impl Default for RawConfig {
    fn default() -> Self {
        let Config { listen, models, token: _, evict, slots, context, limits } = Config::default();
        Self { listen, models, token_file: None, evict, slots, context, limits }
    }
}

impl Config {
    /// Reads a file. Errors: those of the file system and of [`Config::parse`].
    pub fn read_path(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&read(path)?).map_err(|e| match e {
            ConfigError::Syntax(why) => ConfigError::Syntax(format!("{}: {why}", path.display())),
            other => other,
        })
    }

    /// Reads the text of a file. Errors: what TOML or the schema refuses, a number out of range, an unusable token.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let raw: RawConfig = toml::from_str(text).map_err(|e| ConfigError::Syntax(e.to_string()))?;
        let token = raw.token_file.as_deref().map(read_token).transpose()?;
        let RawConfig { listen, models, token_file: _, evict, slots, context, limits } = raw;
        let config = Self { listen, models, token, evict, slots, context, limits };
        config.check()?;
        Ok(config)
    }

    /// Errors: a number out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        let l = &self.limits;
        let day = 86_400;
        let ranges = [
            ("slots", u64::from(self.slots), 1, u64::from(MAX_SLOTS)),
            ("context", self.context.into(), 1, u64::from(loadmaster_models::hparams::MAX_CONTEXT)),
            ("limits.body_bytes", l.body_bytes as u64, 1, 1 << 32),
            ("limits.graph_bytes", l.graph_bytes as u64, 1, 1 << 32),
            ("limits.prompt_tokens", l.prompt_tokens.into(), 1, u64::from(u32::MAX)),
            ("limits.answer_tokens", l.answer_tokens.into(), 1, u64::from(u32::MAX)),
            ("limits.choices", l.choices.into(), 1, u64::from(MAX_SLOTS)),
            ("limits.stops", l.stops as u64, 0, 1 << 10),
            ("limits.stop_bytes", l.stop_bytes as u64, 1, 1 << 16),
            ("limits.queue", l.queue as u64, 0, 1 << 20),
            ("limits.followers", l.followers as u64, 0, 1 << 16),
            ("limits.logprobs", l.logprobs.into(), 0, 1 << 10),
            ("limits.models", l.models as u64, 1, 16),
            ("limits.connections", l.connections as u64, 1, 1 << 16),
            ("limits.planners", l.planners as u64, 1, 1 << 10),
            ("limits.header_seconds", l.header_seconds, 1, day),
            ("limits.body_seconds", l.body_seconds, 1, day),
            ("limits.request_seconds", l.request_seconds, 1, day),
            ("limits.shutdown_seconds", l.shutdown_seconds, 0, day),
        ];
        match ranges.into_iter().find(|&(_, found, least, most)| found < least || found > most) {
            Some((key, found, least, most)) => Err(ConfigError::Range { key, found, least, most }),
            None => Ok(()),
        }
    }
}

fn read(path: &Path) -> Result<String, ConfigError> {
    read_text(path, MAX_FILE_BYTES).map_err(|error| match error {
        ReadError::Io(source) => ConfigError::Io { path: path.to_owned(), source },
        ReadError::TooLong { found, .. } => ConfigError::TooLong { path: path.to_owned(), found },
    })
}

/// The token in a file, without the space around it. Errors: those of the file system, a token that is unusable.
pub fn read_token(path: &Path) -> Result<String, ConfigError> {
    let token = read(path)?.trim().to_owned();
    let usable = token.len() >= MIN_TOKEN && token.bytes().all(|b| b.is_ascii_graphic());
    if usable { Ok(token) } else { Err(ConfigError::Token) }
}

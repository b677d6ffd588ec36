//! From requests to jobs: every field checked, with its name in the error.

use super::request::{ChatRequest, Common, CompletionRequest, Content, Part, Prompts, RoleName, Stops};
use crate::serve::config::Limits;
use crate::serve::error::ApiError;
use crate::serve::model::Entry;
use crate::serve::worker::{Job, Update};
use loadmaster_models::chat::{Message, Next, Role};
use loadmaster_models::sampling::{Sampler, SamplingConfig, SamplingError};
use loadmaster_models::tokenizer::{Ends, Specials, TokenId, Tokenizer};
use std::hash::{BuildHasher, RandomState};
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// Tokens of a completion's answer, if it is not said.
const DEFAULT_TOKENS: u32 = 16;

/// What is asked, checked.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) prompts: Vec<Vec<TokenId>>,
    pub(super) choices: u32,
    pub(super) sampling: SamplingConfig,
    pub(super) max_tokens: u32,
    pub(super) stops: Vec<String>,
    pub(super) logprobs: Option<usize>,
}

/// What both kinds of requests ask, checked.
struct Shared {
    choices: u32,
    sampling: SamplingConfig,
    stops: Vec<String>,
}

impl Shared {
    fn of(c: &Common<'_>, limits: &Limits) -> Result<Self, ApiError> {
        refuse("frequency_penalty", c.frequency_penalty.is_some_and(|v| v != 0.0))?;
        refuse("presence_penalty", c.presence_penalty.is_some_and(|v| v != 0.0))?;
        refuse("logit_bias", c.logit_bias.is_some_and(|b| !b.is_empty()))?;
        Ok(Self { choices: choices(c.n, limits)?, sampling: sampling(c)?, stops: stops(c.stop, limits)? })
    }
}

impl Ask {
    /// Of a completion. Errors: 400 with the field, 413 a prompt that is too long.
    pub(super) fn completion(r: &CompletionRequest, entry: &Entry, limits: &Limits) -> Result<Self, ApiError> {
        refuse("echo", r.echo == Some(true))?;
        refuse("suffix", r.suffix.as_ref().is_some_and(|s| !s.is_empty()))?;
        refuse("best_of", r.best_of.is_some() && r.best_of != Some(r.n.unwrap_or(1)))?;
        let Shared { choices, sampling, stops } = Shared::of(&r.common(), limits)?;
        let ask = Self {
            prompts: prompts(&r.prompt, entry)?,
            choices,
            sampling,
            max_tokens: max_tokens("max_tokens", r.max_tokens.unwrap_or(DEFAULT_TOKENS), limits)?,
            stops,
            logprobs: r.logprobs.map(|n| probable("logprobs", n, limits)).transpose()?,
        };
        ask.check("prompt", entry, limits)?;
        Ok(ask)
    }

    /// Of a conversation. Errors: 400 with the field, 413 a conversation that is too long.
    pub(super) fn chat(r: &ChatRequest, entry: &Entry, limits: &Limits) -> Result<Self, ApiError> {
        refuse("tools", r.tools.as_ref().is_some_and(|t| !t.is_empty()))?;
        refuse("response_format", r.response_format.as_ref().is_some_and(|f| f.r#type != "text"))?;
        refuse("top_logprobs", r.top_logprobs.is_some() && r.logprobs != Some(true))?;
        let Shared { choices, sampling, stops } = Shared::of(&r.common(), limits)?;
        let wanted = r.max_completion_tokens.or(r.max_tokens);
        let field = if r.max_completion_tokens.is_some() { "max_completion_tokens" } else { "max_tokens" };
        let wants = r.logprobs == Some(true);
        let top = r.top_logprobs.unwrap_or(0);
        let ask = Self {
            prompts: vec![conversation(r, entry)?],
            choices,
            sampling,
            max_tokens: max_tokens(field, wanted.unwrap_or(entry.room.min(limits.answer_tokens)), limits)?,
            stops,
            logprobs: wants.then(|| probable("top_logprobs", top, limits)).transpose()?,
        };
        ask.check("messages", entry, limits)?;
        Ok(ask)
    }

    fn check(&self, field: &str, entry: &Entry, limits: &Limits) -> Result<(), ApiError> {
        let vocab = entry.opened.model.params.vocab as usize;
        let room = entry.room.min(limits.prompt_tokens) as usize;
        let answers = self.prompts.len().saturating_mul(self.choices as usize);
        if self.prompts.is_empty() || self.prompts.iter().any(Vec::is_empty) {
            return Err(ApiError::field(field, "there is nothing to continue"));
        }
        if answers > limits.choices as usize {
            let message = format!("{answers} answers are asked for, the limit is {}", limits.choices);
            return Err(ApiError::field(field, message));
        }
        for prompt in &self.prompts {
            if let Some(token) = prompt.iter().find(|t| t.index() >= vocab) {
                let message = format!("token {} is outside the model's vocabulary of {vocab}", token.index());
                return Err(ApiError::field(field, message));
            }
            if prompt.len() > room {
                let message = format!("{} tokens are to be continued, but there is room for {room}", prompt.len());
                return Err(ApiError::too_large(Some(field), message));
            }
        }
        Ok(())
    }

    /// The jobs: answers to a prompt follow each other, and draw with seeds that follow each other.
    pub(super) fn jobs(&self, request: &str, out: &UnboundedSender<(usize, Update)>) -> Vec<Job> {
        let arrived = Instant::now();
        let each = self.prompts.iter().flat_map(|p| (0..self.choices).map(move |choice| (p, choice)));
        let job = |(index, (prompt, choice)): (usize, (&Vec<TokenId>, u32))| Job {
            request: request.to_owned(),
            prompt: prompt.clone(),
            sampling: SamplingConfig { seed: self.sampling.seed.wrapping_add(choice.into()), ..self.sampling },
            max_tokens: self.max_tokens,
            stops: self.stops.clone(),
            logprobs: self.logprobs,
            arrived,
            index,
            out: out.clone(),
        };
        each.enumerate().map(job).collect()
    }
}

fn refuse(field: &str, is_set: bool) -> Result<(), ApiError> {
    if is_set { Err(ApiError::field(field, format!("`{field}` is not supported with this value"))) } else { Ok(()) }
}

fn vocabulary(entry: &Entry) -> Result<&Tokenizer, ApiError> {
    let missing = || ApiError::field("prompt", "the model has no vocabulary: send tokens instead of text");
    entry.tokenizer.as_deref().ok_or_else(missing)
}

fn encode(entry: &Entry, text: &str) -> Result<Vec<TokenId>, ApiError> {
    let tokens = vocabulary(entry)?.encode(text, Specials::Recognised, Ends::AsModelAsks);
    tokens.map_err(|e| ApiError::field("prompt", e.to_string()))
}

fn prompts(of: &Prompts, entry: &Entry) -> Result<Vec<Vec<TokenId>>, ApiError> {
    let tokens = |ids: &Vec<u32>| ids.iter().map(|&id| TokenId::new(id as usize)).collect::<Vec<_>>();
    match of {
        Prompts::Text(text) => Ok(vec![encode(entry, text)?]),
        Prompts::Texts(texts) => texts.iter().map(|text| encode(entry, text)).collect(),
        Prompts::Tokens(ids) => Ok(vec![tokens(ids)]),
        Prompts::TokenLists(lists) => Ok(lists.iter().map(tokens).collect()),
    }
}

fn conversation(r: &ChatRequest, entry: &Entry) -> Result<Vec<TokenId>, ApiError> {
    if r.messages.is_empty() {
        return Err(ApiError::field("messages", "there is no message"));
    }
    let role = |name| match name {
        RoleName::System | RoleName::Developer => Role::System,
        RoleName::User => Role::User,
        RoleName::Assistant => Role::Assistant,
        RoleName::Tool => Role::Tool,
    };
    let text = |content: &Content| match content {
        Content::Text(text) => text.clone(),
        Content::Parts(parts) => parts.iter().map(|Part::Text { text }| text.as_str()).collect(),
    };
    let messages: Vec<Message> = r.messages.iter().map(|m| Message::new(role(m.role), text(&m.content))).collect();
    let template = entry.opened.template.as_ref().map_err(|e| ApiError::field("messages", e.to_string()))?;
    let prompt = template.render(&messages, Next::Assistant).map_err(|e| ApiError::field("messages", e.to_string()))?;
    let tokens = vocabulary(entry)?.encode(&prompt.text, Specials::Recognised, prompt.ends);
    tokens.map_err(|e| ApiError::field("messages", e.to_string()))
}

fn choices(n: Option<u32>, limits: &Limits) -> Result<u32, ApiError> {
    let n = n.unwrap_or(1);
    if n == 0 || n > limits.choices {
        return Err(ApiError::field("n", format!("n is {n}: it must be from 1 to {}", limits.choices)));
    }
    Ok(n)
}

fn max_tokens(field: &str, wanted: u32, limits: &Limits) -> Result<u32, ApiError> {
    if wanted == 0 || wanted > limits.answer_tokens {
        let message = format!("{field} is {wanted}: it must be from 1 to {}", limits.answer_tokens);
        return Err(ApiError::field(field, message));
    }
    Ok(wanted)
}

fn probable(field: &str, wanted: u32, limits: &Limits) -> Result<usize, ApiError> {
    if wanted > limits.logprobs {
        return Err(ApiError::field(field, format!("{field} is {wanted}: the limit is {}", limits.logprobs)));
    }
    Ok(wanted as usize)
}

fn stops(of: Option<&Stops>, limits: &Limits) -> Result<Vec<String>, ApiError> {
    let stops = match of {
        None => Vec::new(),
        Some(Stops::One(one)) => vec![one.clone()],
        Some(Stops::Several(several)) => several.clone(),
    };
    if stops.len() > limits.stops {
        return Err(ApiError::field("stop", format!("{} stop strings, the limit is {}", stops.len(), limits.stops)));
    }
    if let Some(bad) = stops.iter().find(|s| s.is_empty() || s.len() > limits.stop_bytes) {
        let message = format!("a stop string has {} bytes: it must have from 1 to {}", bad.len(), limits.stop_bytes);
        return Err(ApiError::field("stop", message));
    }
    Ok(stops)
}

/// OpenAI's defaults. Without a seed, one that nobody knows.
fn sampling(c: &Common<'_>) -> Result<SamplingConfig, ApiError> {
    let config = SamplingConfig {
        temperature: c.temperature.unwrap_or(1.0),
        top_k: c.top_k.filter(|&k| k > 0),
        top_p: c.top_p.unwrap_or(1.0),
        min_p: c.min_p.unwrap_or(0.0),
        repeat_penalty: c.repeat_penalty.unwrap_or(1.0),
        seed: c.seed.map_or_else(|| RandomState::new().hash_one(0u8), |seed| seed as u64),
        ..SamplingConfig::greedy()
    };
    if let Err(error) = Sampler::new(config) {
        let field = match &error {
            SamplingError::Setting { setting: "top-p", .. } => "top_p",
            SamplingError::Setting { setting: "min-p", .. } => "min_p",
            SamplingError::Setting { setting: "the repetition penalty", .. } => "repeat_penalty",
            _ => "temperature",
        };
        return Err(ApiError::field(field, error.to_string()));
    }
    Ok(config)
}

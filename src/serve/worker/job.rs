//! What is asked of a model, and what it says.

use crate::serve::error::ApiError;
use loadmaster_models::sampling::SamplingConfig;
use loadmaster_models::tokenizer::TokenId;
use std::time::Instant;
use tokio::sync::mpsc::UnboundedSender;

/// One answer to one prompt. What it can say is bounded by `max_tokens`, and so is what waits for its reader.
#[derive(Debug)]
pub struct Job {
    /// The request that it is part of.
    pub(crate) request: String,
    /// Tokens of the prompt; at least one, all of them the model's.
    pub(crate) prompt: Vec<TokenId>,
    /// How tokens are chosen; checked.
    pub(crate) sampling: SamplingConfig,
    /// Most tokens of the answer.
    pub(crate) max_tokens: u32,
    /// Texts that end the answer; none of them empty.
    pub(crate) stops: Vec<String>,
    /// How many probable tokens are told of each token; `None`: no probabilities.
    pub(crate) logprobs: Option<usize>,
    /// When the request arrived.
    pub(crate) arrived: Instant,
    /// Which of the request's answers it is.
    pub(crate) index: usize,
    /// Where the request's answers go.
    pub(crate) out: UnboundedSender<(usize, Update)>,
}

impl Job {
    /// Whether nobody waits for the answer any more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.out.is_closed()
    }

    /// Says something. A client that is gone is noticed before the next step.
    pub(crate) fn say(&self, update: Update) {
        let _ = self.out.send((self.index, update));
    }
}

/// A piece of an answer.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Update {
    /// Text, and the tokens that were chosen meanwhile, if their probabilities were asked for.
    Text { text: String, tokens: Vec<Chosen> },
    /// The answer is complete.
    Done { finish: Finish, prompt_tokens: usize, tokens: u32 },
    /// There will be no more.
    Failed(ApiError),
}

/// Why an answer ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Finish {
    /// The model ended it, or a stop string.
    Stop,
    /// As many tokens as were asked for, or the context is full.
    Length,
}

impl Finish {
    /// OpenAI's word.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
        }
    }
}

/// A token with its probability.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Chosen {
    /// The token.
    pub(crate) token: Likely,
    /// The most probable ones in its place, most probable first.
    pub(crate) top: Vec<Likely>,
}

/// A token that could stand there.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Likely {
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// The natural logarithm of its probability, before the temperature.
    pub(crate) logprob: f64,
}

impl Likely {
    /// Its text; bytes that are no UTF-8 become U+FFFD.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

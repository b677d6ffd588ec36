//! Requests in OpenAI's form. Fields that would change the answer and are not supported are refused, not ignored.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// One or several texts that end an answer.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Stops {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

/// What a completion continues.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Prompts {
    /// A text.
    Text(String),
    /// Several texts, each continued.
    Texts(Vec<String>),
    /// Tokens.
    Tokens(Vec<u32>),
    /// Several lists of tokens, each continued.
    TokenLists(Vec<Vec<u32>>),
}

/// How a stream is told.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StreamOptions {
    /// Whether the last piece tells how many tokens there were.
    pub include_usage: bool,
    /// Taken, and of no effect.
    #[schema(ignore)]
    pub include_obfuscation: Option<bool>,
}

/// What both kinds of requests say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common<'a> {
    pub(super) n: Option<u32>,
    pub(super) stop: Option<&'a Stops>,
    pub(super) temperature: Option<f32>,
    pub(super) top_p: Option<f32>,
    pub(super) top_k: Option<u32>,
    pub(super) min_p: Option<f32>,
    pub(super) repeat_penalty: Option<f32>,
    pub(super) seed: Option<i64>,
    pub(super) frequency_penalty: Option<f32>,
    pub(super) presence_penalty: Option<f32>,
    pub(super) logit_bias: Option<&'a Map<String, Value>>,
}

/// Who answers, and how the answer comes.
#[derive(Clone, Debug)]
pub(super) struct Delivery {
    pub(super) model: Option<String>,
    pub(super) stream: bool,
    pub(super) options: StreamOptions,
}

/// A kind of request: its own fields, and those that both kinds have. Not one struct within another: errors of a
/// flattened struct do not say which field they are about, and it takes fields that it does not know.
macro_rules! request {
    ($(#[$about:meta])* $name:ident { $($own:tt)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Deserialize, ToSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($own)*
            /// The model; needs no saying where there is one.
            #[serde(default)]
            pub model: Option<String>,
            /// Answers to each prompt.
            #[serde(default)]
            pub n: Option<u32>,
            /// Whether the answer comes piece by piece.
            #[serde(default)]
            pub stream: Option<bool>,
            /// How a stream is told.
            #[serde(default)]
            pub stream_options: Option<StreamOptions>,
            /// Texts that end an answer.
            #[serde(default)]
            pub stop: Option<Stops>,
            /// 0: always the most probable token; 1 if it is not said.
            #[serde(default)]
            pub temperature: Option<f32>,
            /// Only the most probable tokens are drawn from that reach this probability together.
            #[serde(default)]
            pub top_p: Option<f32>,
            /// Only this many of the most probable tokens are drawn from; 0: all.
            #[serde(default)]
            pub top_k: Option<u32>,
            /// Tokens below this share of the largest probability are not drawn.
            #[serde(default)]
            pub min_p: Option<f32>,
            /// Makes recent tokens less probable; 1: not.
            #[serde(default)]
            pub repeat_penalty: Option<f32>,
            /// Seed of the draws: equal seeds give equal answers.
            #[serde(default)]
            pub seed: Option<i64>,
            /// Must be 0.
            #[serde(default)]
            pub frequency_penalty: Option<f32>,
            /// Must be 0.
            #[serde(default)]
            pub presence_penalty: Option<f32>,
            /// Must be empty.
            #[serde(default)]
            pub logit_bias: Option<Map<String, Value>>,
            /// Taken, and of no effect.
            #[serde(default)]
            pub user: Option<String>,
        }

        impl $name {
            pub(super) fn common(&self) -> Common<'_> {
                Common {
                    n: self.n,
                    stop: self.stop.as_ref(),
                    temperature: self.temperature,
                    top_p: self.top_p,
                    top_k: self.top_k,
                    min_p: self.min_p,
                    repeat_penalty: self.repeat_penalty,
                    seed: self.seed,
                    frequency_penalty: self.frequency_penalty,
                    presence_penalty: self.presence_penalty,
                    logit_bias: self.logit_bias.as_ref(),
                }
            }

            pub(super) fn delivery(&self) -> Delivery {
                let (stream, options) = (self.stream == Some(true), self.stream_options.unwrap_or_default());
                Delivery { model: self.model.clone(), stream, options }
            }
        }
    };
}

request! {
    /// A completion.
    CompletionRequest {
        /// What is continued.
        pub prompt: Prompts,
        /// Most tokens of an answer; 16 if it is not said.
        #[serde(default)]
        pub max_tokens: Option<u32>,
        /// How many probable tokens are told of each token.
        #[serde(default)]
        pub logprobs: Option<u32>,
        /// Must be false.
        #[serde(default)]
        pub echo: Option<bool>,
        /// Must be `n`.
        #[serde(default)]
        pub best_of: Option<u32>,
        /// Must be empty.
        #[serde(default)]
        pub suffix: Option<String>,
    }
}

/// Who says something.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum RoleName {
    /// Sets the scene.
    System,
    /// The same, in newer words.
    Developer,
    /// Asks.
    User,
    /// Answers.
    Assistant,
    /// What a tool gave.
    Tool,
}

/// A part of a message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Part {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
}

/// What is said: a text, or parts.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Content {
    /// A text.
    Text(String),
    /// Parts, which follow each other.
    Parts(Vec<Part>),
}

/// A message.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatMessage {
    /// Who says it.
    pub role: RoleName,
    /// What is said.
    pub content: Content,
    /// Taken, and of no effect.
    #[serde(default)]
    pub name: Option<String>,
}

/// The form of an answer.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ResponseFormat {
    /// Must be `text`.
    pub r#type: String,
}

request! {
    /// A conversation to go on with.
    ChatRequest {
        /// The conversation so far.
        pub messages: Vec<ChatMessage>,
        /// Most tokens of an answer; all that there is room for if it is not said.
        #[serde(default)]
        pub max_tokens: Option<u32>,
        /// The same, in newer words.
        #[serde(default)]
        pub max_completion_tokens: Option<u32>,
        /// Whether probabilities are told.
        #[serde(default)]
        pub logprobs: Option<bool>,
        /// How many probable tokens are told of each token.
        #[serde(default)]
        pub top_logprobs: Option<u32>,
        /// Must be text.
        #[serde(default)]
        pub response_format: Option<ResponseFormat>,
        /// Must be empty.
        #[serde(default)]
        pub tools: Option<Vec<Value>>,
        /// Taken, and of no effect.
        #[serde(default)]
        pub store: Option<bool>,
        /// Taken, and of no effect.
        #[serde(default)]
        pub metadata: Option<Map<String, Value>>,
    }
}

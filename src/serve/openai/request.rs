//! Requests in OpenAI's form. Fields that would change the answer and are not supported are refused, not ignored.

use serde::Deserialize;
use serde_json::Value;
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

/// How tokens are chosen, and how many.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(default)]
pub struct Choosing {
    /// 0: always the most probable token; 1 if it is not said.
    pub temperature: Option<f32>,
    /// Only the most probable tokens are drawn from that reach this probability together.
    pub top_p: Option<f32>,
    /// Only this many of the most probable tokens are drawn from.
    pub top_k: Option<u32>,
    /// Tokens below this share of the largest probability are not drawn.
    pub min_p: Option<f32>,
    /// Makes recent tokens less probable; 1: not.
    pub repeat_penalty: Option<f32>,
    /// Seed of the draws: equal seeds give equal answers.
    pub seed: Option<i64>,
}

/// A completion.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CompletionRequest {
    /// The model; needs no saying where there is one.
    #[serde(default)]
    pub model: Option<String>,
    /// What is continued.
    pub prompt: Prompts,
    /// Most tokens of an answer; 16 if it is not said.
    #[serde(default)]
    pub max_tokens: Option<u32>,
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
    /// How many probable tokens are told of each token.
    #[serde(default)]
    pub logprobs: Option<u32>,
    /// See [`Choosing`].
    #[serde(default)]
    pub temperature: Option<f32>,
    /// See [`Choosing`].
    #[serde(default)]
    pub top_p: Option<f32>,
    /// See [`Choosing`].
    #[serde(default)]
    pub top_k: Option<u32>,
    /// See [`Choosing`].
    #[serde(default)]
    pub min_p: Option<f32>,
    /// See [`Choosing`].
    #[serde(default)]
    pub repeat_penalty: Option<f32>,
    /// See [`Choosing`].
    #[serde(default)]
    pub seed: Option<i64>,
    /// Must be 0.
    #[serde(default)]
    pub frequency_penalty: Option<f32>,
    /// Must be 0.
    #[serde(default)]
    pub presence_penalty: Option<f32>,
    /// Must be false.
    #[serde(default)]
    pub echo: Option<bool>,
    /// Must be `n`.
    #[serde(default)]
    pub best_of: Option<u32>,
    /// Must be empty.
    #[serde(default)]
    pub suffix: Option<String>,
    /// Must be empty.
    #[serde(default)]
    pub logit_bias: Option<serde_json::Map<String, Value>>,
    /// Taken, and of no effect.
    #[serde(default)]
    pub user: Option<String>,
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

/// A conversation to go on with.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChatRequest {
    /// The model; needs no saying where there is one.
    #[serde(default)]
    pub model: Option<String>,
    /// The conversation so far.
    pub messages: Vec<ChatMessage>,
    /// Most tokens of an answer; all that there is room for if it is not said.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// The same, in newer words.
    #[serde(default)]
    pub max_completion_tokens: Option<u32>,
    /// Answers.
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
    /// Whether probabilities are told.
    #[serde(default)]
    pub logprobs: Option<bool>,
    /// How many probable tokens are told of each token.
    #[serde(default)]
    pub top_logprobs: Option<u32>,
    /// See [`Choosing`].
    #[serde(default)]
    pub temperature: Option<f32>,
    /// See [`Choosing`].
    #[serde(default)]
    pub top_p: Option<f32>,
    /// See [`Choosing`].
    #[serde(default)]
    pub top_k: Option<u32>,
    /// See [`Choosing`].
    #[serde(default)]
    pub min_p: Option<f32>,
    /// See [`Choosing`].
    #[serde(default)]
    pub repeat_penalty: Option<f32>,
    /// See [`Choosing`].
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
    pub logit_bias: Option<serde_json::Map<String, Value>>,
    /// Must be text.
    #[serde(default)]
    pub response_format: Option<ResponseFormat>,
    /// Must be empty.
    #[serde(default)]
    pub tools: Option<Vec<Value>>,
    /// Taken, and of no effect.
    #[serde(default)]
    pub user: Option<String>,
    /// Taken, and of no effect.
    #[serde(default)]
    pub store: Option<bool>,
    /// Taken, and of no effect.
    #[serde(default)]
    pub metadata: Option<serde_json::Map<String, Value>>,
}

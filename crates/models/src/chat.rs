//! Chat templates: the file's own (`tokenizer.chat_template`), rendered as the reference implementation renders them.
//!
//! A file without a template is an error, not a guess: another model's format makes a model quietly worse.
//!
//! Templates are programs from a file. They see the messages and nothing else (no clock, no files), and run with a
//! bounded amount of work.

use crate::gguf::Gguf;
use crate::tokenizer::{Ends, Tokenizer};
use minijinja::value::Value;
use minijinja::{Environment, Error, ErrorKind};

/// Most steps that a template may take: far beyond what thousands of messages need.
pub const MAX_STEPS: u64 = 2_000_000;
/// Longest template in bytes.
pub const MAX_TEMPLATE_LEN: usize = 1 << 20;

const KEY: &str = "tokenizer.chat_template";
const NAME: &str = "chat";

/// Who says something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Role {
    System,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// The name that templates know.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// A message of a conversation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// Who says it.
    pub role: Role,
    /// What is said.
    pub content: String,
}

impl Message {
    /// A message.
    #[must_use]
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }
}

/// What comes after the messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Next {
    /// The assistant's turn is opened, for the model to fill.
    #[default]
    Assistant,
    /// Nothing.
    Nothing,
}

/// A rendered conversation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prompt {
    /// The text. Special tokens stand in it as text and are to be recognised.
    pub text: String,
    /// Whether the tokenizer is to add BOS and EOS: not where the template has begun with BOS itself.
    pub ends: Ends,
}

/// Why a conversation cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The file has no template.
    #[error("the file has no `{KEY}`: give a prompt instead of a conversation")]
    NoTemplate,
    /// The template is too long.
    #[error("the chat template has {found} bytes, the limit is {MAX_TEMPLATE_LEN}")]
    TooLong {
        /// Its length.
        found: usize,
    },
    /// The template is wrong, or uses what is not there.
    #[error("the file's chat template fails in line {line}: {reason}")]
    Template {
        /// The line, from 1; 0 if unknown.
        line: usize,
        /// Why.
        reason: String,
    },
    /// The template refuses the conversation.
    #[error("the file's chat template refuses the conversation: {reason}")]
    Refused {
        /// What it says.
        reason: String,
    },
}

/// A model's chat template.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// The template of a file. Errors: none there, or it cannot be parsed.
    pub fn from_gguf(file: &Gguf, tokenizer: &Tokenizer) -> Result<Self, ChatError> {
        let source = file.value(KEY).and_then(|v| v.as_str()).ok_or(ChatError::NoTemplate)?;
        let text = |id: Option<_>| id.and_then(|id| tokenizer.raw_text(id)).unwrap_or_default().to_string();
        Self::new(source, text(tokenizer.bos()), text(tokenizer.eos()))
    }

    /// A template from its source, with the texts of BOS and EOS.
    pub fn new(source: &str, bos: impl Into<String>, eos: impl Into<String>) -> Result<Self, ChatError> {
        if source.len() > MAX_TEMPLATE_LEN {
            return Err(ChatError::TooLong { found: source.len() });
        }
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment.set_fuel(Some(MAX_STEPS));
        environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", raise);
        environment.add_template_owned(NAME, source.to_string()).map_err(failed)?;
        Ok(Self { environment, bos: bos.into(), eos: eos.into() })
    }

    /// Renders a conversation.
    pub fn render(&self, messages: &[Message], next: Next) -> Result<Prompt, ChatError> {
        let messages: Value = messages.iter().map(message_value).collect();
        let values: Value = [
            ("messages", messages),
            ("bos_token", Value::from(self.bos.as_str())),
            ("eos_token", Value::from(self.eos.as_str())),
            ("add_generation_prompt", Value::from(next == Next::Assistant)),
        ]
        .into_iter()
        .collect();
        let text = self.environment.get_template(NAME).and_then(|t| t.render(values)).map_err(failed)?;
        let begun = !self.bos.is_empty() && text.starts_with(&self.bos);
        Ok(Prompt { ends: if begun { Ends::Bare } else { Ends::AsModelAsks }, text })
    }
}

fn message_value(message: &Message) -> Value {
    [("role", Value::from(message.role.name())), ("content", Value::from(message.content.as_str()))]
        .into_iter()
        .collect()
}

/// Marks an error as the template's own refusal.
const REFUSAL: &str = "raise_exception: ";

fn raise(reason: String) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, format!("{REFUSAL}{reason}")))
}

fn failed(error: Error) -> ChatError {
    let line = error.line().unwrap_or(0);
    let detail = error.detail().unwrap_or_default();
    if let Some(reason) = detail.strip_prefix(REFUSAL) {
        return ChatError::Refused { reason: reason.into() };
    }
    let reason = match (error.kind(), detail) {
        (ErrorKind::OutOfFuel, _) => format!("it takes more than {MAX_STEPS} steps"),
        (kind, "") => kind.to_string(),
        (kind, detail) => format!("{kind}: {detail}"),
    };
    ChatError::Template { line, reason }
}

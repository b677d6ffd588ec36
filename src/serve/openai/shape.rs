//! Answers in OpenAI's form.

use crate::serve::worker::{Chosen, Finish, Likely};
use serde_json::{Value, json};

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shape {
    /// Completions of a text.
    Text,
    /// Answers of a conversation.
    Chat,
}

/// What all pieces of an answer say.
#[derive(Clone, Debug)]
pub(super) struct Head {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) created: u64,
}

/// A whole answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Said {
    pub(super) text: String,
    pub(super) tokens: Vec<Chosen>,
    pub(super) finish: Option<Finish>,
}

/// How many tokens there were.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Usage {
    pub(super) prompt: usize,
    pub(super) completion: usize,
}

impl Usage {
    fn value(self) -> Value {
        json!({
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
        })
    }
}

impl Shape {
    /// Begins ids.
    pub(super) const fn prefix(self) -> &'static str {
        match self {
            Self::Text => "cmpl",
            Self::Chat => "chatcmpl",
        }
    }

    const fn object(self, whole: bool) -> &'static str {
        match (self, whole) {
            (Self::Text, _) => "text_completion",
            (Self::Chat, true) => "chat.completion",
            (Self::Chat, false) => "chat.completion.chunk",
        }
    }

    fn envelope(self, head: &Head, whole: bool, choices: Vec<Value>) -> Value {
        json!({
            "id": head.id, "object": self.object(whole), "created": head.created, "model": head.model,
            "system_fingerprint": concat!("loadmaster-", env!("CARGO_PKG_VERSION")), "choices": choices,
        })
    }

    /// All answers. Token positions count from each answer's beginning.
    pub(super) fn whole(self, head: &Head, answers: &[Said], usage: Usage) -> Value {
        let choice = |(index, said): (usize, &Said)| {
            let finish = said.finish.map(Finish::word);
            let logprobs = self.logprobs(&said.tokens, 0);
            match self {
                Self::Text => {
                    json!({ "index": index, "text": said.text, "logprobs": logprobs, "finish_reason": finish })
                }
                Self::Chat => json!({
                    "index": index,
                    "message": { "role": "assistant", "content": said.text, "refusal": null },
                    "logprobs": logprobs,
                    "finish_reason": finish,
                }),
            }
        };
        let mut value = self.envelope(head, true, answers.iter().enumerate().map(choice).collect());
        value["usage"] = usage.value();
        value
    }

    /// The piece that begins an answer, if there is such.
    pub(super) fn first(self, head: &Head, index: usize) -> Option<Value> {
        let delta = json!({ "role": "assistant", "content": "" });
        (self == Self::Chat).then(|| self.piece(head, index, delta, Value::Null, None))
    }

    /// Text with its tokens; those before had `before` characters.
    pub(super) fn text(self, head: &Head, index: usize, text: &str, tokens: &[Chosen], before: usize) -> Value {
        let logprobs = self.logprobs(tokens, before);
        match self {
            Self::Text => {
                let choice = json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": null });
                self.envelope(head, false, vec![choice])
            }
            Self::Chat => self.piece(head, index, json!({ "content": text }), logprobs, None),
        }
    }

    /// The piece that ends an answer.
    pub(super) fn last(self, head: &Head, index: usize, finish: Finish) -> Value {
        match self {
            Self::Text => {
                let choice = json!({ "index": index, "text": "", "logprobs": null, "finish_reason": finish.word() });
                self.envelope(head, false, vec![choice])
            }
            Self::Chat => self.piece(head, index, json!({}), Value::Null, Some(finish)),
        }
    }

    /// The piece that tells how many tokens there were.
    pub(super) fn usage(self, head: &Head, usage: Usage) -> Value {
        let mut value = self.envelope(head, false, Vec::new());
        value["usage"] = usage.value();
        value
    }

    fn piece(self, head: &Head, index: usize, delta: Value, logprobs: Value, finish: Option<Finish>) -> Value {
        let choice =
            json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish.map(Finish::word) });
        self.envelope(head, false, vec![choice])
    }

    /// Null where nobody asked.
    fn logprobs(self, tokens: &[Chosen], before: usize) -> Value {
        if tokens.is_empty() {
            return Value::Null;
        }
        match self {
            Self::Text => text_logprobs(tokens, before),
            Self::Chat => {
                let entry = |c: &Chosen| {
                    let mut value = likely(&c.token);
                    value["top_logprobs"] = c.top.iter().map(likely).collect();
                    value
                };
                json!({ "content": tokens.iter().map(entry).collect::<Vec<_>>(), "refusal": null })
            }
        }
    }
}

fn likely(l: &Likely) -> Value {
    json!({ "token": l.text(), "logprob": finite(l.logprob), "bytes": l.bytes })
}

/// JSON has no −∞.
fn finite(logprob: f64) -> f64 {
    logprob.max(-9999.0)
}

/// How long the texts of tokens are.
pub(super) fn characters(tokens: &[Chosen]) -> usize {
    tokens.iter().map(|c| c.token.text().chars().count()).sum()
}

fn text_logprobs(tokens: &[Chosen], before: usize) -> Value {
    let mut offset = before;
    let offsets: Vec<usize> = tokens
        .iter()
        .map(|c| {
            let at = offset;
            offset += c.token.text().chars().count();
            at
        })
        .collect();
    let top = |c: &Chosen| -> Value {
        c.top
            .iter()
            .map(|l| (l.text(), finite(l.logprob)))
            .collect::<std::collections::BTreeMap<_, _>>()
            .into_iter()
            .collect()
    };
    json!({
        "tokens": tokens.iter().map(|c| c.token.text()).collect::<Vec<_>>(),
        "token_logprobs": tokens.iter().map(|c| finite(c.token.logprob)).collect::<Vec<_>>(),
        "top_logprobs": tokens.iter().map(top).collect::<Vec<_>>(),
        "text_offset": offsets,
    })
}

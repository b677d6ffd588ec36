//! Answers on their way to a client: all at once, or piece by piece. Whoever drops one lets its jobs go.

use super::shape::{self, Head, Said, Shape, Usage};
use crate::serve::error::ApiError;
use crate::serve::state::ServiceState;
use crate::serve::worker::Update;
use axum::response::sse::Event;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::time::Sleep;
use tokio_stream::Stream;

/// The answers of a request.
pub(super) struct Answers {
    pub(super) shape: Shape,
    pub(super) head: Head,
    pub(super) count: usize,
    /// Answers to each prompt: the tokens of a prompt count once.
    pub(super) choices: usize,
    pub(super) updates: UnboundedReceiver<(usize, Update)>,
    pub(super) state: Arc<ServiceState>,
}

fn lost() -> ApiError {
    ApiError::internal("the model's thread ended without an answer")
}

fn late(after: Duration) -> ApiError {
    ApiError::unavailable("timed_out", format!("the answer was not complete after {} s", after.as_secs()))
}

impl Answers {
    fn count_prompt(&self, index: usize, tokens: usize) -> usize {
        if index.is_multiple_of(self.choices.max(1)) { tokens } else { 0 }
    }

    /// All of them. Errors: the first that fails, or 503 after `limit`.
    pub(super) async fn whole(mut self, limit: Duration) -> Result<Value, ApiError> {
        match tokio::time::timeout(limit, self.collect()).await {
            Ok(Ok((said, usage))) => Ok(self.shape.whole(&self.head, &said, usage)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(late(limit)),
        }
    }

    async fn collect(&mut self) -> Result<(Vec<Said>, Usage), ApiError> {
        let mut said = vec![Said::default(); self.count];
        let mut usage = Usage::default();
        while said.iter().any(|s| s.finish.is_none()) {
            let (index, update) = self.updates.recv().await.ok_or_else(lost)?;
            let Some(answer) = said.get_mut(index) else { continue };
            match update {
                Update::Text { text, tokens } => {
                    answer.text.push_str(&text);
                    answer.tokens.extend(tokens);
                }
                Update::Done { finish, prompt_tokens, tokens } => {
                    answer.finish = Some(finish);
                    usage.prompt += self.count_prompt(index, prompt_tokens);
                    usage.completion += tokens as usize;
                }
                Update::Failed(error) => return Err(error),
            }
        }
        Ok((said, usage))
    }

    /// Piece by piece, as events. An error is the last piece.
    pub(super) fn stream(self, limit: Duration, with_usage: bool) -> AnswerStream {
        let mut pending = VecDeque::new();
        pending.extend((0..self.count).filter_map(|i| self.shape.first(&self.head, i)).map(|v| data(&v)));
        let (open, told) = (self.count, vec![0; self.count]);
        let deadline = Box::pin(tokio::time::sleep(limit));
        AnswerStream { answers: self, pending, open, told, usage: Usage::default(), with_usage, limit, deadline }
    }
}

fn data(value: &Value) -> Event {
    Event::default().data(value.to_string())
}

/// See [`Answers::stream`].
pub(super) struct AnswerStream {
    answers: Answers,
    pending: VecDeque<Event>,
    /// Answers that are not complete.
    open: usize,
    /// Characters of the tokens that were told of each answer: text may be held back when its tokens are told.
    told: Vec<usize>,
    usage: Usage,
    with_usage: bool,
    limit: Duration,
    deadline: Pin<Box<Sleep>>,
}

impl AnswerStream {
    fn take(&mut self, index: usize, update: Update) {
        let (shape, head) = (self.answers.shape, &self.answers.head);
        match update {
            Update::Text { text, tokens } => {
                let before = self.told.get(index).copied().unwrap_or(0);
                self.pending.push_back(data(&shape.text(head, index, &text, &tokens, before)));
                if let Some(told) = self.told.get_mut(index) {
                    *told += shape::characters(&tokens);
                }
            }
            Update::Done { finish, prompt_tokens, tokens } => {
                self.pending.push_back(data(&shape.last(head, index, finish)));
                self.usage.prompt += self.answers.count_prompt(index, prompt_tokens);
                self.usage.completion += tokens as usize;
                self.open -= 1;
                if self.open == 0 {
                    self.close();
                }
            }
            Update::Failed(error) => self.fail(&error),
        }
    }

    fn close(&mut self) {
        if self.with_usage {
            self.pending.push_back(data(&self.answers.shape.usage(&self.answers.head, self.usage)));
        }
        self.pending.push_back(Event::default().data("[DONE]"));
    }

    fn fail(&mut self, error: &ApiError) {
        self.answers.state.core.stats.failure(error.code);
        self.pending.push_back(data(&error.body()));
        self.open = 0;
        self.answers.updates.close();
    }
}

impl Stream for AnswerStream {
    type Item = Result<Event, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.open == 0 {
                return Poll::Ready(None);
            }
            if self.deadline.as_mut().poll(context).is_ready() {
                let error = late(self.limit);
                self.fail(&error);
                continue;
            }
            match self.answers.updates.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some((index, update))) => self.take(index, update),
                Poll::Ready(None) => self.fail(&lost()),
            }
        }
    }
}

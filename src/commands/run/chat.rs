//! `--chat`: a conversation, line by line.

use super::args::Args;
use super::generate::{self, End, Generated, Job, Sink, Voice};
use crate::engine::{Engine, EngineError};
use loadmaster_models::chat::{ChatTemplate, Message, Next, Role};
use loadmaster_models::kv::{Pos, SequenceId};
use loadmaster_models::tokenizer::{Specials, TokenId, Tokenizer};
use std::io::{self, BufRead, IsTerminal};

/// The conversation so far.
struct Talk<'a> {
    tokenizer: &'a Tokenizer,
    template: ChatTemplate,
    messages: Vec<Message>,
    /// Tokens that the cache holds.
    cached: Vec<TokenId>,
}

/// Answers the prompt, then every line of standard input until it ends.
pub fn converse(engine: &mut Engine, job: &Job, args: &Args, sink: &mut Sink<'_>) -> anyhow::Result<Generated> {
    let missing = || EngineError::Settings("--chat needs a model with a vocabulary".to_owned());
    let tokenizer = sink.tokenizer().ok_or_else(missing)?;
    let template = ChatTemplate::from_gguf(&engine.model().file, tokenizer)?;
    let mut talk = Talk { tokenizer, template, messages: Vec::new(), cached: Vec::new() };
    let mut done = Generated::default();
    let only_prompt = args.prompt.is_some() && !io::stdin().is_terminal();
    if let Some(prompt) = &args.prompt {
        talk.answer(prompt, engine, job, &mut done, sink)?;
    }
    if only_prompt {
        return Ok(done);
    }
    let asks = io::stdin().is_terminal();
    let mut lines = io::stdin().lock().lines();
    loop {
        if asks {
            sink.say("> ")?;
        }
        let line = sink.interrupt().while_idle(|| lines.next()).transpose()?;
        let Some(line) = line.filter(|_| !sink.interrupt().came()) else {
            done.end = if sink.interrupt().came() { End::Interrupted } else { done.end };
            return Ok(done);
        };
        if !line.trim().is_empty() {
            talk.answer(&line, engine, job, &mut done, sink)?;
        }
    }
}

impl Talk<'_> {
    fn answer(
        &mut self,
        message: &str,
        engine: &mut Engine,
        job: &Job,
        done: &mut Generated,
        sink: &mut Sink<'_>,
    ) -> anyhow::Result<()> {
        self.messages.push(Message::new(Role::User, message));
        let prompt = self.template.render(&self.messages, Next::Assistant)?;
        let tokens = self.tokenizer.encode(&prompt.text, Specials::Recognised, prompt.ends)?;
        let room = engine.settings().context as usize;
        if tokens.len() >= room {
            let said = format!("the conversation has {} tokens, the context {room}: give a longer --ctx", tokens.len());
            return Err(EngineError::Settings(said).into());
        }
        let sequence = SequenceId::new(0);
        // What the conversation has in common with the cache stays; at least one token is computed, for its logits.
        let common = tokens.iter().zip(&self.cached).take_while(|(a, b)| a == b).count();
        let common = common.min(tokens.len().saturating_sub(1));
        engine.state_mut().remove(sequence, &(Pos(common as u32)..Pos(u32::MAX))).map_err(EngineError::from)?;
        let mut voices = [Voice::new(sequence, job.sampling)?];
        generate::feed(engine, &mut voices, &tokens[common..], done, sink)?;
        generate::continue_all(engine, &mut voices, job.count, done, sink, true)?;
        sink.say("\n")?;
        let [voice] = voices;
        let said = voice.finish(&tokens);
        let held = engine.state().next(sequence).0 as usize;
        self.cached = tokens.iter().chain(&said.tokens).copied().take(held).collect();
        self.messages.push(Message::new(Role::Assistant, said.text.trim()));
        done.sequences.push(said);
        Ok(())
    }
}

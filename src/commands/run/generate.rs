//! The loop: feed, choose, say.

use super::args::Args;
use super::interrupt::Interrupt;
use super::logits::LogitsLog;
use crate::commands::print;
use crate::engine::{Engine, EngineError, Model, Settings};
use loadmaster_models::kv::{Batch, BatchToken, PromptPiece, SequenceId, SequenceSet};
use loadmaster_models::sampling::{Sampler, SamplingConfig};
use loadmaster_models::tokenizer::{Ends, Specials, TokenId, TokenKind, Tokenizer, Utf8Stream};
use std::time::{Duration, Instant};

/// Tokens that are generated unless asked for another number.
const DEFAULT_TOKENS: u32 = 128;
/// What the embedded model continues if nothing is asked for.
const DEFAULT_PROMPT: &str = "Alice was beginning to get very tired of";

/// What is to be generated.
pub struct Job {
    /// Tokens of the prompt.
    pub prompt: Vec<TokenId>,
    /// Tokens that are fed after it, one at a time.
    pub force: Vec<TokenId>,
    /// Most tokens to generate.
    pub count: u32,
    /// How they are chosen.
    pub sampling: SamplingConfig,
}

impl Job {
    /// Reads the job off the options. Errors: no prompt, tokens that the model does not have, a prompt that is too long.
    pub fn new(
        args: &Args,
        model: &Model,
        tokenizer: Option<&Tokenizer>,
        settings: &Settings,
        sampling: SamplingConfig,
    ) -> anyhow::Result<Self> {
        let prompt = if args.chat { Vec::new() } else { prompt(args, tokenizer)? };
        let force = tokens(&args.force);
        let vocab = model.params.vocab;
        if let Some(bad) = prompt.iter().chain(&force).find(|t| t.index() >= vocab as usize) {
            let said = format!("token {} is outside the model's vocabulary of {vocab} tokens", bad.index());
            return Err(EngineError::Settings(said).into());
        }
        let room = settings.context / settings.sequences.max(1);
        let needed = prompt.len() + force.len();
        if needed > room as usize {
            let said =
                format!("the prompt has {needed} tokens, but a sequence has room for {room}: give a longer --ctx");
            return Err(EngineError::Settings(said).into());
        }
        let usual = if force.is_empty() { DEFAULT_TOKENS } else { 0 };
        Ok(Self { prompt, force, count: args.n.unwrap_or(usual), sampling })
    }
}

fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().map(|&id| TokenId::new(id as usize)).collect()
}

fn prompt(args: &Args, tokenizer: Option<&Tokenizer>) -> anyhow::Result<Vec<TokenId>> {
    if !args.tokens.is_empty() {
        return Ok(tokens(&args.tokens));
    }
    let usual = args.model.is_none().then_some(DEFAULT_PROMPT);
    let missing = || EngineError::Settings("give a text with -p, tokens with --tokens, or --chat".to_owned());
    let text = args.prompt.as_deref().or(usual).ok_or_else(missing)?;
    let tokenizer = tokenizer.ok_or_else(missing)?;
    let encoded = tokenizer.encode(text, Specials::Recognised, Ends::AsModelAsks)?;
    if encoded.is_empty() {
        return Err(EngineError::Settings("the prompt is empty".to_owned()).into());
    }
    Ok(encoded)
}

/// A sequence's continuation.
#[derive(Debug, Default, Clone)]
pub struct Continuation {
    /// What it continues: the prompt, or with `--chat` the conversation up to the answer.
    pub prompt: Vec<TokenId>,
    /// The tokens, the one that ended it among them.
    pub tokens: Vec<TokenId>,
    /// The text, as far as there is a tokenizer.
    pub text: String,
}

/// Why generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum End {
    /// As many tokens as were asked for.
    #[default]
    Count,
    /// The model ended it.
    Model,
    /// The context is full.
    Context,
    /// Ctrl-C.
    Interrupted,
}

impl End {
    /// What people are told after `tokens` tokens.
    pub fn sentence(self, tokens: usize) -> String {
        let plural = if tokens == 1 { "" } else { "s" };
        match self {
            Self::Count => format!("stopped after {tokens} token{plural} (-n)"),
            Self::Model => "the model ended it".to_owned(),
            Self::Context => "the context is full (--ctx)".to_owned(),
            Self::Interrupted => "interrupted".to_owned(),
        }
    }

    /// A word for programs.
    pub fn word(self) -> &'static str {
        match self {
            Self::Count => "count",
            Self::Model => "end of text",
            Self::Context => "context full",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What was generated, and how fast.
#[derive(Debug, Default)]
pub struct Generated {
    /// By sequence.
    pub sequences: Vec<Continuation>,
    /// Tokens of the prompt that were computed, over all sequences.
    pub prompt_tokens: usize,
    /// How long that took.
    pub prompt_time: Duration,
    /// Tokens that were fed one at a time.
    pub steps: usize,
    /// How long these took, choosing included.
    pub step_time: Duration,
    /// Why it ended.
    pub end: End,
}

/// Where text and logits go.
pub struct Sink<'a> {
    tokenizer: Option<&'a Tokenizer>,
    log: Option<&'a mut LogitsLog>,
    silent: bool,
    interrupt: &'a Interrupt,
}

impl<'a> Sink<'a> {
    /// A sink; a silent one prints no text.
    pub fn new(
        silent: bool,
        tokenizer: Option<&'a Tokenizer>,
        log: Option<&'a mut LogitsLog>,
        interrupt: &'a Interrupt,
    ) -> Self {
        Self { tokenizer, log, silent, interrupt }
    }

    /// Whether somebody wants an end.
    pub fn interrupt(&self) -> &'a Interrupt {
        self.interrupt
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> Option<&'a Tokenizer> {
        self.tokenizer
    }

    /// Prints text at once.
    pub fn say(&self, text: &str) -> anyhow::Result<()> {
        if self.silent || text.is_empty() { Ok(()) } else { Ok(print(text)?) }
    }

    fn logits(&mut self, logits: &[f32]) -> anyhow::Result<()> {
        self.log.as_mut().map_or(Ok(()), |log| log.push(logits))
    }

    fn ends(&self, token: TokenId) -> bool {
        self.tokenizer.is_some_and(|t| t.ends_generation(token))
    }

    /// The bytes of a token that are shown: none of those that only steer.
    fn piece(&self, token: TokenId) -> anyhow::Result<Vec<u8>> {
        let Some(tokenizer) = self.tokenizer else { return Ok(Vec::new()) };
        match tokenizer.kind(token) {
            Some(TokenKind::Control | TokenKind::Unknown) => Ok(Vec::new()),
            _ => Ok(tokenizer.piece(token)?),
        }
    }
}

/// A sequence being generated.
pub struct Voice {
    id: SequenceId,
    sampler: Sampler,
    stream: Utf8Stream,
    logits: Vec<f32>,
    said: Continuation,
    live: bool,
}

impl Voice {
    /// A voice of the given sequence; sequences draw with seeds that follow each other.
    pub fn new(id: SequenceId, sampling: SamplingConfig) -> anyhow::Result<Self> {
        let seed = sampling.seed.wrapping_add(id.index() as u64);
        let sampler = Sampler::new(SamplingConfig { seed, ..sampling })?;
        Ok(Self {
            id,
            sampler,
            stream: Utf8Stream::new(),
            logits: Vec::new(),
            said: Continuation::default(),
            live: true,
        })
    }

    /// What was said.
    pub fn finish(mut self, prompt: &[TokenId]) -> Continuation {
        self.said.prompt = prompt.to_vec();
        self.said.text.push_str(&self.stream.finish());
        self.said
    }
}

/// Continues the prompt in all sequences.
pub fn generate(engine: &mut Engine, job: &Job, sink: &mut Sink<'_>) -> anyhow::Result<Generated> {
    let sequences = engine.settings().sequences;
    let ids = (0..sequences).map(|i| SequenceId::new(i as usize));
    let mut voices = ids.map(|id| Voice::new(id, job.sampling)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut done = Generated::default();
    feed(engine, &mut voices, &job.prompt, &mut done, sink)?;
    for &token in &job.force {
        if sink.interrupt().came() {
            done.end = End::Interrupted;
            break;
        }
        let start = Instant::now();
        voices.iter_mut().for_each(|v| v.sampler.accept(token));
        let fed: Vec<_> = voices.iter().map(|v| (v.id, token)).collect();
        step(engine, &mut voices, &fed, sink)?;
        done.steps += fed.len();
        done.step_time += start.elapsed();
    }
    let streams = voices.len() == 1;
    continue_all(engine, &mut voices, job.count, &mut done, sink, streams)?;
    done.sequences = voices.into_iter().map(|voice| voice.finish(&job.prompt)).collect();
    if !streams {
        for (i, said) in done.sequences.iter().enumerate() {
            sink.say(&format!("[{i}] {}\n", said.text))?;
        }
    }
    Ok(done)
}

/// Feeds tokens to all sequences, as many at once as a batch has.
pub fn feed(
    engine: &mut Engine,
    voices: &mut [Voice],
    tokens: &[TokenId],
    done: &mut Generated,
    sink: &mut Sink<'_>,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let each = (engine.settings().batch as usize / voices.len().max(1)).max(1);
    let last = tokens.len().div_ceil(each).saturating_sub(1);
    for (i, piece) in tokens.chunks(each).enumerate() {
        if sink.interrupt().came() {
            done.end = End::Interrupted;
            return Ok(());
        }
        let mut batch = Batch::new();
        if tokens.len() > 1 {
            batch.set_piece(PromptPiece { before: (i * each) as u32, all: tokens.len() as u32 });
        }
        for voice in voices.iter_mut() {
            piece.iter().for_each(|&t| voice.sampler.accept(t));
            append(&mut batch, engine, voice.id, piece, i == last);
        }
        run(engine, voices, &batch)?;
    }
    done.prompt_tokens += tokens.len() * voices.len();
    done.prompt_time += start.elapsed();
    if let Some(first) = voices.first() {
        sink.logits(&first.logits)?;
    }
    Ok(())
}

/// Appends tokens of a sequence; logits are wanted for the last of them, if at all.
fn append(batch: &mut Batch, engine: &Engine, sequence: SequenceId, tokens: &[TokenId], wants: bool) {
    let mut pos = engine.state().next(sequence);
    for (i, &token) in tokens.iter().enumerate() {
        let wants_logits = wants && i + 1 == tokens.len();
        batch.push(BatchToken { token, pos, sequences: SequenceSet::from_iter([sequence]), wants_logits });
        pos = pos.next();
    }
}

fn run(engine: &mut Engine, voices: &mut [Voice], batch: &Batch) -> anyhow::Result<()> {
    let tokens = batch.tokens();
    engine.decode(batch, |index, logits| {
        let voice = voices.iter_mut().find(|v| tokens[index].sequences.contains(v.id));
        if let Some(voice) = voice {
            voice.logits.clear();
            voice.logits.extend_from_slice(logits);
        }
    })?;
    Ok(())
}

fn step(
    engine: &mut Engine,
    voices: &mut [Voice],
    fed: &[(SequenceId, TokenId)],
    sink: &mut Sink<'_>,
) -> anyhow::Result<()> {
    let mut batch = Batch::new();
    fed.iter().for_each(|&(id, token)| append(&mut batch, engine, id, &[token], true));
    run(engine, voices, &batch)?;
    let first = voices.first().filter(|v| fed.iter().any(|(id, _)| *id == v.id));
    first.map_or(Ok(()), |v| sink.logits(&v.logits))
}

/// Chooses and feeds until all sequences have ended.
pub fn continue_all(
    engine: &mut Engine,
    voices: &mut [Voice],
    count: u32,
    done: &mut Generated,
    sink: &mut Sink<'_>,
    streams: bool,
) -> anyhow::Result<()> {
    let room = engine.settings().context / engine.settings().sequences.max(1);
    for i in 0..count {
        if sink.interrupt().came() {
            done.end = End::Interrupted;
            break;
        }
        let start = Instant::now();
        let mut fed = Vec::new();
        for voice in voices.iter_mut().filter(|v| v.live) {
            let token = voice.sampler.sample(&voice.logits)?;
            voice.sampler.accept(token);
            voice.said.tokens.push(token);
            if sink.ends(token) {
                (voice.live, done.end) = (false, End::Model);
                continue;
            }
            let text = voice.stream.push(&sink.piece(token)?);
            if streams {
                sink.say(&text)?;
            }
            voice.said.text.push_str(&text);
            if engine.state().next(voice.id).0 >= room {
                (voice.live, done.end) = (false, End::Context);
                continue;
            }
            fed.push((voice.id, token));
        }
        // The last token need not be computed.
        if i + 1 < count && !fed.is_empty() {
            step(engine, voices, &fed, sink)?;
            done.steps += fed.len();
        }
        done.step_time += start.elapsed();
        if fed.is_empty() {
            break;
        }
    }
    Ok(())
}

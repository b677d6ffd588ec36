//! What these tests share.

use loadmaster::engine::{Engine, EngineError, Model, Settings};
use loadmaster_models::kv::{Batch, SequenceId};
use loadmaster_models::tokenizer::TokenId;
use loadmaster_sched::Machine;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

pub fn goldens() -> PathBuf {
    root().join("tests/goldens")
}

pub fn golden_json(path: impl AsRef<Path>) -> serde_json::Value {
    let bytes = std::fs::read(goldens().join(path)).expect("golden data is there");
    serde_json::from_slice(&bytes).expect("golden data is JSON")
}

pub fn tiny(name: &str) -> Arc<Model> {
    Arc::new(Model::open(&goldens().join("models").join(name)).expect("a golden model opens"))
}

/// A model that `scripts/fetch-model` puts into models/; `None`, with the reason printed, if it is not there.
pub fn fetched(script_name: &str, file: &str) -> Option<Arc<Model>> {
    let path = root().join("models").join(file);
    if !path.exists() {
        eprintln!("skipped: models/{file} is not there; `scripts/fetch-model {script_name}` puts it there");
        return None;
    }
    Some(Arc::new(Model::open(&path).expect("a real model opens")))
}

pub fn machine(specs: &[&str]) -> Machine {
    let specs: Vec<_> = specs.iter().map(|s| s.parse().expect("a device")).collect();
    Machine::from_specs(&specs).expect("a machine")
}

pub fn threads() -> NonZeroUsize {
    NonZeroUsize::new(2).expect("two is not zero")
}

pub fn open(model: &Arc<Model>, specs: &[&str], change: impl FnOnce(&mut Settings)) -> Result<Engine, EngineError> {
    let mut settings = Settings::new(&model.params);
    change(&mut settings);
    Engine::open(Arc::clone(model), &machine(specs), settings, threads(), &mut |_, _| {})
}

pub fn ids(tokens: &[u64]) -> Vec<TokenId> {
    tokens.iter().map(|&t| TokenId::new(t as usize)).collect()
}

pub fn numbers(value: &serde_json::Value) -> Vec<u64> {
    value.as_array().expect("a list").iter().map(|v| v.as_u64().expect("a number")).collect()
}

/// Feeds tokens to the first sequence and returns the logits of the last.
pub fn feed(engine: &mut Engine, tokens: &[TokenId]) -> Result<Vec<f32>, EngineError> {
    let sequence = SequenceId::new(0);
    let batch = Batch::of_sequence(sequence, engine.state().next(sequence), tokens);
    let mut last = Vec::new();
    engine.decode(&batch, |_, logits| last = logits.to_vec())?;
    Ok(last)
}

/// The batch, then the forced tokens one at a time: the logits of every step.
pub fn steps(engine: &mut Engine, prompt: &[TokenId], force: &[TokenId]) -> Result<Vec<Vec<f32>>, EngineError> {
    let first = feed(engine, prompt)?;
    let rest = force.iter().map(|t| feed(engine, &[*t]));
    std::iter::once(Ok(first)).chain(rest).collect()
}

pub fn prompt_tokens() -> Vec<TokenId> {
    let text = std::fs::read_to_string(goldens().join("logits/tokens.txt")).expect("golden data is there");
    text.trim().split(',').map(|t| TokenId::new(t.trim().parse().expect("a token"))).collect()
}

pub fn forced_tokens() -> Vec<TokenId> {
    ids(&[5, 77, 103, 42])
}

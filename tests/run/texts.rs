//! Greedy continuations, token for token.

use super::support::{feed, fetched, golden_json, ids, numbers, open};
use loadmaster::engine::Model;
use loadmaster_models::sampling::argmax;
use loadmaster_models::tokenizer::{Ends, Specials, Tokenizer};
use serde_json::Value;
use std::sync::Arc;

/// Two best logits closer than this: a correct implementation may choose the other.
const NEAR_TIE: f64 = 0.1;

fn gap(step: &Value) -> f64 {
    let logit = |i: usize| step["top"][i][1].as_f64().expect("a logit");
    logit(0) - logit(1)
}

/// How many tokens agree before the first that does not, and the gap there; a text that agrees has no gap.
fn agreeing(model: &Arc<Model>, case: &Value, specs: &[&str]) -> (usize, Option<f64>) {
    let tokenizer = Tokenizer::from_gguf(&model.file).expect("it has a vocabulary");
    let prompt = case["prompt"].as_str().expect("a text");
    let tokens = tokenizer.encode(prompt, Specials::Recognised, Ends::AsModelAsks).expect("it encodes");
    assert_eq!(tokens, ids(&numbers(&case["prompt_tokens"])), "{prompt}");
    let mut engine = open(model, specs, |s| s.context = 512).expect("it loads");
    let mut logits = feed(&mut engine, &tokens).expect("it runs");
    let expected = ids(&numbers(&case["tokens"]));
    for (i, &token) in expected.iter().enumerate() {
        let found = argmax(&logits).expect("finite logits");
        if found != token {
            return (i, Some(gap(&case["steps"][i])));
        }
        logits = feed(&mut engine, &[token]).expect("it runs");
    }
    assert_eq!(tokenizer.decode(&expected).expect("it decodes"), case["text"].as_str().expect("a text"));
    (expected.len(), None)
}

pub fn check(model: &Arc<Model>, file: &str, placements: &[&[&str]]) {
    let golden = golden_json(format!("text/{file}.json"));
    let cases = golden["cases"].as_array().expect("cases");
    let mut compared = 0;
    for (i, case) in cases.iter().enumerate() {
        // Placements give equal bits: one each is enough.
        let specs = placements[i % placements.len()];
        let (token, gap) = agreeing(model, case, specs);
        compared += token;
        let fine = gap.is_none_or(|gap| gap < NEAR_TIE);
        assert!(fine, "{file}, case {i} on {specs:?}: another choice at token {token}, gap {gap:?}");
    }
    let all: usize = cases.iter().map(|c| numbers(&c["tokens"]).len()).sum();
    assert!(compared * 2 >= all, "{file}: only {compared} of {all} tokens could be compared");
}

#[test]
fn the_embedded_model_goes_on_as_recorded() {
    let model = Arc::new(Model::embedded().expect("it opens"));
    check(&model, "alice", &[&["sim:256MiB", "sim:256MiB"], &["cpu"], &["sim:256MiB,chunk=16MiB"]]);
}

#[test]
fn smollm2_goes_on_as_recorded() {
    let Some(model) = fetched("smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf") else { return };
    check(&model, "smollm2", &[&["cpu"], &["sim:512MiB", "sim:512MiB"]]);
    check(&model, "smollm2-more", &[&["cpu"]]);
}

#[test]
fn gemma3_goes_on_as_recorded() {
    let Some(model) = fetched("gemma3", "gemma-3-270m-q4_k_m.gguf") else { return };
    check(&model, "gemma3", &[&["cpu"], &["sim:1GiB", "sim:1GiB"]]);
    check(&model, "gemma3-more", &[&["cpu"]]);
}

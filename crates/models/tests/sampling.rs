//! Sampling: what each step keeps, and that draws follow the probabilities.

#![allow(clippy::unwrap_used, clippy::panic)]

use loadmaster_models::sampling::{Sampler, SamplingConfig, SamplingError, argmax};
use loadmaster_models::tokenizer::TokenId;
use proptest::prelude::*;

fn tok(index: usize) -> TokenId {
    TokenId::new(index)
}

/// A sampler that changes nothing but what `change` sets.
fn sampler(change: impl FnOnce(&mut SamplingConfig)) -> Sampler {
    let mut config = SamplingConfig { temperature: 1.0, ..SamplingConfig::greedy() };
    change(&mut config);
    Sampler::new(config).expect("settings are in range")
}

/// How often each token is drawn.
fn histogram(sampler: &mut Sampler, logits: &[f32], draws: usize) -> Vec<usize> {
    let mut counts = vec![0; logits.len()];
    for _ in 0..draws {
        counts[sampler.sample(logits).expect("a token").index()] += 1;
    }
    counts
}

#[test]
fn greedy_takes_the_largest_and_the_lowest_of_equal_ones() {
    let mut greedy = Sampler::new(SamplingConfig::greedy()).expect("in range");
    assert_eq!(greedy.sample(&[0.0, 3.0, 3.0, -1.0]), Ok(tok(1)));
    assert_eq!(argmax(&[f32::NEG_INFINITY, -5.0]), Ok(tok(1)));
}

#[test]
fn unusable_logits_are_errors() {
    let mut warm = sampler(|_| ());
    for logits in [&[][..], &[f32::NEG_INFINITY; 3]] {
        assert_eq!(argmax(logits), Err(SamplingError::NothingToChoose));
        assert_eq!(warm.sample(logits), Err(SamplingError::NothingToChoose));
    }
    assert!(matches!(argmax(&[0.0, f32::NAN]), Err(SamplingError::Logit { token, .. }) if token == tok(1)));
    assert!(matches!(warm.sample(&[f32::INFINITY]), Err(SamplingError::Logit { token, .. }) if token == tok(0)));
}

#[test]
fn settings_out_of_range_are_named() {
    type Change = (&'static str, fn(&mut SamplingConfig));
    let changes: [Change; 5] = [
        ("temperature", |c| c.temperature = -1.0),
        ("temperature", |c| c.temperature = f32::NAN),
        ("top-p", |c| c.top_p = 0.0),
        ("min-p", |c| c.min_p = 1.5),
        ("penalty", |c| c.repeat_penalty = 0.0),
    ];
    for (name, change) in changes {
        let mut config = SamplingConfig::default();
        change(&mut config);
        let error = Sampler::new(config).expect_err("out of range").to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn draws_follow_the_probabilities() {
    let logits = [0.5f32.ln(), 0.3f32.ln(), 0.2f32.ln()];
    let counts = histogram(&mut sampler(|_| ()), &logits, 20_000);
    for (count, share) in counts.iter().zip([0.5, 0.3, 0.2]) {
        // Five standard deviations.
        assert!((*count as f64 - share * 20_000.0).abs() < 5.0 * 71.0, "{counts:?}");
    }
    let cold = histogram(&mut sampler(|c| c.temperature = 0.1), &logits, 2000);
    assert!(cold[0] > 1950, "{cold:?}");
    let hot = histogram(&mut sampler(|c| c.temperature = 100.0), &logits, 6000);
    assert!(hot.iter().all(|&c| c > 1700), "{hot:?}");
}

#[test]
fn each_filter_keeps_what_it_says() {
    let logits = [0.1f32.ln(), 0.5f32.ln(), 0.15f32.ln(), 0.25f32.ln()];
    let kept = |change: fn(&mut SamplingConfig)| {
        let counts = histogram(&mut sampler(change), &logits, 3000);
        (0..4).filter(|&i| counts[i] > 0).collect::<Vec<_>>()
    };
    assert_eq!(kept(|_| ()), [0, 1, 2, 3]);
    assert_eq!(kept(|c| c.top_k = Some(2)), [1, 3]);
    assert_eq!(kept(|c| c.top_k = Some(0)), [0, 1, 2, 3], "0 keeps all, as in llama.cpp");
    assert_eq!(kept(|c| c.top_p = 0.7), [1, 3]);
    assert_eq!(kept(|c| c.top_p = 0.8), [1, 2, 3]);
    assert_eq!(kept(|c| c.min_p = 0.29), [1, 2, 3], "0.15 is 0.3 of 0.5");
    assert_eq!(kept(|c| c.min_p = 1.0), [1]);
}

#[test]
fn the_penalty_takes_recent_tokens_down_and_forgets_old_ones() {
    let mut greedy =
        Sampler::new(SamplingConfig { repeat_penalty: 2.0, repeat_last: 2, ..SamplingConfig::greedy() }).expect("fine");
    let logits = [3.0, 2.0, -1.0];
    assert_eq!(greedy.sample(&logits), Ok(tok(0)));
    greedy.accept(tok(0));
    assert_eq!(greedy.sample(&logits), Ok(tok(1)), "3 / 2 is below 2");
    greedy.accept(tok(1));
    greedy.accept(tok(2));
    assert_eq!(greedy.sample(&logits), Ok(tok(0)), "token 0 is no longer recent");
    greedy.accept(tok(77));
    assert!(greedy.sample(&logits).is_ok(), "tokens beyond the logits do no harm");
    // Negative logits are multiplied: they fall, too.
    let mut greedy = Sampler::new(SamplingConfig { repeat_penalty: 2.0, ..SamplingConfig::greedy() }).expect("fine");
    greedy.accept(tok(0));
    assert_eq!(greedy.sample(&[-1.0, -1.5]), Ok(tok(1)));
}

#[test]
fn equal_seeds_give_equal_tokens_and_others_do_not() {
    let logits: Vec<f32> = (0..1000).map(|i| (i % 7) as f32).collect();
    let run = |seed| {
        let mut s = sampler(|c| c.seed = seed);
        (0..50).map(|_| s.sample(&logits).expect("a token")).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(11), ..ProptestConfig::default() })]

    /// Whatever the settings, the token is one of those that a plain reading of the filters keeps.
    #[test]
    fn a_token_is_always_one_that_the_filters_keep(
        logits in prop::collection::vec(-20f32..20.0, 1..60),
        top_k in 1u32..70,
        top_p in 0.01f32..1.0,
        min_p in 0f32..1.0,
        seed in any::<u64>(),
    ) {
        let mut s = sampler(|c| (c.top_k, c.top_p, c.min_p, c.seed) = (Some(top_k), top_p, min_p, seed));
        let token = s.sample(&logits).expect("finite logits").index();
        let rank = logits.iter().filter(|&&l| l > logits[token]).count();
        prop_assert!(rank < top_k as usize);
        let largest = logits.iter().copied().fold(f32::MIN, f32::max);
        prop_assert!(logits[token] - largest >= min_p.ln() - 1e-5);
    }
}

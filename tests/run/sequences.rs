//! What no recording covers, as properties of random models: sequences side by side, forgotten and copied, and weights
//! stored in one tensor or in several. Equal means bit for bit.

use super::random_models::{Family, Random, Shape};
use super::support::{open, tiny};
use loadmaster::engine::{Engine, Model, Settings};
use loadmaster_graph::DType;
use loadmaster_models::families::Attention;
use loadmaster_models::kv::{Batch, BatchToken, Pos, PromptPiece, SequenceId, SequenceSet, Sharing};
use loadmaster_models::tokenizer::TokenId;
use std::sync::Arc;

const MACHINES: [&[&str]; 3] = [&["cpu"], &["sim:1GiB", "sim:1GiB"], &["sim:1GiB"]];

fn sequence(i: usize) -> SequenceId {
    SequenceId::new(i)
}

fn random_tokens(random: &mut Random, model: &Model, count: u32) -> Vec<TokenId> {
    (0..count).map(|_| TokenId::new(random.below(model.params.vocab) as usize)).collect()
}

/// Feeds each sequence its tokens in one batch; the logits of the last token of each.
fn feed(engine: &mut Engine, given: &[(SequenceId, &[TokenId])]) -> Vec<Vec<u32>> {
    feed_batch(engine, given, Batch::new())
}

/// The same prompt's length of tokens to each sequence, `each` at once.
fn feed_prompts(engine: &mut Engine, prompts: &[Vec<TokenId>], each: usize) -> Vec<Vec<u32>> {
    let all = prompts[0].len();
    let mut last = Vec::new();
    for before in (0..all).step_by(each) {
        let piece = before..(before + each).min(all);
        let given: Vec<_> = prompts.iter().enumerate().map(|(i, p)| (sequence(i), &p[piece.clone()])).collect();
        let mut batch = Batch::new();
        batch.set_piece(PromptPiece { before: before as u32, all: all as u32 });
        last = feed_batch(engine, &given, batch);
    }
    last
}

fn feed_batch(engine: &mut Engine, given: &[(SequenceId, &[TokenId])], mut batch: Batch) -> Vec<Vec<u32>> {
    for &(id, tokens) in given {
        let mut pos = engine.state().next(id);
        for (i, &token) in tokens.iter().enumerate() {
            let wants_logits = i + 1 == tokens.len();
            batch.push(BatchToken { token, pos, sequences: SequenceSet::from_iter([id]), wants_logits });
            pos = pos.next();
        }
    }
    let tokens = batch.tokens().to_vec();
    let mut out = vec![Vec::new(); given.len()];
    engine
        .decode(&batch, |index, logits| {
            let at = given.iter().position(|(id, _)| tokens[index].sequences.contains(*id)).unwrap();
            out[at] = logits.iter().map(|l| l.to_bits()).collect();
        })
        .unwrap();
    assert!(out.iter().flatten().all(|&bits| f32::from_bits(bits).is_finite()));
    out
}

/// Settings of a case: attention, type of the cache, micro-batch, layers on the host.
fn random_settings(random: &mut Random, model: &Model, sequences: u32) -> impl Fn(&mut Settings) + use<> {
    let attention = random.pick(&[Attention::Plain, Attention::Flash]);
    let quantized = attention == Attention::Flash && model.params.key_length.is_multiple_of(32);
    let cache =
        if quantized { random.pick(&[DType::F16, DType::Q8_0]) } else { random.pick(&[DType::F16, DType::F32]) };
    let (micro_batch, copies) = (random.pick(&[7, 64]), 1 + random.below(2));
    move |s: &mut Settings| {
        (s.context, s.sequences, s.micro_batch) = (256 * sequences, sequences, micro_batch);
        (s.attention, s.key_type, s.value_type) = (attention, cache, cache);
        s.copies = copies.try_into().unwrap();
    }
}

fn cases(seed: u64, mut check: impl FnMut(&mut Random, &Arc<Model>, &[&str], Family)) {
    for (i, family) in Family::ALL.into_iter().enumerate() {
        let mut random = Random::new(seed + i as u64);
        let model = Shape::random(&mut random, family).model(&mut random);
        let machine = random.pick(&MACHINES);
        check(&mut random, &model, machine, family);
    }
}

#[test]
fn sequences_decoded_together_are_each_what_they_are_alone() {
    cases(100, |random, model, machine, family| {
        let set = random_settings(random, model, 3);
        let prompts: Vec<_> = [5, 9, 2].map(|n| random_tokens(random, model, n)).into();
        let steps: Vec<_> = (0..3).map(|_| random_tokens(random, model, 3)).collect();
        let mut together = open(model, machine, &set).unwrap();
        let mut alone = open(model, machine, &set).unwrap();
        let given: Vec<_> = prompts.iter().enumerate().map(|(i, p)| (sequence(i), p.as_slice())).collect();
        let mut found = vec![feed(&mut together, &given)];
        for step in 0..3 {
            let given: Vec<_> = steps.iter().enumerate().map(|(i, s)| (sequence(i), &s[step..=step])).collect();
            found.push(feed(&mut together, &given));
        }
        for i in 0..3 {
            assert_eq!(feed(&mut alone, &[(sequence(i), &prompts[i])])[0], found[0][i], "{family:?} {i}");
            for step in 0..3 {
                let logits = feed(&mut alone, &[(sequence(i), &steps[i][step..=step])]);
                assert_eq!(logits[0], found[step + 1][i], "{family:?} {i} step {step}");
            }
        }
    });
}

/// Checks that prompts of each length, side by side, give what each gives alone, in one piece.
fn check_cuts(model: &Arc<Model>, lengths: &[u32], cuts: &[(u32, usize)]) {
    let mut random = Random::new(500);
    let open = |micro_batch| {
        let set = |s: &mut Settings| (s.context, s.sequences, s.micro_batch) = (3 * 768, 3, micro_batch);
        open(model, &["cpu"], set).unwrap()
    };
    let forget = |engine: &mut Engine| {
        (0..3).for_each(|i| engine.state_mut().remove(sequence(i), &(Pos(0)..Pos(u32::MAX))).unwrap());
    };
    let mut alone = open(512);
    let mut engines: Vec<_> = cuts.iter().map(|&(micro_batch, each)| (open(micro_batch), micro_batch, each)).collect();
    for &length in lengths {
        let prompts: Vec<_> = (0..3).map(|_| random_tokens(&mut random, model, length)).collect();
        let mut expected = Vec::new();
        for prompt in &prompts {
            expected.push(feed_prompts(&mut alone, std::slice::from_ref(prompt), prompt.len()).remove(0));
            forget(&mut alone);
        }
        for (engine, micro_batch, each) in &mut engines {
            for count in [1, 3] {
                let found = feed_prompts(engine, &prompts[..count], *each);
                let what = format!("{}: {count} prompts of {length}, {each} at once, {micro_batch}", model.name);
                assert!(found == expected[..count], "{what}");
                forget(engine);
            }
        }
    }
}

#[test]
fn prompts_side_by_side_give_the_same_bits_however_they_are_cut() {
    for name in ["tiny-llama-Q4_K_M", "tiny-llama-F16", "tiny-qwen3moe-Q4_K_M"] {
        let model = tiny(&format!("{name}.gguf"));
        check_cuts(&model, &[2, 3, 5, 7, 8, 11, 18], &[(512, 64), (7, 64), (512, 5), (3, 2)]);
    }
}

/// llama.cpp takes 512 tokens at a time: what is left over has an order of its own, also within a larger micro-batch.
#[test]
fn prompts_of_more_than_512_tokens_give_the_same_bits_however_they_are_cut() {
    let mut random = Random::new(600);
    let shape = Shape { weights: DType::F16, layers: 2, ..Shape::random(&mut random, Family::Llama) };
    check_cuts(&shape.model(&mut random), &[512, 513, 515, 518], &[(300, 600), (2048, 600), (64, 500)]);
}

#[test]
fn the_left_over_tokens_of_a_hundred_prompts_are_all_counted() {
    let mut batch = Batch::new();
    batch.set_piece(PromptPiece { before: 4, all: 7 });
    for (i, pos) in (0..100).flat_map(|i| (4..7).map(move |pos| (i, Pos(pos)))) {
        let sequences = SequenceSet::from_iter([sequence(i)]);
        batch.push(BatchToken { token: TokenId::new(0), pos, sequences, wants_logits: false });
    }
    let parts = batch.split(512, Sharing::Unified).unwrap();
    let counts: Vec<_> = parts.iter().map(|p| (p.len(), p.columns().tail)).collect();
    assert_eq!(counts, [(300, 300)]);
}

#[test]
fn what_is_forgotten_leaves_no_trace() {
    cases(200, |random, model, machine, family| {
        let set = random_settings(random, model, 2);
        let [kept, lost, next] = [6, 8, 4].map(|n| random_tokens(random, model, n));
        let mut fresh = open(model, machine, &set).unwrap();
        feed(&mut fresh, &[(sequence(0), &kept)]);
        let expected = feed(&mut fresh, &[(sequence(0), &next)]);
        let mut engine = open(model, machine, &set).unwrap();
        feed(&mut engine, &[(sequence(0), &kept), (sequence(1), &lost)]);
        feed(&mut engine, &[(sequence(0), &lost)]);
        engine.state_mut().remove(sequence(0), &(Pos(6)..Pos(u32::MAX))).unwrap();
        engine.state_mut().remove(sequence(1), &(Pos(0)..Pos(u32::MAX))).unwrap();
        assert_eq!(feed(&mut engine, &[(sequence(0), &next)]), expected, "{family:?}");
        feed(&mut engine, &[(sequence(1), &kept)]);
        assert_eq!(feed(&mut engine, &[(sequence(1), &next)]), expected, "{family:?}, in the other sequence");
    });
}

#[test]
fn a_copied_sequence_goes_on_as_the_original_does() {
    cases(300, |random, model, machine, family| {
        let set = random_settings(random, model, 3);
        let [prompt, other, next] = [7, 5, 3].map(|n| random_tokens(random, model, n));
        let mut engine = open(model, machine, &set).unwrap();
        feed(&mut engine, &[(sequence(0), &prompt), (sequence(2), &other)]);
        engine.copy_sequence(sequence(0), sequence(2)).unwrap();
        let found = feed(&mut engine, &[(sequence(0), &next), (sequence(2), &next)]);
        assert_eq!(found[0], found[1], "{family:?}");
        engine.copy_sequence(sequence(2), sequence(2)).unwrap();
        assert!(engine.copy_sequence(sequence(0), sequence(3)).is_err());
    });
}

#[test]
fn one_weight_for_queries_keys_and_values_is_three() {
    for seed in 400..406 {
        let mut random = Random::new(seed);
        let shape = Shape::random(&mut random, Family::Phi3);
        let models = shape.fused_and_split(&random);
        let set = random_settings(&mut random, &models[0], 1);
        let machine = random.pick(&MACHINES);
        let [prompt, next] = [11, 2].map(|n| random_tokens(&mut random, &models[0], n));
        let [fused, split] = models.map(|model| {
            let mut engine = open(&model, machine, &set).unwrap();
            [&prompt, &next].map(|tokens| feed(&mut engine, &[(sequence(0), tokens)]))
        });
        assert_eq!(fused, split, "seed {seed}: {shape:?}");
    }
}

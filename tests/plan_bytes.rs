//! Every byte that a plan tells is what devices then count when the model is loaded and runs: of random models and of
//! recorded ones, over random machines and settings. Nothing is taken after loading.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "support/random_models.rs"]
mod random_models;
#[path = "support/recorded_models.rs"]
mod recorded_models;

use loadmaster::commands::input::PolicyArg;
use loadmaster::engine::{Engine, Model, Reserve, prepare};
use loadmaster::plan::Choices;
use loadmaster::plan::saved::SavedPlan;
use loadmaster_backends::DeviceStats;
use loadmaster_graph::{Bytes, DeviceId, IdVec};
use loadmaster_models::hparams::HParams;
use loadmaster_models::kv::{Batch, BatchToken, SequenceId, SequenceSet};
use loadmaster_models::tokenizer::TokenId;
use loadmaster_sched::{DeviceKind, Machine};
use random_models::{Family, Random, Shape};
use recorded_models::{MODELS, recorded};
use std::num::NonZeroUsize;
use std::sync::Arc;

fn random_choices(random: &mut Random, params: &HParams, gpus: u32) -> Choices {
    let layers = params.layers.len() as u32;
    let flash_attn = random.one_in(2);
    // Quantized caches need flash attention, and heads of whole blocks.
    let quantized = flash_attn && params.key_length.is_multiple_of(32);
    let kv_types: &[&str] = if quantized { &["f16", "f32", "q8_0"] } else { &["f16", "f32"] };
    let patterns = ["", "", "", r"ffn_.*=CPU", r"blk\.0\..*=CPU", r"_exps=CPU", r"attn_=SIM0", r"^output=SIM0"];
    let pattern = random.pick(&patterns);
    let parallel = 1 + random.below(3);
    Choices {
        ctx: parallel * 64 * (1 + random.below(6)),
        batch: 64,
        ubatch: random.pick(&[1, 5, 16, 31, 32, 33, 40, 64]),
        parallel,
        flash_attn,
        kv_type: random.pick(kv_types).to_owned(),
        copies: 1 + random.below(4),
        n_gpu_layers: Some(random.below(layers + 2)).filter(|_| random.below(3) > 0),
        tensor_split: Some((0..gpus).map(|_| 1.0 + random.below(5) as f32).collect()),
        override_tensor: Some(pattern.to_owned()).filter(|p| !p.is_empty()).into_iter().collect(),
        kv_offload: random.below(4) > 0,
    }
}

/// One to three virtual GPUs, some pairs of which do not reach each other.
fn random_machine(random: &mut Random) -> (Machine, u32) {
    let gpus = 1 + random.below(3);
    let specs: Vec<_> = (0..gpus).map(|_| "sim:1GiB".parse().unwrap()).collect();
    let mut parts = Machine::from_specs(&specs).unwrap().parts().clone();
    for (from, to) in (0..gpus).flat_map(|a| (0..gpus).map(move |b| (a, b))).filter(|(a, b)| a != b) {
        if random.one_in(3) {
            let [from, to] = [from, to].map(|d| DeviceId::new(d as usize));
            let path = loadmaster_sched::machine::LinkPath::Pinned;
            parts.links.push(loadmaster_sched::machine::Link {
                from,
                to,
                path,
                bandwidth: Bytes::gib(10),
                latency_ns: 0,
            });
        }
    }
    (Machine::new(parts).unwrap(), gpus)
}

#[test]
fn devices_count_what_the_plan_says_for_recorded_models() {
    let mut random = Random::new(1);
    for name in MODELS {
        let model = recorded(name);
        for round in 0..4 {
            let (machine, gpus) = random_machine(&mut random);
            let choices = random_choices(&mut random, &model.params, gpus);
            compare(&model, &machine, &choices, &mut random, &format!("{name} {round}: {choices:?}"));
        }
    }
}

#[test]
fn devices_count_what_the_plan_says_for_random_models_and_nothing_more_when_they_run() {
    for seed in seeds() {
        let mut random = Random::new(seed);
        let shape = Shape::random(&mut random, Family::ALL[seed as usize % Family::ALL.len()]);
        let model = shape.model(&mut random);
        let (machine, gpus) = random_machine(&mut random);
        let choices = random_choices(&mut random, &model.params, gpus);
        compare(&model, &machine, &choices, &mut random, &format!("seed {seed}: {shape:?} {choices:?}"));
    }
}

/// Those of `LOADMASTER_SEEDS`, such as `0..3000`, for a longer search or to see one again.
fn seeds() -> std::ops::Range<u64> {
    let given = std::env::var("LOADMASTER_SEEDS").ok();
    let range = given.as_deref().and_then(|text| text.split_once("..")).map(|(a, b)| (a.parse(), b.parse()));
    if let Some((Ok(first), Ok(end))) = range { first..end } else { 0..84 }
}

fn compare(model: &Arc<Model>, machine: &Machine, choices: &Choices, random: &mut Random, case: &str) {
    let settings = choices.settings(&model.params, machine, PolicyArg::Best.placer()).unwrap();
    let prepared = prepare(model, machine, &settings).unwrap_or_else(|e| panic!("{case}: {e}"));
    let plan = SavedPlan::new(model, machine, choices, &prepared, Bytes::ZERO);
    let devices = loadmaster_sched::exec::open(machine, NonZeroUsize::MIN).unwrap();
    let model = Arc::clone(model);
    let engine = Engine::load(model, machine, devices, settings, prepared, Reserve::Largest, &mut |_, _| {});
    let mut engine = engine.unwrap_or_else(|e| panic!("{case}: {e}"));
    let loaded = engine.device_stats();
    for ((id, stats), planned) in loaded.iter().zip(&plan.devices) {
        // The host computes on the weights where the file is mapped.
        let in_file = if machine.device(id).kind == DeviceKind::Cpu { planned.weights } else { 0 };
        let expected = planned.total + planned.staging - in_file;
        assert_eq!(stats.live_bytes.get(), expected, "{} of {case}: {planned:?}", planned.name);
    }
    run(&mut engine, random, case, &loaded);
}

/// A prompt of some length to some sequences, then steps of some of them.
fn run(engine: &mut Engine, random: &mut Random, case: &str, loaded: &IdVec<DeviceId, DeviceStats>) {
    let (sequences, batch) = (engine.settings().sequences, engine.settings().batch);
    let vocab = engine.model().params.vocab;
    for step in 0..4 {
        let length = if step == 0 { 1 + random.below(batch / sequences) } else { 1 };
        let chosen = 1 + random.below(sequences);
        let mut given = Batch::new();
        for sequence in (0..chosen).map(|s| SequenceId::new(s as usize)) {
            let mut pos = engine.state().next(sequence);
            for i in 0..length {
                let token = TokenId::new(random.below(vocab) as usize);
                let wants_logits = i + 1 == length || random.one_in(5);
                given.push(BatchToken { token, pos, sequences: SequenceSet::from_iter([sequence]), wants_logits });
                pos = pos.next();
            }
        }
        engine.decode(&given, |_, _| {}).unwrap_or_else(|e| panic!("step {step} of {case}: {e}"));
        for (id, (before, after)) in loaded.iter().map(|(id, l)| (id, (l, engine.device_stats()[id]))) {
            let taken = after.allocations - before.allocations;
            assert_eq!(
                (after.live_bytes, taken),
                (before.live_bytes, 0),
                "{id}, step {step} ({chosen}×{length}) of {case}"
            );
        }
    }
}

//! Every byte that a plan without pipelining tells is what devices then count when the model is loaded.

#![allow(clippy::unwrap_used, clippy::panic)]

use loadmaster::commands::input::PolicyArg;
use loadmaster::engine::{Engine, Model, Reserve, prepare};
use loadmaster::plan::Choices;
use loadmaster::plan::saved::SavedPlan;
use loadmaster_graph::Bytes;
use loadmaster_sched::{DeviceKind, Machine};
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;

const MODELS: [&str; 7] = [
    "tiny-llama-Q8_0",
    "tiny-gemma3-Q8_0",
    "tiny-mixtral-Q8_0",
    "tiny-phi3-Q4_1",
    "tiny-qwen2-Q4_0",
    "tiny-qwen3-Q5_K_M",
    "tiny-qwen3moe-Q4_K_M",
];
const ROUNDS: usize = 8;

/// A generator of test cases: xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % u64::from(n)) as u32
    }
}

fn random_choices(random: &mut Random, layers: u32) -> Choices {
    let flash_attn = random.below(2) == 1;
    let by_name = random.below(3) == 0;
    Choices {
        ctx: 64 * (1 + random.below(8)),
        batch: 64,
        ubatch: 1 + random.below(64),
        parallel: 1 + random.below(3),
        flash_attn,
        kv_type: "f16".to_owned(),
        // Deeper pipelines also take buffers for fetched outputs, which preparing does not count yet.
        copies: 1,
        n_gpu_layers: Some(random.below(layers + 2)),
        tensor_split: Some(vec![random.below(5) as f32, 1.0 + random.below(5) as f32]),
        override_tensor: if by_name { vec![r"ffn_.*=CPU".to_owned()] } else { Vec::new() },
        kv_offload: random.below(4) > 0,
    }
}

#[test]
fn devices_count_what_the_plan_says() {
    let specs = ["sim:1GiB", "sim:1GiB"].map(|s| s.parse().unwrap());
    let machine = Machine::from_specs(&specs).unwrap();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for name in MODELS {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/goldens/models/{name}.gguf"));
        let model = Arc::new(Model::open(&path).unwrap());
        for round in 0..ROUNDS {
            let choices = random_choices(&mut random, model.params.layers.len() as u32);
            compare(&model, &machine, &choices, &format!("{name} {round}: {choices:?}"));
        }
    }
}

fn compare(model: &Arc<Model>, machine: &Machine, choices: &Choices, case: &str) {
    let settings = choices.settings(&model.params, machine, PolicyArg::Best.placer()).unwrap();
    let prepared = prepare(model, machine, &settings).unwrap_or_else(|e| panic!("{case}: {e}"));
    let plan = SavedPlan::new(model, machine, choices, &prepared, Bytes::ZERO);
    let devices = loadmaster_sched::exec::open(machine, NonZeroUsize::MIN).unwrap();
    let model = Arc::clone(model);
    let engine = Engine::load(model, machine, devices, settings, prepared, Reserve::Largest, &mut |_, _| {});
    let engine = engine.unwrap_or_else(|e| panic!("{case}: {e}"));
    for ((id, stats), planned) in engine.device_stats().iter().zip(&plan.devices) {
        // The host computes on the weights where the file is mapped.
        let in_file = if machine.device(id).kind == DeviceKind::Cpu { planned.weights } else { 0 };
        assert_eq!(stats.live_bytes.get(), planned.total - in_file, "{} of {case}: {planned:?}", planned.name);
    }
}

//! What a decoded token costs beside its kernels: `cargo bench --bench overhead [MODEL.gguf]`.
//!
//! The same engine decodes twice: on devices that compute, and on devices of which only the queues, events and commands
//! are real. What the second takes is everything but kernels and moved bytes. Without an argument: the model in the
//! program, and SmolLM2 where `scripts/fetch-model smollm2` has put it.

#![allow(clippy::unwrap_used, clippy::panic)]

use loadmaster::engine::{Engine, Model, Reserve, Settings, prepare};
use loadmaster_backends::cpu::{ComputeCtx, Workers};
use loadmaster_backends::{Arithmetic, CpuDevice, CpuOptions, Device, DeviceStats, SimDevice, SimOptions};
use loadmaster_graph::Bytes;
use loadmaster_models::kv::{Batch, Pos, SequenceId};
use loadmaster_models::tokenizer::TokenId;
use loadmaster_sched::Machine;
use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const TOKENS: u32 = 96;
const ROUNDS: usize = 5;

fn devices(gpus: usize, arithmetic: Arithmetic, workers: &Workers) -> Vec<Arc<dyn Device>> {
    let kernels = || Arc::new(ComputeCtx::new(workers.clone()));
    let sim = |i: usize| {
        let mut options = SimOptions::new(format!("SIM{i}"), Bytes::gib(2));
        options.arithmetic = arithmetic;
        Arc::new(SimDevice::new(options, kernels()).unwrap()) as Arc<dyn Device>
    };
    let host = CpuOptions { name: "CPU".into(), arithmetic, ..CpuOptions::default() };
    (0..gpus).map(sim).chain([Arc::new(CpuDevice::new(host, kernels()).unwrap()) as Arc<dyn Device>]).collect()
}

struct Measured {
    /// Of the fastest round.
    token: Duration,
    moved: Bytes,
    copies: u64,
}

fn moved(stats: impl Iterator<Item = DeviceStats>) -> (u64, u64) {
    let routes = stats.flat_map(|s| [s.to_device, s.to_host, s.peer]);
    routes.fold((0, 0), |(copies, bytes), c| (copies + c.copies, bytes + c.bytes.get()))
}

fn decode(model: &Arc<Model>, gpus: usize, arithmetic: Arithmetic, threads: NonZeroUsize) -> Measured {
    let specs: Vec<_> = (0..gpus).map(|_| "sim:2GiB".parse().unwrap()).collect();
    let machine = Machine::from_specs(&specs).unwrap();
    let settings = Settings { context: 256, micro_batch: 32, ..Settings::new(&model.params) };
    let prepared = prepare(model, &machine, &settings).unwrap();
    let devices = devices(gpus, arithmetic, &Workers::new(threads).unwrap());
    let model = Arc::clone(model);
    let engine = Engine::load(model, &machine, devices, settings, prepared, Reserve::Largest, &mut |_, _| {});
    let mut engine = engine.unwrap();
    let sequence = SequenceId::new(0);
    let mut measured = Measured { token: Duration::MAX, moved: Bytes::ZERO, copies: 0 };
    for _ in 0..ROUNDS {
        engine.state_mut().remove(sequence, &(Pos(0)..Pos(u32::MAX))).unwrap();
        let before = moved(engine.device_stats().values().copied());
        let start = Instant::now();
        for _ in 0..TOKENS {
            let batch = Batch::of_sequence(sequence, engine.state().next(sequence), &[TokenId::new(1)]);
            engine.decode(&batch, |_, _| {}).unwrap();
        }
        let after = moved(engine.device_stats().values().copied());
        let tokens = u64::from(TOKENS);
        measured.token = measured.token.min(start.elapsed() / TOKENS);
        (measured.copies, measured.moved) = ((after.0 - before.0) / tokens, Bytes((after.1 - before.1) / tokens));
    }
    measured
}

fn report(model: &Arc<Model>, threads: NonZeroUsize) {
    for gpus in [0, 2] {
        let real = decode(model, gpus, Arithmetic::Real, threads);
        let hollow = decode(model, gpus, Arithmetic::TimeOnly, threads);
        let share = 100.0 * hollow.token.as_secs_f64() / real.token.as_secs_f64();
        let place = if gpus == 0 { "cpu".to_owned() } else { format!("cpu and {gpus} sim") };
        println!(
            "{}, {place}, {threads} threads: {:?} a token, {:?} beside kernels ({share:.1} %), {} in {} copies",
            model.name, real.token, hollow.token, real.moved, real.copies
        );
    }
}

fn main() {
    let given = std::env::args().skip(1).find(|a| !a.starts_with('-'));
    let smollm2 = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/SmolLM2-135M-Instruct.Q4_1.gguf");
    let models = match given {
        Some(path) => vec![Model::open(Path::new(&path)).unwrap()],
        None if smollm2.exists() => vec![Model::embedded().unwrap(), Model::open(&smollm2).unwrap()],
        None => vec![Model::embedded().unwrap()],
    };
    for model in models.into_iter().map(Arc::new) {
        for threads in [1, 2].map(|n| NonZeroUsize::new(n).unwrap()) {
            report(&model, threads);
        }
    }
}

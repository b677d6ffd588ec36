//! How much faster several virtual GPUs read a prompt of 4,096 tokens than one, in simulated time: the graphs, plans,
//! copies and waits of real models, with a model of time in place of kernels. A result, the same on every machine.

#![allow(clippy::unwrap_used, clippy::panic)]

use loadmaster::engine::{Engine, Model, Reserve, Settings, prepare};
use loadmaster_backends::cpu::{ComputeCtx, Workers};
use loadmaster_backends::{
    Arithmetic, CpuDevice, CpuOptions, Device, LinkModel, SimClock, SimDevice, SimOptions, SimTime, TimeModel, mmap,
};
use loadmaster_graph::Bytes;
use loadmaster_models::families::Attention;
use loadmaster_models::gguf::Gguf;
use loadmaster_models::kv::{Batch, Pos, SequenceId};
use loadmaster_models::tokenizer::TokenId;
use loadmaster_sched::Machine;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const PROMPT: u32 = 4096;

/// A header with room behind it for the weights, which nobody reads where only time is simulated.
fn model(header: &str) -> Arc<Model> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/goldens/models/headers/{header}.gguf"));
    let bytes = std::fs::read(path).unwrap();
    let file = Gguf::from_bytes(Arc::new(bytes.clone())).unwrap();
    let end = file.tensors().iter().map(|t| t.start.get() + t.size.unwrap_or_default().get()).max().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    // The file has a hole: it takes no room.
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(end.next_multiple_of(4096)).unwrap();
    Arc::new(Model::of(header.to_owned(), Gguf::from_bytes(mmap(&path).unwrap()).unwrap()).unwrap())
}

struct World {
    machine: Machine,
    devices: Vec<Arc<dyn Device>>,
    clock: Arc<SimClock>,
}

/// GPUs of 100 TFLOP/s and 1 TB/s beside a host of 1 TFLOP/s and 50 GB/s; links of 20 GB/s and 5 µs.
fn world(gpus: usize) -> World {
    let us = |n: f64| SimTime::from_seconds(n * 1e-6);
    let clock = SimClock::new(BTreeMap::new(), LinkModel { bandwidth: 20e9, latency: us(5.0) });
    let specs: Vec<_> = (0..gpus).map(|_| "sim:96GiB".parse().unwrap()).collect();
    let kernels = || Arc::new(ComputeCtx::new(Workers::single()));
    let mut devices: Vec<Arc<dyn Device>> = Vec::new();
    for i in 0..gpus {
        let mut options = SimOptions::new(format!("SIM{i}"), Bytes::gib(96));
        options.arithmetic = Arithmetic::TimeOnly;
        options.time = Some((Arc::clone(&clock), TimeModel { flops: 100e12, bandwidth: 1e12, launch: us(3.0) }));
        devices.push(Arc::new(SimDevice::new(options, kernels()).unwrap()));
    }
    let time = Some((Arc::clone(&clock), TimeModel { flops: 1e12, bandwidth: 50e9, launch: us(1.0) }));
    let host = CpuOptions { name: "CPU".into(), arithmetic: Arithmetic::TimeOnly, time, ..CpuOptions::default() };
    devices.push(Arc::new(CpuDevice::new(host, kernels()).unwrap()));
    World { machine: Machine::from_specs(&specs).unwrap(), devices, clock }
}

/// Seconds from the first input to the last logits.
fn seconds(model: &Arc<Model>, gpus: usize, micro_batch: u32, copies: u32) -> f64 {
    let World { machine, devices, clock } = world(gpus);
    let layers = model.params.layers.len();
    // Layers evenly; the output is less than a layer for one row of logits a micro-batch.
    let split =
        (0..gpus).map(|i| ((i + 1) * layers / gpus - i * layers / gpus) as f32 + if i + 1 == gpus { 1.0 } else { 0.0 });
    let settings = Settings {
        context: PROMPT,
        batch: PROMPT,
        micro_batch,
        attention: Attention::Flash,
        tensor_split: Some(split.collect()),
        copies: copies.try_into().unwrap(),
        ..Settings::new(&model.params)
    };
    let prepared = prepare(model, &machine, &settings).unwrap();
    let model = Arc::clone(model);
    let engine = Engine::load(model, &machine, devices, settings, prepared, Reserve::AsNeeded, &mut |_, _| {});
    let tokens = vec![TokenId::new(1); PROMPT as usize];
    let start = clock.latest().max(clock.host());
    engine.unwrap().decode(&Batch::of_sequence(SequenceId::new(0), Pos(0), &tokens), |_, _| {}).unwrap();
    clock.latest().max(clock.host()).since(start).seconds()
}

/// What keeps it below as many times: the filling and draining of the pipeline, which is shorter the smaller the
/// micro-batches, whose launches then weigh more; and that all micro-batches see as many cells as the last, so that one
/// plan serves them (runs of two plans do not overlap).
#[test]
fn several_gpus_read_a_long_prompt_nearly_as_many_times_as_fast() {
    for (name, floors) in [("llama3-8b", [0.85, 0.8, 0.7]), ("llama3-70b", [0.88, 0.8, 0.7])] {
        let model = model(name);
        let best = |gpus: usize, copies: u32| {
            let timed = [64, 128, 256].map(|micro| (seconds(&model, gpus, micro, copies), micro));
            timed.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap()
        };
        let (alone, micro) = best(1, 1);
        println!("{name}: 1 GPU {alone:.3} s, micro-batches of {micro}");
        for (gpus, floor) in [2_usize, 4, 8].into_iter().zip(floors) {
            let in_turn = alone / seconds(&model, gpus, 256, 1);
            let (overlapped, micro) = best(gpus, gpus as u32 + 2);
            let speed_up = alone / overlapped;
            println!("{name}: {gpus} GPUs {in_turn:.2} in turn, {speed_up:.2} overlapped, micro-batches of {micro}");
            assert!(speed_up >= floor * gpus as f64, "{name} on {gpus} GPUs: {speed_up:.2}");
        }
    }
}

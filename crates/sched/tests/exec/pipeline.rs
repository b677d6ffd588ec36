//! Runs that overlap: the same results, and the time that a pipeline should take.

use crate::random::{inputs, model};
use crate::results::{random_world, reference, spread};
use crate::world::{Inputs, Loaded, Model, Random, World, write_all};
use loadmaster_backends::{Arithmetic, LinkModel, SimClock, SimOptions, SimTime, TimeModel};
use loadmaster_graph::{Bytes, DType, DeviceId, GraphBuilder, TensorId};
use loadmaster_sched::Usage;
use loadmaster_sched::exec::{ExecError, Executable, Outputs, Run};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

fn fetched(exec: &mut Executable, model: &Model, run: Run) -> Result<Vec<Vec<u8>>, ExecError> {
    let read = |&output: &TensorId| {
        let mut bytes = vec![0; model.graph.tensor(output).nbytes().get() as usize];
        exec.read_fetched(run, output, &mut bytes).map(|()| bytes)
    };
    model.outputs.iter().map(read).collect()
}

#[test]
fn runs_that_overlap_give_the_results_of_runs_one_after_another() {
    const RUNS: u64 = 9;
    for seed in 0..120 {
        let model = model(seed, 20);
        let expected = reference(&model, RUNS);
        let world = random_world(seed + 1000);
        let loaded = Loaded::new(&world, &model, spread(&world, seed)).unwrap();
        let copies = 1 + (seed % 4) as u32;
        let mut session = world
            .session(|o| {
                o.n_copies = NonZeroU32::new(copies).unwrap();
                o.outputs = Outputs::Fetched;
                o.piece = Bytes(256);
            })
            .unwrap();
        let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
        let exec = session.executable(plan).unwrap();
        let mut random = Random(seed);
        let mut issued: Vec<Run> = Vec::new();
        for r in 0..RUNS {
            // Some device lags behind while the run is issued, unless its inputs wait for that device.
            let late = &world.devices[random.below(world.devices.len())];
            write_all(exec, &inputs(&model, r)).unwrap();
            let no_ids = exec.schedule().experts().is_empty();
            if no_ids {
                late.faults().stall();
            }
            issued.push(exec.run_async().unwrap());
            late.faults().release();
            if let Some(due) = issued.len().checked_sub(copies as usize) {
                let found = fetched(exec, &model, issued[due]).unwrap();
                assert!(found == expected[due], "seed {seed}: run {due} differs");
            }
        }
        exec.synchronize().unwrap();
        let last = fetched(exec, &model, issued[RUNS as usize - 1]).unwrap();
        assert!(last == expected[RUNS as usize - 1], "seed {seed}: the last run differs");
        let gone = fetched(exec, &model, issued[0]).unwrap_err();
        assert!(matches!(gone, ExecError::Overwritten { run: 0, .. }), "{gone}");
    }
}

/// `layers` products of a square matrix with a batch of rows.
fn tower(layers: u64, width: u64, rows: u64) -> (Model, Vec<TensorId>) {
    let mut b = GraphBuilder::new();
    let x = b.leaf("x", DType::F32, &[width, rows]).unwrap();
    b.set_input(x).unwrap();
    let mut weights = BTreeMap::new();
    let mut order = Vec::new();
    let mut at = x;
    for i in 0..layers {
        let w = b.leaf(format!("w{i}"), DType::F32, &[width, width]).unwrap();
        weights.insert(w, (Vec::new(), Usage::Weights));
        order.push(w);
        at = b.mul_mat(w, at).unwrap();
    }
    b.set_output(at).unwrap();
    b.expand(at).unwrap();
    let graph = b.finish("tower").unwrap();
    (Model { graph, weights, pinned: BTreeMap::new(), outputs: vec![at] }, order)
}

/// Simulated time of `batches` runs of a tower over `gpus` GPUs.
fn simulated(gpus: usize, batches: u64, copies: u32) -> SimTime {
    let (model, weights) = tower(32, 1024, 64);
    let us = |n: f64| SimTime::from_seconds(n * 1e-6);
    let clock = SimClock::new(BTreeMap::new(), LinkModel { bandwidth: 20e9, latency: us(5.0) });
    let sims = (0..gpus).map(|i| {
        let mut options = SimOptions::new(format!("sim{i}"), Bytes::gib(4));
        options.arithmetic = Arithmetic::TimeOnly;
        let model = TimeModel { flops: 10e12, bandwidth: 1e12, launch: us(5.0) };
        options.time = Some((Arc::clone(&clock), model));
        options
    });
    let world = World::of(sims.collect());
    let layer = |t: TensorId| weights.iter().position(|&w| w == t).unwrap();
    let loaded = Loaded::new(&world, &model, |t| DeviceId::new(layer(t) * gpus / weights.len())).unwrap();
    let mut session = world
        .session(|o| {
            o.n_copies = NonZeroU32::new(copies).unwrap();
            o.outputs = Outputs::Fetched;
        })
        .unwrap();
    let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
    let exec = session.executable(plan).unwrap();
    let inputs: Inputs = exec.inputs().map(|t| (t, vec![0; model.graph.tensor(t).nbytes().get() as usize])).collect();
    let start = clock.latest();
    for _ in 0..batches {
        write_all(exec, &inputs).unwrap();
        exec.run_async().unwrap();
    }
    exec.synchronize().unwrap();
    clock.latest().since(start)
}

#[test]
fn a_simulated_pipeline_is_as_fast_as_its_devices_allow() {
    let batches = 256;
    let alone = simulated(1, batches, 3).seconds();
    for gpus in [2_usize, 4, 8] {
        let in_turn = alone / simulated(gpus, batches, 1).seconds();
        let overlapped = alone / simulated(gpus, batches, gpus as u32 + 2).seconds();
        println!(
            "{gpus} GPUs: {in_turn:.2} times as fast with one copy of each input, {overlapped:.2} with {}",
            gpus + 2
        );
        assert!(in_turn < overlapped, "{gpus} GPUs without pipelining: {in_turn:.2}");
        assert!(overlapped > 0.9 * gpus as f64, "{gpus} GPUs with pipelining: {overlapped:.2}");
    }
}

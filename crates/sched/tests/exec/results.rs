//! The same bits on one device and on many.

use crate::random::{inputs, model};
use crate::world::{Gpus, Loaded, Model, Random, World, difference, first_wrong, outputs, run_once, write_all};
use loadmaster_alloc::Placer;
use loadmaster_backends::{Peers, Staging};
use loadmaster_graph::{Bytes, DeviceId};
use loadmaster_sched::exec::{Action, Outputs, check};
use std::num::NonZeroU32;

/// All outputs of some runs on the host alone.
pub fn reference(model: &Model, runs: u64) -> Vec<Vec<Vec<u8>>> {
    let world = World::new(&Gpus::new(0));
    let loaded = Loaded::new(&world, model, |_| world.host()).unwrap();
    let mut session = world.session(|_| ()).unwrap();
    let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
    let exec = session.executable(plan).unwrap();
    let run = |r| {
        run_once(exec, &inputs(model, r)).unwrap();
        outputs(exec, model).unwrap()
    };
    (0..runs).map(run).collect()
}

/// A world for a seed: one to three GPUs, with and without direct paths, pinned memory and chunks.
pub fn random_world(seed: u64) -> World {
    let mut random = Random(seed);
    let mut gpus = Gpus::new(1 + random.below(3));
    if random.one_in(2) {
        gpus.peers = Peers::None;
    }
    if random.one_in(3) {
        gpus.staging = Staging::Pageable;
    }
    if random.one_in(3) {
        gpus.chunk = Some(Bytes(128 << 10));
    }
    World::new(&gpus)
}

/// Where a seed puts each weight.
pub fn spread(world: &World, seed: u64) -> impl Fn(loadmaster_graph::TensorId) -> DeviceId {
    let devices = world.devices.len();
    move |t| DeviceId::new(Random(seed ^ (t.index() as u64) << 8).below(devices))
}

#[test]
fn random_graphs_give_the_same_bits_on_one_device_and_on_many() {
    for seed in 0..200 {
        let model = model(seed, 12 + (seed % 5) as usize * 8);
        let expected = reference(&model, 3);
        let world = random_world(seed);
        let loaded = Loaded::new(&world, &model, spread(&world, seed)).unwrap();
        let change = |o: &mut loadmaster_sched::exec::SessionOptions| {
            o.piece = Bytes(256);
            o.n_copies = NonZeroU32::new(1 + (seed % 3) as u32).unwrap();
            if seed % 4 == 0 {
                o.placer = Placer::Ggml;
            }
            if seed % 5 == 0 {
                o.outputs = Outputs::Fetched;
            }
        };
        let mut session = world.session(change).unwrap();
        let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
        let exec = session.executable(plan).unwrap();
        check(exec.schedule(), exec.waits()).unwrap();
        for (run, expected) in expected.iter().enumerate() {
            run_once(exec, &inputs(&model, run as u64)).unwrap();
            if let Some(why) = difference(&outputs(exec, &model).unwrap(), expected) {
                let alone = World::new(&Gpus::new(0));
                let loaded_alone = Loaded::new(&alone, &model, |_| alone.host()).unwrap();
                let mut fresh = alone.session(|_| ()).unwrap();
                let fresh_plan = fresh.prepare(&model.graph, loaded_alone.resident()).unwrap();
                let other = fresh.executable(fresh_plan).unwrap();
                let node = first_wrong(&model, exec, other, &inputs(&model, run as u64));
                panic!("seed {seed}, run {run}, {exec:?}: {why}; {node}");
            }
        }
    }
}

#[test]
fn devices_that_share_memory_copy_nothing_and_never_meet_in_it() {
    let mut waits = 0;
    for seed in 0..120 {
        let model = model(seed, 24);
        let expected = reference(&model, 4);
        let world = World::of_hosts(3);
        let loaded = Loaded::new(&world, &model, spread(&world, seed)).unwrap();
        let mut session = world.session(|o| o.n_copies = NonZeroU32::new(1 + (seed % 3) as u32).unwrap()).unwrap();
        let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
        let exec = session.executable(plan).unwrap();
        assert!(exec.schedule().steps().values().all(|s| !matches!(s.action, Action::Copy { .. })));
        waits += exec.waits().len();
        for (run, expected) in expected.iter().enumerate() {
            // One device starts late: the others must not run ahead of it where they read what it computes.
            let late = world.devices[run % 3].faults();
            write_all(exec, &inputs(&model, run as u64)).unwrap();
            late.stall();
            exec.run_async().unwrap();
            late.release();
            assert_eq!(difference(&outputs(exec, &model).unwrap(), expected), None, "seed {seed}, run {run}");
        }
    }
    assert!(waits > 300, "only {waits} waits");
}

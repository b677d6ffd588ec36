//! Paths between devices: tested at the start, with the reason for each choice, and taken.

use crate::random::{inputs, model};
use crate::results::{reference, spread};
use crate::world::{Gpus, Loaded, Opened, World, difference, outputs, run_once};
use loadmaster_backends::{Peers, Staging};
use loadmaster_graph::DeviceId;
use loadmaster_sched::exec::{CopyPath, Runtime};
use std::sync::Arc;

fn path(runtime: &Runtime, from: usize, to: usize) -> (CopyPath, String) {
    let (from, to) = (DeviceId::new(from), DeviceId::new(to));
    let report = runtime.path_report().iter().find(|r| r.from == from && r.to == to).unwrap();
    assert_eq!(report.path, runtime.paths().get(from, to));
    (report.path, report.to_string())
}

/// Runs a model and checks its results; copies between devices without the host, and through it, while it ran.
fn run(world: &World, runtime: &Arc<Runtime>) -> (u64, u64) {
    let model = model(7, 30);
    let loaded = Loaded::new(world, &model, spread(world, 3)).unwrap();
    let options = loadmaster_sched::exec::SessionOptions::new(runtime);
    let mut session = loadmaster_sched::exec::Session::new(Arc::clone(runtime), options);
    let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
    let exec = session.executable(plan).unwrap();
    let count = |d: &Opened| (d.stats().peer.copies, d.stats().to_host.copies);
    let sum = |list: Vec<(u64, u64)>| list.into_iter().fold((0, 0), |s, c| (s.0 + c.0, s.1 + c.1));
    let before = sum(world.devices.iter().map(count).collect());
    run_once(exec, &inputs(&model, 0)).unwrap();
    let after = sum(world.devices.iter().map(count).collect());
    assert_eq!(difference(&outputs(exec, &model).unwrap(), &reference(&model, 1)[0]), None);
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn devices_that_reach_each_other_copy_directly() {
    let world = World::new(&Gpus::new(2));
    let runtime = world.runtime().unwrap();
    let (taken, why) = path(&runtime, 0, 1);
    assert_eq!(taken, CopyPath::Direct);
    assert_eq!(why, "dev0 to dev1: direct (tested)");
    assert_eq!(runtime.path_report().len(), 2, "the host needs no path");
    let (peer, _) = run(&world, &runtime);
    assert!(peer > 0);
}

#[test]
fn a_direct_path_that_corrupts_is_found_at_the_start_and_not_taken() {
    let world = World::new(&Gpus::new(2));
    world.devices[0].faults().corrupt_peer_copies();
    let runtime = world.runtime().unwrap();
    let (taken, why) = path(&runtime, 0, 1);
    assert_eq!(taken, CopyPath::Pinned);
    assert!(why.contains("the direct path failed its test: byte 0 of "), "{why}");
    assert_eq!(path(&runtime, 1, 0).0, CopyPath::Direct, "the other direction works");
    let (_, through_host) = run(&world, &runtime);
    assert!(through_host > 0);
}

#[test]
fn devices_that_do_not_reach_each_other_stage_in_pinned_memory_or_else_in_pageable() {
    for (staging, expected) in [(Staging::Pinned, CopyPath::Pinned), (Staging::Pageable, CopyPath::Pageable)] {
        let mut gpus = Gpus::new(3);
        gpus.peers = Peers::None;
        gpus.staging = staging;
        let world = World::new(&gpus);
        let runtime = world.runtime().unwrap();
        let (taken, why) = path(&runtime, 2, 0);
        assert_eq!(taken, expected);
        assert!(why.contains("sim2 is not configured to reach sim0"), "{why}");
        let (peer, through_host) = run(&world, &runtime);
        assert!(peer == 0 && through_host > 0);
    }
}

#[test]
fn a_pinned_path_that_fails_gives_way_to_the_pageable_one() {
    let mut gpus = Gpus::new(2);
    gpus.peers = Peers::None;
    let world = World::new(&gpus);
    // The first allocations of a test are of the source, the target and the pinned memory of the source.
    world.devices[0].faults().allocations.arm(2);
    let runtime = world.runtime().unwrap();
    let (taken, why) = path(&runtime, 0, 1);
    assert_eq!(taken, CopyPath::Pageable);
    assert!(why.contains("the path through pinned memory failed its test"), "{why}");
}

#[test]
fn testing_leaves_nothing_behind() {
    let world = World::new(&Gpus::new(3));
    let runtime = world.runtime().unwrap();
    assert_eq!(world.live(), 0);
    assert!(runtime.path_report().iter().all(|r| r.bandwidth.is_some_and(|b| b > 0.0)));
}

//! Everything that can fail is failed in turn: an error, no leak, and the next run works.

use crate::random::{inputs, model};
use crate::results::{reference, spread};
use crate::world::{Gpus, Loaded, Model, Opened, World, difference, outputs, run_once};
use loadmaster_backends::{Faults, Peers, Trip};
use loadmaster_graph::Bytes;
use loadmaster_sched::exec::{ExecError, Outputs, Session};
use std::num::NonZeroU32;

fn world() -> World {
    let mut gpus = Gpus::new(2);
    gpus.peers = Peers::None;
    World::new(&gpus)
}

fn session(world: &World) -> Result<Session, ExecError> {
    world.session(|o| {
        o.n_copies = NonZeroU32::new(2).unwrap();
        o.outputs = Outputs::Fetched;
        o.piece = Bytes(512);
    })
}

/// Loads, binds and runs twice; what each output holds then.
fn everything(world: &World, model: &Model) -> Result<Vec<Vec<u8>>, String> {
    let loaded = Loaded::new(world, model, spread(world, 2))?;
    let mut session = session(world).map_err(|e| e.to_string())?;
    let plan = session.prepare(&model.graph, loaded.resident()).map_err(|e| e.to_string())?;
    let exec = session.executable(plan).ok_or("the plan was let go")?;
    for run in 0..2 {
        run_once(exec, &inputs(model, run)).map_err(|e| e.to_string())?;
    }
    outputs(exec, model).map_err(|e| e.to_string())
}

/// Fails the n-th time of something on each device in turn, for every n, from loading to reading. Returns how many failed.
fn fail_in_turn(trip: fn(&Faults) -> &Trip) -> u64 {
    let model = model(11, 16);
    let expected = &reference(&model, 2)[1];
    let world = world();
    let mut failed = 0;
    for device in &world.devices {
        for n in 1.. {
            trip(device.faults()).arm(n);
            let outcome = everything(&world, &model);
            let fired = !trip(device.faults()).is_armed();
            trip(device.faults()).arm(0);
            assert_eq!(world.live(), 0, "time {n} on {device:?} leaves buffers behind");
            if !fired {
                let found = outcome.unwrap();
                assert_eq!(difference(&found, expected), None);
                break;
            }
            // A failure while paths are tested only makes the path another.
            match outcome {
                Err(error) => assert!(!error.is_empty()),
                Ok(found) => assert_eq!(difference(&found, expected), None, "time {n} on {device:?}"),
            }
            failed += 1;
            if n > 3 && n % 5 == 0 {
                let again = everything(&world, &model).unwrap();
                assert_eq!(difference(&again, expected), None, "after time {n} on {device:?}");
            }
        }
    }
    failed
}

#[test]
fn every_refused_allocation_is_an_error_without_a_leak() {
    assert!(fail_in_turn(|f| &f.allocations) > 10);
}

#[test]
fn every_failed_copy_is_an_error_without_a_leak() {
    assert!(fail_in_turn(|f| &f.copies) > 60);
}

#[test]
fn every_failed_node_is_an_error_without_a_leak() {
    assert!(fail_in_turn(|f| &f.kernels) > 40);
}

#[test]
fn every_failed_compilation_stream_or_event_is_an_error_without_a_leak() {
    assert!(fail_in_turn(|f| &f.compiles) > 5);
    assert!(fail_in_turn(|f| &f.creations) > 10);
}

/// Runs with one executable through failures: the executable itself goes on.
#[test]
fn an_executable_goes_on_after_each_node_and_copy_that_failed_under_it() {
    let model = model(12, 16);
    let expected = reference(&model, 1);
    let world = world();
    let loaded = Loaded::new(&world, &model, spread(&world, 2)).unwrap();
    let mut session = session(&world).unwrap();
    let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
    let exec = session.executable(plan).unwrap();
    let live = world.live();
    let mut failures = 0;
    for device in &world.devices {
        for trip in [|f: &Faults| -> *const Trip { &f.kernels }, |f: &Faults| -> *const Trip { &f.copies }] {
            let is_kernel = std::ptr::eq(trip(device.faults()), &raw const device.faults().kernels);
            let trip = if is_kernel { &device.faults().kernels } else { &device.faults().copies };
            for n in 1.. {
                trip.arm(n);
                let outcome = run_once(exec, &inputs(&model, 0));
                let fired = !trip.is_armed();
                trip.arm(0);
                assert_eq!(outcome.is_err(), fired);
                let Err(error) = outcome else { break };
                check_error(&error, device, is_kernel);
                failures += 1;
                run_once(exec, &inputs(&model, 0)).unwrap();
                assert_eq!(difference(&outputs(exec, &model).unwrap(), &expected[0]), None);
            }
        }
    }
    assert!(failures > 20, "only {failures} failures");
    assert_eq!(world.live(), live);
}

/// The error names device, split and node (or what was moved).
fn check_error(error: &ExecError, device: &Opened, is_kernel: bool) {
    let ExecError::Device { at, error: root, .. } = error else { panic!("{error}") };
    assert_eq!(*root.device, *device.device().name());
    assert!(at.tensor.is_some(), "{error}");
    if is_kernel {
        assert!(at.split.is_some() && at.node.is_some(), "{error}");
        let text = error.to_string();
        assert!(text.contains(" in split") && text.contains("was told to fail"), "{text}");
    }
}

#[test]
fn a_device_that_dies_anywhere_in_a_run_ends_the_run_and_nothing_hangs() {
    let model = model(13, 16);
    for victim in 0..2 {
        for n in 1.. {
            let world = world();
            let loaded = Loaded::new(&world, &model, spread(&world, 2)).unwrap();
            let mut session = session(&world).unwrap();
            let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
            let exec = session.executable(plan).unwrap();
            world.devices[victim].faults().death.arm(n);
            let outcome = run_once(exec, &inputs(&model, 0));
            if world.devices[victim].faults().death.is_armed() {
                outcome.unwrap();
                assert!(n > 3);
                break;
            }
            for error in [outcome.unwrap_err(), run_once(exec, &inputs(&model, 0)).unwrap_err()] {
                let ExecError::Device { device, error, .. } = &error else { panic!("{error}") };
                assert!(device.index() == victim && error.is_lost(), "{error}");
            }
            drop((session, loaded));
            assert_eq!(world.live(), 0);
        }
    }
}

#[test]
fn a_device_that_dies_while_others_wait_for_it_frees_them() {
    let model = model(14, 20);
    let world = world();
    let loaded = Loaded::new(&world, &model, spread(&world, 2)).unwrap();
    let mut session = session(&world).unwrap();
    let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
    let exec = session.executable(plan).unwrap();
    if !exec.schedule().experts().is_empty() {
        return;
    }
    crate::world::write_all(exec, &inputs(&model, 0)).unwrap();
    world.devices[0].faults().stall();
    exec.run_async().unwrap();
    world.devices[0].faults().die();
    let error = exec.synchronize().unwrap_err();
    assert!(matches!(&error, ExecError::Device { error, .. } if error.is_lost()), "{error}");
}

//! Several plans over one arena; what callers may do wrong.

use crate::random::{inputs, model};
use crate::results::{random_world, reference, spread};
use crate::world::{Gpus, Loaded, World, difference, outputs, run_once, write_all};
use loadmaster_backends::DeviceStats;
use loadmaster_graph::TensorId;
use loadmaster_sched::exec::{ExecError, Runtime, Session, SessionOptions};
use std::sync::Arc;

/// What must not move while nothing new is planned.
fn taken(world: &World) -> Vec<(u64, u64, u64)> {
    let of = |s: DeviceStats| (s.allocations, s.live_buffers, s.compiled);
    world.devices.iter().map(|d| of(d.stats())).collect()
}

#[test]
fn steady_running_plans_nothing_compiles_nothing_and_allocates_nothing() {
    let (small, large) = (model(1, 10), model(2, 40));
    let expected = [reference(&small, 1), reference(&large, 1)];
    let world = World::new(&Gpus::new(2));
    let weights = [&small, &large].map(|m| Loaded::new(&world, m, spread(&world, 1)).unwrap());
    let mut session = world.session(|_| ()).unwrap();
    let mut before = None;
    for round in 0..10 {
        for (i, (model, loaded)) in [&large, &small].iter().zip([&weights[1], &weights[0]]).enumerate() {
            let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
            let exec = session.executable(plan).unwrap();
            run_once(exec, &inputs(model, 0)).unwrap();
            // Caches keep what earlier rounds stored, which is the same: the inputs are.
            assert_eq!(difference(&outputs(exec, model).unwrap(), &expected[1 - i][0]), None, "round {round}");
        }
        let now = (taken(&world), session.stats().planned, session.stats().bound);
        assert_eq!(*before.get_or_insert(now.clone()), now, "round {round}");
    }
    assert_eq!((session.stats().planned, session.stats().bound, session.stats().found), (2, 2, 18));
}

#[test]
fn an_arena_that_grows_rebinds_earlier_plans_and_gives_the_old_memory_back() {
    let (small, large) = (model(1, 6), model(2, 60));
    let expected = reference(&small, 1);
    let world = World::new(&Gpus::new(2));
    let weights = [&small, &large].map(|m| Loaded::new(&world, m, spread(&world, 1)).unwrap());
    let of_weights = world.live();
    let mut session = world.session(|_| ()).unwrap();
    let first = session.prepare(&small.graph, weights[0].resident()).unwrap();
    run_once(session.executable(first).unwrap(), &inputs(&small, 0)).unwrap();
    session.prepare(&large.graph, weights[1].resident()).unwrap();
    assert_eq!(session.stats().grown, 2);
    assert!(session.executable(first).is_none(), "the old arena is still held");
    let held: u64 = session.arena_bytes().values().filter(|b| b.get() > 0).count() as u64;
    assert!(world.live() <= of_weights + held + 2, "{} buffers are alive", world.live());
    let again = session.prepare(&small.graph, weights[0].resident()).unwrap();
    assert_eq!(session.stats().planned, 2, "the plan of the small graph was kept");
    let exec = session.executable(again).unwrap();
    run_once(exec, &inputs(&small, 0)).unwrap();
    assert_eq!(difference(&outputs(exec, &small).unwrap(), &expected[0]), None);
    drop(session);
    assert_eq!(world.live(), of_weights);
}

#[test]
fn two_sessions_on_one_runtime_take_turns_without_harm() {
    let models = [model(4, 20), model(5, 20)];
    let expected = [reference(&models[0], 6), reference(&models[1], 6)];
    let world = random_world(5);
    let runtime: Arc<Runtime> = world.runtime().unwrap();
    let loaded = [0, 1].map(|i| Loaded::new(&world, &models[i], spread(&world, 5)).unwrap());
    let mut sessions = [0, 1].map(|_| Session::new(Arc::clone(&runtime), SessionOptions::new(&runtime)));
    let plans = [0, 1].map(|i| sessions[i].prepare(&models[i].graph, loaded[i].resident()).unwrap());
    for run in 0..6 {
        for i in [0, 1] {
            let exec = sessions[i].executable(plans[i]).unwrap();
            write_all(exec, &inputs(&models[i], run)).unwrap();
            exec.run_async().unwrap();
        }
        for i in [1, 0] {
            let exec = sessions[i].executable(plans[i]).unwrap();
            let found = outputs(exec, &models[i]).unwrap();
            assert_eq!(difference(&found, &expected[i][run as usize]), None, "session {i}, run {run}");
        }
    }
}

#[test]
fn inputs_that_others_may_have_overwritten_must_be_written_again() {
    let model = model(4, 20);
    let world = World::new(&Gpus::new(1));
    let runtime = world.runtime().unwrap();
    let loaded = Loaded::new(&world, &model, spread(&world, 5)).unwrap();
    let mut sessions = [0, 1].map(|_| Session::new(Arc::clone(&runtime), SessionOptions::new(&runtime)));
    let plans = [0, 1].map(|i| sessions[i].prepare(&model.graph, loaded.resident()).unwrap());
    write_all(sessions[0].executable(plans[0]).unwrap(), &inputs(&model, 0)).unwrap();
    run_once(sessions[1].executable(plans[1]).unwrap(), &inputs(&model, 0)).unwrap();
    let error = sessions[0].executable(plans[0]).unwrap().run().unwrap_err();
    assert!(matches!(error, ExecError::InputMissing(_)), "{error}");
}

#[test]
fn wrong_use_is_refused_and_changes_nothing() {
    let model = model(6, 15);
    let world = World::new(&Gpus::new(1));
    let loaded = Loaded::new(&world, &model, spread(&world, 6)).unwrap();
    let mut session = world.session(|_| ()).unwrap();
    let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
    let exec = session.executable(plan).unwrap();
    let (&first, bytes) = inputs(&model, 0).iter().next().map(|(t, b)| (t, b.clone())).unwrap();
    let output = model.outputs[0];
    let inner = *model.graph.nodes().values().find(|t| !model.outputs.contains(t)).unwrap();

    assert!(matches!(exec.read(output, &mut []), Err(ExecError::NoResults)));
    assert!(matches!(exec.write(output, &[]), Err(ExecError::NotAnInput(_))));
    assert!(matches!(exec.write(TensorId::new(1 << 20), &[]), Err(ExecError::NotAnInput(_))));
    assert!(matches!(exec.write(first, &bytes[1..]), Err(ExecError::Length { .. })));
    assert!(matches!(exec.run(), Err(ExecError::InputMissing(_))));
    exec.write(first, &bytes).unwrap();
    let error = exec.run().unwrap_err();
    assert!(matches!(&error, ExecError::InputMissing(t) if t.tensor != first), "{error}");
    run_once(exec, &inputs(&model, 0)).unwrap();
    assert!(matches!(exec.run(), Err(ExecError::InputMissing(_))), "inputs are for one run");
    assert!(matches!(exec.read(output, &mut [0]), Err(ExecError::Length { .. })));
    assert!(matches!(exec.read(inner, &mut []), Err(ExecError::NotKept(_) | ExecError::Length { .. })));
    let last = exec.next_run();
    assert!(matches!(exec.read_fetched(last, output, &mut []), Err(ExecError::Overwritten { .. })));
}

#[test]
fn a_runtime_needs_the_devices_of_its_machine() {
    let world = World::new(&Gpus::new(2));
    let error = Runtime::new(world.machine.clone(), vec![world.devices[0].device()]).unwrap_err();
    assert_eq!(error, ExecError::DeviceCount { found: 1, expected: 3 });
}

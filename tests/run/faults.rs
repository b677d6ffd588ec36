//! Everything that can fail is made to fail, in turn: an error, nothing left taken, and the next run works.

use super::support::{forced_tokens, machine, prompt_tokens, steps, threads, tiny};
use loadmaster::engine::{Engine, EngineError, Model, Reserve, Settings, prepare};
use loadmaster::placement::GpuLayers;
use loadmaster_backends::{CpuDevice, Device, Faults, SimDevice, Trip};
use loadmaster_sched::Machine;
use std::sync::Arc;

struct World {
    model: Arc<Model>,
    machine: Machine,
    devices: Vec<Arc<dyn Device>>,
}

impl World {
    fn new(name: &str, specs: &[&str]) -> Self {
        let machine = machine(specs);
        let devices = loadmaster_sched::exec::open(&machine, threads()).expect("devices open");
        Self { model: tiny(name), machine, devices }
    }

    fn faults(&self, device: usize) -> &Faults {
        let device = self.devices[device].as_any();
        let of_sim = device.downcast_ref::<SimDevice>().map(SimDevice::faults);
        of_sim.or_else(|| device.downcast_ref::<CpuDevice>().map(CpuDevice::faults)).expect("a device with faults")
    }

    fn settings(&self) -> Settings {
        Settings { context: 256, micro_batch: 16, gpu_layers: GpuLayers::All, ..Settings::new(&self.model.params) }
    }

    fn load(&self) -> Result<Engine, EngineError> {
        let settings = self.settings();
        let prepared = prepare(&self.model, &self.machine, &settings)?;
        let devices = self.devices.clone();
        let model = Arc::clone(&self.model);
        Engine::load(model, &self.machine, devices, settings, prepared, Reserve::Largest, &mut |_, _| {})
    }

    fn run(&self) -> Result<Vec<Vec<f32>>, EngineError> {
        steps(&mut self.load()?, &prompt_tokens(), &forced_tokens()[..2])
    }

    fn live(&self) -> u64 {
        self.devices.iter().map(|d| d.stats().live_buffers).sum()
    }
}

/// Lets the first, second, … of a kind fail, until a run meets no more of them. Returns how many failed a run.
fn fail_in_turn(world: &World, device: usize, kind: fn(&Faults) -> &Trip, what: &str) -> usize {
    let expected = world.run().expect("it runs");
    let mut failed = 0;
    for n in 1..2000 {
        kind(world.faults(device)).arm(n);
        let outcome = world.run();
        let reached = !kind(world.faults(device)).is_armed();
        kind(world.faults(device)).arm(0);
        match outcome {
            Err(error) => {
                assert!(!error.is_bad_input(), "{what} {n}: {error}");
                assert!(
                    error.to_string().contains(world.devices[device].name()),
                    "{what} {n}: names no device: {error}"
                );
                failed += 1;
            }
            // A path that fails its self-test is not taken: the run may well succeed, and then it is right.
            Ok(found) => assert_eq!(found, expected, "{what} {n}"),
        }
        assert_eq!(world.live(), 0, "{what} {n} leaves something taken");
        if !reached {
            break;
        }
        if n % 16 == 1 {
            assert_eq!(world.run().expect("the next run works"), expected, "after {what} {n}");
        }
    }
    assert_eq!(world.run().expect("the next run works"), expected);
    assert_eq!(world.live(), 0);
    failed
}

#[test]
fn every_refused_allocation_is_an_error_and_leaves_nothing_taken() {
    let world = World::new("tiny-llama-Q4_0.gguf", &["sim:64MiB", "sim:64MiB"]);
    for device in 0..3 {
        let failed = fail_in_turn(&world, device, |f| &f.allocations, "allocation");
        assert!(failed >= 1, "device {device}: {failed}");
    }
}

#[test]
fn every_failed_copy_is_an_error_and_leaves_nothing_taken() {
    let world = World::new("tiny-llama-Q4_0.gguf", &["sim:64MiB", "sim:64MiB"]);
    for device in 0..2 {
        let failed = fail_in_turn(&world, device, |f| &f.copies, "copy");
        assert!(failed >= 5, "device {device}: {failed}");
    }
}

#[test]
fn streams_events_and_programs_that_cannot_be_made_are_errors() {
    let world = World::new("tiny-qwen2-Q4_0.gguf", &["sim:64MiB"]);
    for device in 0..2 {
        assert!(fail_in_turn(&world, device, |f| &f.creations, "creation") >= 2);
        assert!(fail_in_turn(&world, device, |f| &f.compiles, "compile") >= 2);
    }
}

#[test]
fn after_a_failed_step_the_same_engine_goes_on_as_if_nothing_had_been() {
    let world = World::new("tiny-llama-F16.gguf", &["sim:64MiB", "sim:64MiB"]);
    let expected = world.run().expect("it runs");
    let mut engine = world.load().expect("it loads");
    for device in 0..2 {
        for n in [1, 2] {
            world.faults(device).kernels.arm(n);
            let outcome = steps(&mut engine, &prompt_tokens(), &[]);
            let error = outcome.err().unwrap_or_else(|| panic!("kernel {n} of device {device} does not fail"));
            assert!(error.to_string().contains("was told to fail"), "{error}");
            world.faults(device).kernels.arm(0);
        }
    }
    assert_eq!(steps(&mut engine, &prompt_tokens(), &forced_tokens()[..2]).expect("it runs"), expected);
}

#[test]
fn a_device_that_dies_fails_the_run_and_keeps_nothing() {
    let world = World::new("tiny-llama-F16.gguf", &["sim:64MiB", "sim:64MiB"]);
    let mut engine = world.load().expect("it loads");
    world.faults(1).death.arm(5);
    let error = steps(&mut engine, &prompt_tokens(), &forced_tokens()).expect_err("a device dies");
    assert!(error.to_string().contains("lost"), "{error}");
    drop(engine);
    assert_eq!(world.live(), 0);
}

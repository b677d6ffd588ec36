//! CUDA devices under the executor: on simulated GPUs, or with the feature `gpu-tests` on those of this machine.

use crate::random::{inputs, model};
use crate::results::reference;
use crate::world::{Loaded, Model, Opened, Random, World, kernels, outputs, run_once, write_all};
use loadmaster_backends::cuda::simulator::Simulator;
use loadmaster_backends::cuda::{CudaDevice, CudaOptions};
use loadmaster_backends::{CpuDevice, CpuOptions, DeviceError};
use loadmaster_graph::{Bytes, DeviceId, TensorId};
use loadmaster_sched::exec::{Action, CopyPath, Executable, Outputs, Queue, Session};
use loadmaster_sched::machine::build::MemorySpec;
use loadmaster_sched::{Driver, Machine, MachineParts};
use std::cell::Cell;
use std::num::NonZeroU32;
use std::sync::Arc;

/// A simulated machine; none, with the reason printed, where there is no simulator or real GPUs are tested.
pub(crate) fn simulated(config: &str) -> Option<Simulator> {
    if cfg!(feature = "gpu-tests") {
        println!("skipped: this run is for real GPUs");
        return None;
    }
    Simulator::open_with_kernels(config).map_err(|why| println!("skipped: {why}")).ok()
}

/// GPUs by their numbers, which may repeat, and the host.
fn world(ordinals: &[u32]) -> Result<World, DeviceError> {
    let mut parts = MachineParts::default();
    let mut devices = Vec::new();
    for (i, &ordinal) in ordinals.iter().enumerate() {
        let options = CudaOptions { limit: Some(Bytes::mib(64)), ..CudaOptions::new(format!("gpu{i}"), ordinal) };
        let memory = MemorySpec { capacity: options.limit, ..MemorySpec::device() };
        parts.push_gpu(options.name.clone(), Driver::Cuda { ordinal }, memory);
        devices.push(Opened::Cuda(Arc::new(CudaDevice::open(options)?)));
    }
    parts.push_host("cpu", MemorySpec::host());
    devices.push(Opened::Cpu(Arc::new(CpuDevice::new(CpuOptions::default(), kernels()).unwrap())));
    Ok(World { machine: Machine::new(parts).unwrap(), devices })
}

/// Weights on GPUs only: what the host computes it computes with other roundings.
fn on_gpus(world: &World, seed: u64) -> impl Fn(TensorId) -> DeviceId {
    let gpus = world.devices.len() - 1;
    move |t| DeviceId::new(Random(seed ^ (t.index() as u64) << 8).below(gpus))
}

fn session(world: &World, copies: u32) -> Result<Session, String> {
    let made = world.session(|o| {
        o.n_copies = NonZeroU32::new(copies).unwrap();
        o.outputs = if copies > 1 { Outputs::Fetched } else { Outputs::InPlace };
        o.piece = Bytes(256);
    });
    made.map_err(|e| e.to_string())
}

/// Loads, binds, lets `change` change what was bound, and lets runs overlap as they may; the outputs of the last run.
pub(crate) fn everything(
    ordinals: &[u32],
    model: &Model,
    seed: u64,
    runs: u64,
    change: impl Fn(&mut Executable),
) -> Result<Vec<Vec<u8>>, String> {
    let world = world(ordinals).map_err(|e| e.to_string())?;
    let loaded = Loaded::new(&world, model, on_gpus(&world, seed))?;
    let mut session = session(&world, 1 + (seed % 3) as u32)?;
    let plan = session.prepare(&model.graph, loaded.resident()).map_err(|e| e.to_string())?;
    let exec = session.executable(plan).ok_or("the plan was let go")?;
    change(exec);
    for run in 0..runs {
        write_all(exec, &inputs(model, run)).and_then(|()| exec.run_async()).map_err(|e| e.to_string())?;
    }
    outputs(exec, model).map_err(|e| e.to_string())
}

fn floats(bytes: &[u8]) -> Vec<f64> {
    bytes.chunks_exact(4).map(|b| f64::from(f32::from_le_bytes(b.try_into().unwrap()))).collect()
}

/// Relative squared error of all outputs together.
pub(crate) fn distance(found: &[Vec<u8>], expected: &[Vec<u8>]) -> f64 {
    let pairs = found.iter().zip(expected).flat_map(|(f, e)| floats(f).into_iter().zip(floats(e)));
    let (error, norm) = pairs.fold((0.0, 0.0), |(error, norm), (f, e)| (error + (f - e).powi(2), norm + e * e));
    if norm == 0.0 { error } else { error / norm }
}

#[test]
fn random_graphs_on_simulated_gpus_agree_with_the_host_and_race_nowhere() {
    for seed in 0..24 {
        let count = [1, 2, 4][seed as usize % 3];
        let peer = if seed % 2 == 0 { "all" } else { "none" };
        let Some(simulator) = simulated(&format!("devices={count},seed={seed},peer={peer}")) else { return };
        let ordinals: Vec<u32> = (0..count).collect();
        let model = model(seed, 16);
        let expected = &reference(&model, 3)[2];
        let found = everything(&ordinals, &model, seed, 3, |_| ()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let distance = distance(&found, expected);
        assert!(distance < 1e-2, "seed {seed}: relative squared error {distance:e}");
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "seed {seed}");
    }
}

#[test]
fn a_thousand_orders_of_execution_give_the_same_bits() {
    let model = model(3, 8);
    let mut expected: [Option<Vec<Vec<u8>>>; 3] = [None, None, None];
    for seed in 0..1000u64 {
        let which = seed as usize % 3;
        let count = [1, 2, 4][which];
        let Some(simulator) = simulated(&format!("devices={count},memory=512KiB,seed={seed}")) else { return };
        let ordinals: Vec<u32> = (0..count).collect();
        let found = everything(&ordinals, &model, 1, 2, |_| ()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        assert!(*expected[which].get_or_insert_with(|| found.clone()) == found, "seed {seed} gives other bits");
        assert_eq!(simulator.report(), "", "seed {seed}");
    }
}

/// Waits of a bound plan, by whether they are between streams of GPUs. The only others are the caller's, who writes an
/// input again after it was copied: the driver has taken the bytes of pageable memory when its call returns.
fn waits_between_gpus(exec: &Executable) -> Vec<bool> {
    let schedule = exec.schedule();
    let on_gpu = |step| {
        let queue: Queue = schedule.queues()[schedule.steps()[step].queue];
        queue.device().is_some_and(|d| d.index() + 1 < exec.runtime().devices().len())
    };
    let of_caller = |step, on| {
        let actions = [step, on].map(|step| schedule.steps()[step].action);
        matches!(actions, [Action::Write { .. }, Action::Copy { .. }])
    };
    let is_between = |(step, on)| {
        let is_between = on_gpu(step) && on_gpu(on);
        assert!(is_between || host_waits(exec) || of_caller(step, on), "an unexpected wait of {step} for {on}");
        is_between
    };
    exec.waits().iter().map(|(step, wait)| is_between((step, wait.on))).collect()
}

/// Whether a step makes the host wait for a GPU: then what follows is ordered behind it without any event.
fn host_waits(exec: &Executable) -> bool {
    let host = exec.runtime().devices().len() - 1;
    let of_gpu = |queue: Queue| queue.device().is_some_and(|d| d.index() != host);
    let schedule = exec.schedule();
    let computes_on_host = schedule
        .steps()
        .iter()
        .any(|(_, step)| matches!(step.action, Action::Compute { .. }) && !of_gpu(schedule.queues()[step.queue]));
    computes_on_host || !schedule.experts().is_empty()
}

#[test]
fn each_wait_between_gpus_that_is_left_out_is_reported_as_a_race() {
    let (mut removed, mut of_callers, mut models) = (0, 0, 0);
    for seed in 0..12 {
        let mut model = model(seed, 14);
        // Nothing on the host: the driver itself waits for copies to pageable memory.
        model.pinned.retain(|_, device| *device % 3 != 2);
        let Some(simulator) = simulated(&format!("devices=2,seed={seed}")) else { return };
        let expected = everything(&[0, 1], &model, seed, 4, |_| ()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        drop(simulator);
        let mut count = 1;
        let mut n = 0;
        while n <= count {
            let Some(simulator) = simulated(&format!("devices=2,seed={seed}")) else { return };
            let (waits, host) = (Cell::new(Vec::new()), Cell::new(false));
            let outcome = everything(&[0, 1], &model, seed, 4, |exec| {
                host.set(host_waits(exec));
                let between = waits_between_gpus(exec);
                if n < between.len() {
                    exec.remove_wait(n);
                }
                waits.set(between);
            });
            let (waits, report) = (waits.take(), simulator.report());
            if host.get() {
                break;
            }
            count = waits.len();
            match waits.get(n) {
                Some(true) => {
                    assert!(report.contains("race"), "seed {seed}: wait {n} of {count} was left out, not reported");
                    removed += 1;
                }
                other => {
                    let found = outcome.unwrap_or_else(|e| panic!("seed {seed}: {e}"));
                    assert!(found == expected && report.is_empty(), "seed {seed}: wait {n} of {count}: {report}");
                    of_callers += usize::from(other.is_some());
                    models += usize::from(other.is_none());
                }
            }
            n += 1;
        }
    }
    println!("{removed} waits between GPUs and {of_callers} of callers, of {models} models");
    assert!(removed > 20, "only {removed} waits were left out");
}

#[test]
fn a_peer_path_that_corrupts_is_found_and_the_staged_path_is_taken() {
    for (config, path, why) in [
        ("devices=2", CopyPath::Direct, "tested"),
        ("devices=2,corrupt-peer=0-1", CopyPath::Pinned, "the direct path failed its test: byte"),
        ("devices=2,peer=none", CopyPath::Pinned, "no direct path: the driver knows no way from GPU"),
        ("devices=2,peer=0>1", CopyPath::Pinned, "no direct path: the driver knows no way from GPU 1 to GPU 0"),
    ] {
        let Some(simulator) = simulated(config) else { return };
        {
            let world = world(&[0, 1]).unwrap();
            let runtime = world.runtime().unwrap();
            for report in runtime.path_report() {
                assert_eq!(report.path, path, "{config}: {report}");
                assert!(report.why.contains(why), "{config}: {report}");
                assert!(report.bandwidth.is_some(), "{config}: {report}");
            }
            assert_eq!(runtime.path_report().len(), 2);
        }
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "{config}");
    }
}

#[test]
fn one_gpu_may_be_two_devices_that_copy_to_each_other() {
    let model = model(9, 20);
    let Some(simulator) = simulated("devices=1,seed=4") else { return };
    let both = everything(&[0, 0], &model, 2, 3, |_| ()).unwrap();
    let distance = distance(&both, &reference(&model, 3)[2]);
    assert!(distance < 1e-2, "relative squared error {distance:e}");
    assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
}

#[test]
fn every_driver_call_that_fails_is_an_error_without_a_leak() {
    let model = model(4, 5);
    let Some(simulator) = simulated("devices=2") else { return };
    let expected = everything(&[0, 1], &model, 1, 2, |_| ()).unwrap();
    let calls: u64 = simulator.calls().iter().map(|(_, n)| n).sum();
    drop(simulator);
    println!("{calls} driver calls");
    let mut errors = 0;
    // The first call starts the driver, which the process does once.
    for n in 2..=calls {
        let Some(simulator) = simulated(&format!("devices=2,fail=any:{n}")) else { return };
        match everything(&[0, 1], &model, 1, 2, |_| ()) {
            Err(error) => {
                assert!(!error.is_empty());
                errors += 1;
            }
            // A failure while paths are tested makes the path another, one that gives back is only logged.
            Ok(found) => assert!(distance(&found, &expected) < 1e-9, "call {n}"),
        }
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "call {n}");
    }
    assert!(errors > 100, "only {errors} errors of {calls} calls");
}

#[test]
fn a_gpu_that_is_lost_says_so_for_ever_and_hangs_nobody() {
    let model = model(6, 12);
    let Some(simulator) = simulated("devices=2,fail=cuLaunchKernel:9:719:late") else { return };
    let world = world(&[0, 1]).unwrap();
    let loaded = Loaded::new(&world, &model, on_gpus(&world, 1)).unwrap();
    let mut session = session(&world, 1).unwrap();
    let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
    let exec = session.executable(plan).unwrap();
    let first = run_once(exec, &inputs(&model, 0)).unwrap_err().to_string();
    assert!(first.contains("is lost: the driver says 719"), "{first}");
    let again = run_once(exec, &inputs(&model, 0)).unwrap_err().to_string();
    assert!(again.contains("is lost: the driver says 719"), "{again}");
    let lost = world.devices[..2].iter().filter(|d| d.device().health().is_err()).count();
    assert_eq!(lost, 1, "the other GPU lives on");
    drop((session, loaded, world));
    assert!(!simulator.report().contains("race"), "{}", simulator.report());
    assert_eq!(simulator.live(), "");
}

#[test]
fn memory_that_the_driver_refuses_is_out_of_memory_and_everything_is_given_back() {
    let model = model(8, 12);
    let mut refused = 0;
    for kib in [1, 2, 4, 8, 12, 16, 24, 32, 48, 1024] {
        let Some(simulator) = simulated(&format!("devices=2,memory={kib}KiB")) else { return };
        match everything(&[0, 1], &model, 1, 1, |_| ()) {
            Err(error) => {
                let words = ["out of memory", "are available"];
                assert!(words.iter().any(|w| error.to_lowercase().contains(w)), "{kib} KiB: {error}");
                refused += 1;
            }
            Ok(_) => assert!(kib > 2),
        }
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "{kib} KiB");
    }
    assert!((2..10).contains(&refused), "{refused}");
}

#[test]
fn graphs_on_the_gpus_of_this_machine_agree_with_the_host() {
    if !cfg!(feature = "gpu-tests") {
        return println!("skipped: the feature gpu-tests is off");
    }
    let gpus = match loadmaster_backends::cuda::probe() {
        Ok(gpus) => gpus,
        Err(why) => return println!("skipped: {why}"),
    };
    let first = gpus.first().map(|gpu| gpu.ordinal);
    let Some(first) = first else { return println!("skipped: the driver has no GPU") };
    let all: Vec<u32> = gpus.iter().map(|gpu| gpu.ordinal).collect();
    for seed in 0..24 {
        let model = model(seed, 16);
        let expected = &reference(&model, 3)[2];
        for ordinals in [&[first][..], &[first, first], &all] {
            let found = everything(ordinals, &model, seed, 3, |_| ()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            let distance = distance(&found, expected);
            assert!(distance < 1e-2, "seed {seed} on {ordinals:?}: relative squared error {distance:e}");
        }
    }
}

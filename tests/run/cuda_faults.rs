//! A whole model on simulated GPUs whose driver fails at every call in turn: once, or from then on.
//!
//! A process has one driver, so that each test shares its calls out among children of its own program.

use super::cuda::simulated;
use super::random_models::{Family, Random, Shape};
use super::support::{feed, ids, open};
use loadmaster::engine::{Engine, EngineError, Model};
use loadmaster_graph::DType;
use loadmaster_models::families::Attention;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Tells a child which part of the calls it has.
const PART: &str = "LOADMASTER_TEST_PART";
const PARTS: u64 = 2;

const BOTH: &[&str] = &["cuda:0:64MiB", "cuda:1:64MiB"];

/// A layer for each GPU: a run with few calls.
fn small() -> Arc<Model> {
    let shape = Shape {
        family: Family::Llama,
        layers: 2,
        heads: 1,
        kv_heads: 1,
        head: 16,
        embedding: 32,
        feed_forward: 32,
        vocab: 16,
        experts: 0,
        used: 0,
        weights: DType::F16,
        tied: true,
    };
    shape.model(&mut Random::new(5))
}

fn load(model: &Arc<Model>, specs: &[&str]) -> Result<Engine, EngineError> {
    open(model, specs, |s| (s.context, s.micro_batch, s.attention) = (32, 4, Attention::Flash))
}

/// Loads a model, feeds it tokens, and lets go of it. The logits of each step.
fn load_and_run(model: &Arc<Model>, specs: &[&str]) -> Result<Vec<Vec<f32>>, EngineError> {
    let mut engine = load(model, specs)?;
    // What the third token runs is noted as a graph of the driver.
    [1, 5, 9].into_iter().map(|token| feed(&mut engine, &ids(&[token]))).collect()
}

/// An error of a run says on which device, and what the device was asked to do.
fn check_words(error: &EngineError, place: &str) {
    const CALLS: [&str; 12] = [
        "refused",
        "create",
        "compile",
        "execute",
        "copy",
        "upload",
        "download",
        "record",
        "wait",
        "host call",
        "synchronize",
        "cannot be opened",
    ];
    let text = error.to_string();
    assert!(text.contains("CUDA0") || text.contains("CUDA1"), "{place} names no device: {text}");
    assert!(CALLS.iter().any(|call| text.contains(call)), "{place} names no call: {text}");
    assert!(!error.is_bad_input(), "{place} blames the request: {text}");
}

/// The test `name` in children with a part of the calls each; the part of a child.
fn in_parts(name: &str) -> Option<u64> {
    if let Ok(part) = std::env::var(PART) {
        return Some(part.parse().unwrap());
    }
    simulated("")?;
    let program = std::env::current_exe().unwrap();
    let child = |part: u64| {
        let mut command = Command::new(&program);
        command.args(["--exact", &format!("cuda_faults::{name}"), "--nocapture"]).env(PART, part.to_string());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let children: Vec<_> = (0..PARTS).map(child).collect();
    for child in children {
        let output = child.wait_with_output().unwrap();
        let [out, err] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
        assert!(output.status.success() && out.contains("errors of"), "{out}\n{err}");
    }
    None
}

/// Fails each call of a part as `how` says, and has `after` look at what is left.
fn fail_in_turn(part: u64, how: &str, after: impl Fn(&Arc<Model>, u64, &[Vec<f32>])) {
    let model = small();
    let simulator = simulated("devices=2").unwrap();
    let expected = load_and_run(&model, BOTH).unwrap();
    let calls: u64 = simulator.calls().iter().map(|(_, n)| n).sum();
    assert!(simulator.calls().iter().any(|(name, _)| name == "cuGraphLaunch"), "no graph was noted");
    drop(simulator);
    let (mut errors, mut failed) = (0, 0);
    // The first call starts the driver, which the process does once.
    for n in (2..=calls).filter(|n| n % PARTS == part) {
        let place = format!("call {n} of {calls}");
        let simulator = simulated(&format!("devices=2,fail=any:{n}{how}")).unwrap();
        match load_and_run(&model, BOTH) {
            Err(error) => {
                check_words(&error, &place);
                errors += 1;
            }
            // A failure while paths are tested makes the path another, one that gives back is only logged.
            Ok(found) => assert_eq!(found, expected, "{place}"),
        }
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "{place}");
        after(&model, n, &expected);
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "after {place}");
        failed += 1;
    }
    println!("{errors} errors of {failed} calls");
    assert!(errors * 2 > failed, "only {errors} errors of {failed} calls");
}

#[test]
fn every_driver_call_of_a_whole_model_that_fails_is_an_error_without_a_leak_and_the_next_load_works() {
    let name = "every_driver_call_of_a_whole_model_that_fails_is_an_error_without_a_leak_and_the_next_load_works";
    let Some(part) = in_parts(name) else { return };
    fail_in_turn(part, "", |model, n, expected| {
        if (n / PARTS).is_multiple_of(16) {
            assert_eq!(load_and_run(model, BOTH).unwrap(), expected, "after call {n}");
        } else {
            load(model, BOTH).unwrap_or_else(|e| panic!("the next load after call {n}: {e}"));
        }
    });
}

#[test]
fn every_driver_call_of_a_whole_model_that_kills_its_gpu_is_an_error_and_another_gpu_loads_and_runs() {
    let name = "every_driver_call_of_a_whole_model_that_kills_its_gpu_is_an_error_and_another_gpu_loads_and_runs";
    let Some(part) = in_parts(name) else { return };
    fail_in_turn(part, ":719:sticky", |model, n, expected| {
        let words = |error: EngineError| check_words(&error, &format!("call {n}"));
        if (n / PARTS).is_multiple_of(16) {
            let alone = BOTH.iter().map(|spec| load_and_run(model, &[spec]).map_err(words));
            let alive: Vec<_> = alone.filter_map(Result::ok).collect();
            assert!(!alive.is_empty() && alive.iter().all(|found| found == expected), "after call {n}");
        } else if (n / PARTS).is_multiple_of(4) {
            let alive = BOTH.iter().filter(|spec| load(model, &[spec]).map_err(words).is_ok()).count();
            assert!(alive > 0, "no GPU loads anything after call {n}");
        }
    });
}

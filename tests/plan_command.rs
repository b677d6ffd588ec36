//! Plans of models: equal to what a run takes, exact about what is missing, saved and refused.

#![allow(clippy::unwrap_used, clippy::panic)]

use assert_cmd::Command;
use loadmaster::commands::input::PolicyArg;
use loadmaster::engine::Model;
use loadmaster::plan::Choices;
use loadmaster::plan::advice::{Placing, relaxations};
use loadmaster::plan::fit::costs::Costs;
use loadmaster::plan::fit::speeds::{ASSUMED_GPU, ASSUMED_HOST, Speed};
use loadmaster::plan::fit::{FitError, Purpose, Request};
use loadmaster::plan::longest::{CONTEXT_BLOCK, longest_context};
use loadmaster::plan::saved::{SavedError, SavedPlan};
use loadmaster_graph::{Bytes, DeviceId};
use loadmaster_sched::Machine;
use serde_json::Value;
use std::path::Path;

fn model() -> Model {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/models/headers/llama3-8b.gguf");
    Model::open(&path).unwrap()
}

fn machine(bytes: &[Bytes]) -> Machine {
    let specs: Vec<_> = bytes.iter().map(|b| format!("sim:{}", b.get()).parse().unwrap()).collect();
    Machine::from_specs(&specs).unwrap()
}

fn choices() -> Choices {
    Choices { n_gpu_layers: Some(33), tensor_split: Some(vec![16.0, 17.0]), ..Choices::of_context(4096) }
}

const SPEEDS: [Speed; 3] = [ASSUMED_GPU, ASSUMED_GPU, ASSUMED_HOST];

/// Runs `check` with a request for two GPUs of these sizes.
fn with_request<T>(sizes: [Bytes; 2], check: impl FnOnce(&Request<'_>) -> T) -> T {
    let (model, machine, placer) = (model(), machine(&sizes), PolicyArg::Best.placer());
    let (model, machine, placer) = (&model, &machine, &placer);
    check(&Request { model, machine, speeds: &SPEEDS, placer, reserve: Bytes::ZERO })
}

/// What the two GPUs need, as chosen.
fn needs() -> [Bytes; 2] {
    with_request([Bytes::gib(24); 2], |request| {
        let prepared = request.prepare(&choices()).unwrap();
        [0, 1].map(|i| prepared.devices[DeviceId::new(i)].total())
    })
}

fn json(arguments: &[&str]) -> Value {
    let output = Command::cargo_bin("loadmaster").unwrap().args(arguments).output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&output.stderr)))
}

#[test]
fn a_plan_is_what_a_run_takes() {
    let devices = ["--device", "sim:64MiB", "--device", "sim:64MiB", "--tensor-split", "3,4"];
    let planned = json(&[&["plan", "--format", "json"][..], &devices].concat());
    let run = json(&[&["run", "--tokens", "1,2,3", "-n", "1", "--json"][..], &devices].concat());
    let (planned_devices, taken) = (planned["devices"].as_array().unwrap(), run["devices"].as_array().unwrap());
    assert_eq!(planned_devices.len(), 3);
    for (a, b) in planned_devices.iter().zip(taken) {
        for key in ["name", "weights", "kv", "compute"] {
            assert_eq!(a[key], b[key], "{key} of {a}");
        }
        assert_eq!(a["compute_bound"], b["bound"]);
    }
    assert_eq!(planned["splits"], run["splits"]);
    assert_eq!(planned["layers"].as_array().unwrap().len(), 7);
    assert!(planned["fits"].as_bool().unwrap());
}

#[test]
fn one_mebibyte_missing_on_one_device_is_told_to_the_byte_with_changes_that_help() {
    let [first, second] = needs();
    let sizes = [first, second.saturating_sub(Bytes::mib(1))];
    with_request(sizes, |request| {
        let prepared = request.prepare(&choices()).unwrap();
        let plan = SavedPlan::new(request.model, request.machine, &choices(), &prepared, Bytes::ZERO);
        let short: Vec<u64> = plan.pools.iter().map(|p| p.short).collect();
        assert_eq!(short, [0, 1 << 20, 0]);
        assert_eq!((plan.fits, plan.devices[0].free, plan.devices[1].free), (false, Some(0), Some(-(1 << 20))));
        let found = relaxations(request, &choices(), Placing::Asked).unwrap();
        assert!(found.len() >= 3, "{found:?}");
        for relaxation in &found {
            let prepared = request.prepare(&relaxation.choices).unwrap();
            assert_eq!(request.short(&prepared), Bytes::ZERO, "{}", relaxation.what);
            assert!(relaxation.predicted.decode > 0.0);
        }
    });
}

#[test]
fn the_longest_context_fits_and_one_block_more_does_not() {
    let sizes = needs().map(|b| b.saturating_sub(Bytes::mib(100)));
    with_request(sizes, |request| {
        let prepared = request.prepare(&choices()).unwrap();
        let longest = longest_context(request, &choices(), &prepared).expect("a short context fits");
        let short = |ctx| request.short(&request.prepare(&Choices { ctx, ..choices() }).unwrap());
        assert!((CONTEXT_BLOCK..4096).contains(&longest), "{longest}");
        assert_eq!(short(longest), Bytes::ZERO);
        assert!(short(longest + CONTEXT_BLOCK) > Bytes::ZERO);
    });
}

#[test]
fn a_chosen_placement_fits_where_shares_of_memory_do_not() {
    let sizes = [Bytes::mib(1600), Bytes::mib(4200)];
    with_request(sizes, |request| {
        for purpose in [Purpose::Decode, Purpose::Prefill, Purpose::Memory] {
            let fitted = request.fit(&choices(), purpose).unwrap();
            assert_eq!(request.short(&fitted.prepared), Bytes::ZERO, "{purpose:?}");
            assert!(fitted.gap.is_some_and(|g| (0.0..1.0).contains(&g)), "{purpose:?}: {:?}", fitted.gap);
        }
    });
}

#[test]
fn a_host_too_small_for_the_embedding_gives_no_placement() {
    let specs = ["sim:1MiB", "cpu:1MiB"].map(|s| s.parse().unwrap());
    let (model, machine, placer) = (model(), Machine::from_specs(&specs).unwrap(), PolicyArg::Best.placer());
    let request = Request { model: &model, machine: &machine, speeds: &SPEEDS, placer: &placer, reserve: Bytes::ZERO };
    let error = request.fit(&choices(), Purpose::Decode).unwrap_err();
    assert!(matches!(error, FitError::NoneFits { devices: 2 }), "{error}");
}

#[test]
fn prompts_are_predicted_with_the_weights_of_host_layers_uploaded() {
    with_request([Bytes::gib(24); 2], |request| {
        let prefill = |layers| {
            let choices = Choices { n_gpu_layers: Some(layers), ..choices() };
            let prepared = request.prepare(&choices).unwrap();
            Costs::new(request, &choices).unwrap().predict(request, &choices, &prepared).prefill
        };
        // Three layers more on the host cost their upload, 400 MB for each micro-batch, and not a host's arithmetic.
        let (all, fewer) = (prefill(33), prefill(30));
        assert!(fewer < all && fewer > all / 2.0, "{fewer} and {all}");
    });
}

#[test]
fn a_saved_plan_comes_back_and_is_refused_for_another_model_or_machine() {
    with_request([Bytes::gib(8); 2], |request| {
        let prepared = request.prepare(&choices()).unwrap();
        let plan = SavedPlan::new(request.model, request.machine, &choices(), &prepared, Bytes::ZERO);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json");
        plan.write(&path).unwrap();
        let again = SavedPlan::read(&path).unwrap();
        assert_eq!(again, plan);
        again.settings(request.model, request.machine, request.placer.clone()).unwrap();
        let error = again.check(&Model::embedded().unwrap(), request.machine).unwrap_err();
        assert!(matches!(error, SavedError::OtherModel { .. }), "{error}");
        let error = again.check(request.model, &machine(&[Bytes::gib(8), Bytes::gib(9)])).unwrap_err();
        assert!(error.to_string().contains("device 1 is SIM1 (sim, 8.00 GiB)"), "{error}");
        again.check_prepared(request.machine, &prepared).unwrap();
        let cut_off = SavedPlan { devices: again.devices[..1].to_vec(), ..again.clone() };
        let error = cut_off.check_prepared(request.machine, &prepared).unwrap_err();
        assert!(error.to_string().contains("the number of devices is 1, but here it is 3"), "{error}");
        std::fs::write(&path, "{}").unwrap();
        assert!(matches!(SavedPlan::read(&path), Err(SavedError::Format { .. })));
    });
}

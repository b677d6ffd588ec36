//! Where predicted speeds come from: cards by name, machine files, measurements.
#![allow(clippy::unwrap_used, clippy::panic)]

use assert_cmd::Command;
use loadmaster::config::{Config, FileSpeed};
use loadmaster::plan::fit::speeds::{ASSUMED_HOST, COMPUTE_EFFICIENCY, KNOWN_GPUS, READ_EFFICIENCY, known_gpu};
use loadmaster_graph::{Bytes, DeviceId, IdVec};
use loadmaster_sched::{DeviceSpec, Machine};
use serde_json::Value;
use std::num::NonZeroUsize;

fn loadmaster(arguments: &[&str]) -> (String, String, i32) {
    let output = Command::cargo_bin("loadmaster").unwrap().args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

#[test]
fn cards_are_known_once_each_with_peaks_in_range_and_a_source() {
    assert!(KNOWN_GPUS.len() >= 15);
    for (i, gpu) in KNOWN_GPUS.iter().enumerate() {
        assert!(KNOWN_GPUS[..i].iter().all(|other| other.name != gpu.name), "{}", gpu.name);
        assert!((8..=192).contains(&(gpu.memory.get() >> 30)), "{}", gpu.name);
        assert!((100e9..8000e9).contains(&gpu.peak.bandwidth), "{}", gpu.name);
        assert!((10e12..2000e12).contains(&gpu.peak.operations), "{}", gpu.name);
        assert!(gpu.source.len() > 10, "{}", gpu.name);
        assert_eq!(known_gpu(&gpu.name.to_uppercase()), Some(gpu));
    }
    assert_eq!(known_gpu("h100").unwrap().name, "h100-sxm");
    assert_eq!(known_gpu("rtx9999"), None);
}

#[test]
fn a_card_by_name_has_its_memory_and_the_expected_share_of_its_peaks() {
    let (out, err, status) =
        loadmaster(&["plan", "--device", "rtx4090", "--device", "RTX4090", "--format", "json", "--no-longest"]);
    assert_eq!(status, 0, "{err}");
    let plan: Value = serde_json::from_str(&out).unwrap();
    let speeds = plan["speeds"].as_array().unwrap();
    let names: Vec<&str> = speeds.iter().map(|s| s["device"].as_str().unwrap()).collect();
    assert_eq!(names, ["RTX4090_0", "RTX4090_1", "CPU"]);
    let gpu = known_gpu("rtx4090").unwrap();
    assert_eq!(speeds[1]["bandwidth"].as_f64().unwrap(), gpu.peak.bandwidth * READ_EFFICIENCY);
    assert_eq!(speeds[1]["flops"].as_f64().unwrap(), gpu.peak.operations * COMPUTE_EFFICIENCY);
    assert_eq!(speeds[1]["source"], "data sheet");
    assert_eq!(
        (&speeds[2]["source"], speeds[2]["bandwidth"].as_f64()),
        (&"assumed".into(), Some(ASSUMED_HOST.bandwidth))
    );
    assert_eq!(plan["pools"][0]["capacity"], 24u64 << 30);
}

#[test]
fn a_name_that_no_card_has_is_answered_with_those_there_are() {
    let (_, err, status) = loadmaster(&["plan", "--device", "rtx9999"]);
    assert_eq!(status, 2);
    assert!(err.contains("rtx9999") && err.contains("rtx4090") && err.contains("mi300x"), "{err}");
}

/// A machine file of two virtual GPUs, of which the second is so many times as fast.
fn file_of_two(times: f64) -> String {
    let specs: Vec<DeviceSpec> = ["sim:64MiB", "sim:64MiB"].map(|s| s.parse().unwrap()).to_vec();
    let machine = Machine::from_specs(&specs).unwrap();
    let mut config =
        Config::parse(&Config { name: "two".into(), speeds: speeds_of(3, times), machine }.to_toml()).unwrap();
    config.name = "two".to_owned();
    config.to_toml()
}

fn speeds_of(devices: usize, times: f64) -> IdVec<DeviceId, FileSpeed> {
    let speed = |i: usize| FileSpeed {
        bandwidth: Some(Bytes((1e11 * if i == 1 { times } else { 1.0 }) as u64)),
        flops: Some(1e12 * if i == 1 { times } else { 1.0 }),
    };
    (0..devices).map(speed).collect()
}

#[test]
fn layers_go_to_the_device_that_the_machine_file_says_is_faster() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.toml");
    for (times, device) in [(4.0, "SIM1"), (0.25, "SIM0")] {
        std::fs::write(&path, file_of_two(times)).unwrap();
        let (out, err, _) =
            loadmaster(&["plan", "--machine", path.to_str().unwrap(), "--format", "json", "--no-longest"]);
        let plan: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}: {err}"));
        let layers = plan["layers"].as_array().unwrap();
        assert!(layers.iter().all(|l| l["device"] == device), "{times}: {layers:?}");
        assert_eq!(plan["speeds"][0]["source"], "machine file");
    }
}

/// A machine file of one GPU behind a link of so many GB a second, which takes weights of the host over from so many
/// tokens on.
fn file_of_uploads(from: u64, link: u64) -> String {
    let machine = Machine::from_specs(&["sim:8GiB".parse().unwrap()]).unwrap();
    let speed = |bandwidth: u64, flops: f64| FileSpeed { bandwidth: Some(Bytes(bandwidth)), flops: Some(flops) };
    let speeds = [speed(400_000_000_000, 30e12), speed(60_000_000_000, 1e12)].into_iter().collect();
    let file = Config { name: "links".into(), speeds, machine }.to_toml();
    let ends = [("CPU", "SIM0"), ("SIM0", "CPU")].map(|(a, b)| {
        format!(
            "[[link]]\nfrom = \"{a}\"\nto = \"{b}\"\npath = \"pinned\"\nbandwidth = \"{}B\"\n",
            link * 1_000_000_000
        )
    });
    assert!(!file.contains("[[link]]") && file.contains("offload_min_batch = 32\n"));
    file.replace("offload_min_batch = 32\n", &format!("offload_min_batch = {from}\n")) + &ends.concat()
}

#[test]
fn experts_on_the_host_are_sent_from_the_batch_on_that_the_plan_advises() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/goldens/models/headers/qwen3-30b-a3b.gguf");
    let mut advised = Vec::new();
    for link in [25, 12] {
        let plan = |from: u64, ubatch: u64| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("machine.toml");
            std::fs::write(&path, file_of_uploads(from, link)).unwrap();
            let machine = path.to_str().unwrap();
            let ubatch = ubatch.to_string();
            let options =
                ["plan", model, "--machine", machine, "--ubatch", &ubatch, "--no-longest", "--format", "json"];
            let (out, err, status) = loadmaster(&options);
            assert_eq!(status, 0, "{err}");
            serde_json::from_str::<Value>(&out).unwrap()
        };
        let first = plan(32, 512);
        assert_eq!(first["expert_upload"]["device"], "SIM0");
        assert_eq!(first["expert_upload"]["from_tokens"], 32);
        let best = first["expert_upload"]["best_from_tokens"].as_u64().unwrap();
        let followed = plan(best, 512);
        assert_eq!(followed["expert_upload"]["from_tokens"], best);
        assert_eq!(followed["expert_upload"]["best_from_tokens"], best);
        // Weights cross the link from that batch on, and not before.
        let moved = |ubatch: u64| plan(best, ubatch)["prefill"]["bytes"].as_u64().unwrap();
        assert!(moved(best) > 1 << 30 && moved(best - 1) < 1 << 30, "{best}: {} {}", moved(best - 1), moved(best));
        advised.push(best);
    }
    assert!(advised[0] < advised[1], "a slower link is worth it later: {advised:?}");
}

#[test]
fn a_probed_machine_is_the_one_that_was_given_with_speeds_and_links() {
    let specs: Vec<DeviceSpec> = ["sim:8MiB", "sim:8MiB,chunk=2MiB"].map(|s| s.parse().unwrap()).to_vec();
    let machine = Machine::from_specs(&specs).unwrap();
    let devices = loadmaster_sched::exec::open(&machine, NonZeroUsize::MIN).unwrap();
    let config = loadmaster::probe::probe("probed", &machine, &devices).unwrap();
    let names = |m: &Machine| m.devices().values().map(|d| d.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&config.machine), names(&machine));
    assert_eq!(config.machine.buffer_types(), machine.buffer_types());
    assert!(config.speeds.values().all(|s| s.bandwidth.is_some() && s.flops.is_some_and(|f| f > 0.0)));
    // Every ordered pair of the three devices.
    assert_eq!(config.machine.links().len(), 6);
    assert!(config.machine.links().iter().all(|l| l.bandwidth.get() > 0));
    assert_eq!(Config::parse(&config.to_toml()).unwrap(), config);
    let told = loadmaster::commands::probe::render(&config);
    assert!(told.lines().all(|l| l.chars().count() <= 100) && told.contains("SIM1"), "{told}");
}

//! Several models on the same devices, contexts that fit exactly, hostile arguments, and a very large header.
#![allow(clippy::unwrap_used, clippy::panic)]

use assert_cmd::Command;
use loadmaster::commands::input::PolicyArg;
use loadmaster::engine::Model;
use loadmaster::plan::Choices;
use loadmaster::plan::fit::speeds::{ASSUMED_GPU, ASSUMED_HOST};
use loadmaster::plan::fit::{Purpose, Request};
use loadmaster::plan::longest::{CONTEXT_BLOCK, longest_context};
use loadmaster_graph::Bytes;
use loadmaster_sched::Machine;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/models").join(name)
}

fn loadmaster(arguments: &[&str]) -> (String, String, Option<i32>) {
    let output = Command::cargo_bin("loadmaster").unwrap().args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(output.stdout), text(output.stderr), output.status.code())
}

fn two(first: &str, second: &str) -> String {
    format!("{},{}", golden(first).display(), golden(second).display())
}

#[test]
fn two_models_share_devices_and_no_byte_is_counted_twice() {
    let models = two("headers/llama3-70b.gguf", "headers/llama3-8b.gguf");
    let devices = ["--device", "sim:24GiB", "--device", "sim:24GiB", "--no-longest"];
    let (out, err, status) = loadmaster(&[&["plan", "--models", &models, "--format", "json"][..], &devices].concat());
    assert_eq!(status, Some(0), "{err}");
    let plan: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(plan["fits"], true);
    let each = plan["models"].as_array().unwrap();
    assert_eq!(each.len(), 2);
    for (i, pool) in plan["pools"].as_array().unwrap().iter().enumerate() {
        let sum: u64 = each.iter().map(|m| m["pools"][i]["used"].as_u64().unwrap()).sum();
        assert_eq!(pool["used"].as_u64(), Some(sum));
        assert!(pool["capacity"].as_u64().is_none_or(|c| sum <= c), "{pool}");
    }
    let (text, _, _) = loadmaster(&[&["plan", "--models", &models][..], &devices].concat());
    assert!(text.contains("all of them fit") && text.lines().filter(|l| l.starts_with("== ")).count() == 2, "{text}");
}

#[test]
fn two_models_that_do_not_fit_together_are_told_so() {
    let models = two("headers/llama3-8b.gguf", "headers/llama3-8b.gguf");
    let devices = ["--device", "sim:5GiB", "--device", "cpu:3GiB", "--no-longest"];
    let (text, err, status) = loadmaster(&[&["plan", "--models", &models][..], &devices].concat());
    assert_eq!(status, Some(1), "{err}");
    assert!(text.contains("not all of them fit") && text.contains("short by"), "{text}");
}

/// Case (f): limits within one memory, on real headers and a machine file.
#[test]
fn pools_within_a_pool_count_once_and_a_second_model_is_admitted() {
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/unified-nested.toml");
    let machine = ["--machine", machine.to_str().unwrap(), "--no-longest", "--format", "json"];
    // 40 GiB, then 24 GiB more: 64 GiB of the carve-out, which every byte is in once, and in the whole memory once.
    let models = two("headers/llama3-70b.gguf", "headers/mixtral-8x7b.gguf");
    let (out, err, status) = loadmaster(&[&["plan", "--models", &models][..], &machine].concat());
    assert_eq!(status, Some(0), "{err}");
    let plan: Value = serde_json::from_str(&out).unwrap();
    let used = |name: &str| {
        let pools = plan["pools"].as_array().unwrap();
        pools.iter().find(|p| p["name"] == name).unwrap()["used"].as_u64().unwrap()
    };
    let total = |device: usize| -> u64 {
        plan["models"].as_array().unwrap().iter().map(|m| m["devices"][device]["total"].as_u64().unwrap()).sum()
    };
    assert_eq!((used("carve-out"), used("host"), used("pinned")), (total(0), total(1), 0));
    assert_eq!(used("memory"), total(0) + total(1));
    assert!(total(0) > 60 << 30 && total(0) < 72 << 30, "{}", total(0));
    // What is too much for the carve-out and too much for the host is too much, although the memory would hold it.
    let header = golden("headers/qwen3-235b-a22b.gguf");
    let (out, _, status) = loadmaster(&[&["plan", header.to_str().unwrap()][..], &machine].concat());
    let plan: Value = serde_json::from_str(&out).unwrap();
    let pools = plan["pools"].as_array().unwrap();
    let sum = |i: usize| pools[i]["used"].as_u64().unwrap();
    assert_eq!(sum(0), sum(1) + sum(2), "{pools:?}");
    let is_over = pools.iter().any(|p| p["used"].as_u64() > p["capacity"].as_u64());
    assert_eq!((status == Some(1), plan["fits"].as_bool().unwrap()), (is_over, !is_over));
}

#[test]
fn what_llama_cpp_takes_counts_in_pools_around_its_pool_too() {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/unified-nested.toml");
    let text = std::fs::read_to_string(config).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("small.toml");
    std::fs::write(&small, text.replace("128GiB", "4GiB")).unwrap();
    let header = golden("headers/llama3-8b.gguf");
    let common = ["plan", header.to_str().unwrap(), "--engine", "llama.cpp", "--machine", small.to_str().unwrap()];
    let (out, err, status) = loadmaster(&[&common[..], &["--format", "json", "--reserve", "1GiB"]].concat());
    assert_eq!(status, Some(1), "{err}");
    let plan: Value = serde_json::from_str(&out).unwrap();
    let devices = plan["devices"].as_array().unwrap();
    let sum: u64 = devices.iter().map(|d| d["total"].as_u64().unwrap()).sum();
    let short = plan["short"].as_array().unwrap();
    assert_eq!((short.len(), &short[0]["pool"]), (1, &Value::from("memory")), "{short:?}");
    assert_eq!(short[0]["bytes"].as_u64().unwrap(), sum - (3 << 30));
    // What is kept free is not free, as in plans of our own.
    let (free, total) = (devices[0]["free"].as_u64().unwrap(), devices[0]["total"].as_u64().unwrap());
    assert_eq!(free + total, 95 << 30);
    // What it cannot do is refused and not passed over.
    let refused: [(&[&str], &str); 5] = [
        (&["-o", "plan.json"], "--output writes a plan"),
        (&["--fit"], "--fit chooses"),
        (&["--for", "decode"], "--for chooses"),
        (&["--copies", "1"], "decides itself whether it pipelines"),
        (&["--policy", "ggml"], "by ggml's rules"),
    ];
    for (option, told) in refused {
        let (_, err, status) = loadmaster(&[&common[..], option].concat());
        assert!(status == Some(2) && err.contains(told), "{err}");
    }
}

#[test]
fn the_longest_context_that_was_tried_says_why_it_was_the_longest() {
    let header = golden("headers/llama3-8b.gguf");
    for (ctx, why) in [("4096", "8192, what the model was trained for"), ("16384", "16384, what was asked for")] {
        let (out, err, _) = loadmaster(&["plan", header.to_str().unwrap(), "--device", "sim:24GiB", "--ctx", ctx]);
        assert!(out.contains(why), "{out}{err}");
    }
}

fn choices(flash_attn: bool, kv_type: &str, ubatch: u32) -> Choices {
    Choices {
        batch: ubatch,
        ubatch,
        flash_attn,
        kv_type: kv_type.to_owned(),
        ..Choices::of_context(24 * CONTEXT_BLOCK)
    }
}

#[test]
fn the_longest_context_is_the_last_that_fits_of_all() {
    let placer = PolicyArg::Best.placer();
    let speeds = [ASSUMED_GPU, ASSUMED_HOST];
    for name in ["tiny-llama-Q4_K_M.gguf", "tiny-gemma3-Q8_0.gguf"] {
        let model = Model::open(&golden(name)).unwrap();
        for (flash_attn, ubatch, share) in [(false, 32, 55), (true, 32, 30), (false, 128, 80), (true, 1, 99)] {
            let choices = choices(flash_attn, "f16", ubatch);
            let spec = |bytes: u64| Machine::from_specs(&[format!("sim:{bytes}").parse().unwrap()]).unwrap();
            let (roomy, placer) = (spec(1 << 30), &placer);
            let need = |machine: &Machine, blocks: u32| {
                let choices = Choices { ctx: blocks * CONTEXT_BLOCK, ..choices.clone() };
                let request = Request { model: &model, machine, speeds: &speeds, placer, reserve: Bytes::ZERO };
                let prepared = request.prepare(&choices).unwrap();
                prepared.devices.values().next().unwrap().total().get()
            };
            let all: Vec<u64> = (1..=24).map(|blocks| need(&roomy, blocks)).collect();
            let room = all[0] + (all[23] - all[0]) * share / 100;
            let last = all.iter().rposition(|&need| need <= room).map(|i| (i as u32 + 1) * CONTEXT_BLOCK);
            let tight = spec(room);
            let request = Request { model: &model, machine: &tight, speeds: &speeds, placer, reserve: Bytes::ZERO };
            let prepared = request.prepare(&choices).unwrap();
            assert_eq!(longest_context(&request, &choices, &prepared), last, "{name} {flash_attn} {ubatch}: {all:?}");
        }
    }
}

#[test]
fn hostile_arguments_get_a_message_or_an_answer() {
    let header = golden("headers/llama3-8b.gguf");
    let header = header.to_str().unwrap();
    let huge = u64::MAX.to_string();
    let cases: &[&[&str]] = &[
        &["--ctx", "4294967295"],
        &["--ctx", "0"],
        &["--ctx", "268435456", "--device", "sim:24GiB", "--no-longest"],
        &["--ctx", "268435456", "--ubatch", "4294967295", "--batch", "4294967295"],
        &["--ctx", "268435456", "--ubatch", "65536", "--batch", "65536", "--kv-type", "f32", "--no-longest"],
        &["--batch", "0"],
        &["--ubatch", "0"],
        &["--parallel", "0"],
        &["--parallel", "4294967295"],
        &["--copies", "0"],
        &["--copies", "4294967295"],
        &["--copies", "65"],
        &["--copies", "deep"],
        &["--reserve", &huge, "--device", "sim:24GiB", "--no-longest"],
        &["--reserve", "-1"],
        &["--device", ""],
        &["--device", ","],
        &["--device", "sim:0"],
        &["--device", "sim:16777215TiB", "--no-longest"],
        &["--device", &format!("sim:{huge}"), "--no-longest"],
        &["--tensor-split", "", "--device", "sim:24GiB"],
        &["--tensor-split", "nan", "--device", "sim:24GiB"],
        &["--tensor-split", "inf", "--device", "sim:24GiB"],
        &["--tensor-split", "-1", "--device", "sim:24GiB"],
        &["--tensor-split", "0", "--device", "sim:24GiB"],
        &["--tensor-split", "1,2,3", "--device", "sim:24GiB"],
        &["--n-gpu-layers", "4294967295", "--device", "sim:24GiB", "--no-longest"],
        &["--override-tensor", "("],
        &["--override-tensor", "(=CPU"],
        &["--override-tensor", ".*=NOWHERE"],
        &["--kv-type", ""],
        &["--kv-type", "q9_9"],
        &["--kv-type", "q4_0"],
        &["--machine", "/nonexistent.toml"],
        &["--models", ","],
        &["--engine", "llama.cpp", "--reserve", &huge, "--device", "sim:24GiB"],
        &["-o", "/nonexistent/plan.json", "--no-longest"],
    ];
    for case in cases {
        let (out, err, status) = loadmaster(&[&["plan", header][..], case].concat());
        assert!(matches!(status, Some(0..=2)), "{case:?}: {status:?} {err}");
        assert!(!err.contains("panicked"), "{case:?}: {err}");
        let told = if status == Some(2) { &err } else { &out };
        assert!(told.len() > 20, "{case:?}: {told}");
    }
}

#[test]
fn a_model_of_235_billion_parameters_is_planned_from_its_header_with_a_handful_of_candidates() {
    let path = golden("headers/qwen3-235b-a22b.gguf");
    assert!(std::fs::metadata(&path).unwrap().len() < 100_000);
    let (model, placer) = (Model::open(&path).unwrap(), PolicyArg::Best.placer());
    let elements: u64 = model.file.tensors().iter().map(|t| t.ne.iter().product::<u64>()).sum();
    assert!((234_000_000_000..237_000_000_000).contains(&elements), "{elements}");
    let specs: Vec<_> = ["sim:80GiB"; 2].iter().map(|s| s.parse().unwrap()).collect();
    let machine = Machine::from_specs(&specs).unwrap();
    let speeds = [ASSUMED_GPU, ASSUMED_GPU, ASSUMED_HOST];
    let request = Request { model: &model, machine: &machine, speeds: &speeds, placer: &placer, reserve: Bytes::ZERO };
    let base = choices(false, "f16", 512);
    let fitted = request.fit(&base, Purpose::Decode).unwrap();
    assert_eq!(request.short(&fitted.prepared), Bytes::ZERO);
    assert!(fitted.gap.is_some_and(|g| g < 0.01), "{:?}", fitted.gap);
    assert!(fitted.planned <= 4, "{} placements were planned", fitted.planned);
    assert!(fitted.prepared.full.nodes < 10_000, "{}", fitted.prepared.full.nodes);
}

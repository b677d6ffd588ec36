//! Models on CUDA devices: simulated ones, or with the feature `gpu-tests` those of this machine.

use super::logits::{MODELS, error, golden, run, same_bits};
use super::support::{feed, ids, open, tiny};
use super::texts;
use assert_cmd::Command;
use loadmaster::engine::Model;
use loadmaster::placement::GpuLayers;
use loadmaster_backends::cuda::probe;
use loadmaster_backends::cuda::simulator::Simulator;
use loadmaster_models::families::Attention;
use std::sync::Arc;

/// Simulated GPUs; none, with the reason printed, where there is no simulator or real GPUs are tested.
pub(super) fn simulated(config: &str) -> Option<Simulator> {
    if cfg!(feature = "gpu-tests") {
        println!("skipped: this run is for real GPUs");
        return None;
    }
    Simulator::open_with_kernels(config).map_err(|why| println!("skipped: {why}")).ok()
}

fn bound(name: &str) -> f64 {
    let plain = ["F32", "F16", "BF16"].iter().any(|t| name.ends_with(t));
    if plain { 1e-5 } else { 1e-3 }
}

/// Runs a tiny model and compares with its golden logits.
fn near_golden(name: &str, specs: &[&str], count: Option<u32>, attention: Attention) -> Vec<Vec<f32>> {
    let model = tiny(&format!("{name}.gguf"));
    let found = run(&model, specs, |s| {
        s.gpu_layers = count.map_or(GpuLayers::All, GpuLayers::Count);
        s.attention = attention;
    });
    let expected = golden(name);
    assert_eq!(found.len(), expected.len());
    let bound = if attention == Attention::Flash { 1e-3 } else { bound(name) };
    for (step, (found, expected)) in found.iter().zip(&expected).enumerate() {
        let error = error(found, expected);
        assert!(error <= bound, "{name} on {specs:?}, {attention:?}, step {step}: {error:e}");
    }
    found
}

#[test]
fn tiny_models_give_the_golden_logits_on_one_two_and_four_simulated_gpus() {
    let placements: [&[&str]; 3] = [
        &["cuda:0:64MiB"],
        &["cuda:0:64MiB", "cuda:1:64MiB"],
        &["cuda:0:64MiB", "cuda:1:64MiB", "cuda:2:64MiB", "cuda:3:64MiB"],
    ];
    for (seed, name) in MODELS.into_iter().enumerate() {
        let mut first: Option<Vec<Vec<f32>>> = None;
        for specs in placements {
            let peer = if seed % 2 == 0 { "all" } else { "none" };
            let config = format!("devices={},seed={seed},peer={peer}", specs.len());
            let Some(simulator) = simulated(&config) else { return };
            let found = near_golden(name, specs, None, Attention::Plain);
            assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "{name} on {specs:?}");
            let first = first.get_or_insert_with(|| found.clone());
            assert!(same_bits(first, &found), "{name} on {specs:?} differs from one GPU");
        }
    }
}

#[test]
fn tiny_models_stay_near_the_golden_logits_when_cublas_computes_the_products() {
    for (seed, name) in MODELS.into_iter().enumerate() {
        let Some(simulator) = simulated(&format!("devices=2,seed={seed},cublas=1")) else { return };
        near_golden(name, &["cuda:0:64MiB", "cuda:1:64MiB"], None, Attention::Plain);
        let calls = simulator.calls();
        let products: u64 = calls.iter().filter(|(name, _)| name.starts_with("cublasGemm")).map(|(_, n)| n).sum();
        assert!(products > 20, "{name}: {products} products");
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "{name}");
    }
}

#[test]
fn a_part_of_the_layers_and_flash_attention_stay_near_the_golden_logits() {
    for name in ["tiny-llama-F16", "tiny-gemma3-Q8_0", "tiny-mixtral-Q8_0", "tiny-qwen3moe-Q4_K_M"] {
        let Some(simulator) = simulated("devices=1,seed=5") else { return };
        near_golden(name, &["cuda:0:64MiB"], Some(2), Attention::Plain);
        near_golden(name, &["cuda:0:64MiB"], None, Attention::Flash);
        near_golden(name, &["cuda:0:64MiB", "cuda:0:32MiB"], None, Attention::Plain);
        assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()), "{name}");
    }
}

#[test]
fn the_embedded_model_goes_on_as_recorded_on_two_simulated_gpus() {
    let Some(simulator) = simulated("devices=2,memory=256MiB,seed=1") else { return };
    let model = Arc::new(Model::embedded().expect("it opens"));
    texts::check(&model, "alice", &[&["cuda:0:128MiB", "cuda:1:128MiB"]]);
    assert_eq!((simulator.report(), simulator.live()), (String::new(), String::new()));
}

#[test]
fn models_give_the_golden_logits_and_texts_on_the_gpus_of_this_machine() {
    if !cfg!(feature = "gpu-tests") {
        return println!("skipped: the feature gpu-tests is off");
    }
    let gpus = match probe() {
        Ok(gpus) => gpus,
        Err(why) => return println!("skipped: {why}"),
    };
    if gpus.is_empty() {
        return println!("skipped: the driver has no GPU");
    }
    let all: Vec<String> = gpus.iter().map(|gpu| format!("cuda:{}:256MiB", gpu.ordinal)).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    for name in MODELS {
        for specs in [&all[..1], &all, &[all[0], all[0]]] {
            near_golden(name, specs, None, Attention::Plain);
            near_golden(name, specs, None, Attention::Flash);
        }
    }
    let model = Arc::new(Model::embedded().expect("it opens"));
    texts::check(&model, "alice", &[&all]);
}

/// The command with a driver: status, standard output, standard error.
fn command(driver: &str, config: &str, arguments: &[&str]) -> (i32, String, String) {
    let mut command = Command::cargo_bin("loadmaster").unwrap();
    command.env("LOADMASTER_CUDA_DRIVER", driver).env("LOADMASTER_CUDASIM", config).args(arguments);
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
}

const ABSENT: &str = "/nonexistent/libcuda.so";

#[test]
fn the_command_generates_on_two_simulated_gpus_what_it_generates_on_the_host() {
    let Some(simulator) = simulated("devices=2") else { return };
    drop(simulator);
    let driver = Simulator::find().unwrap().display().to_string();
    let common = ["run", "--json", "-p", "Alice was beginning", "-n", "12", "--temp", "0"];
    let texts = [&["--device", "cpu"][..], &["--device", "cuda:0", "--device", "cuda:1"]].map(|devices| {
        let (status, out, err) = command(&driver, "devices=2,memory=256MiB,seed=3", &[&common[..], devices].concat());
        assert_eq!(status, 0, "{err}");
        let value: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert!(!err.contains("stand-in"), "{err}");
        value["sequences"].to_string() + &value["text"].to_string()
    });
    assert_eq!(texts[0], texts[1]);
}

#[test]
fn without_a_driver_cuda_devices_are_an_error_that_says_why_and_everything_else_works() {
    let (status, out, err) = command(ABSENT, "", &["run", "--device", "cuda:0", "-p", "x", "-n", "1"]);
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    assert!(err.contains("device `CUDA0` cannot be opened: no CUDA driver: /nonexistent/libcuda.so"), "{err}");
    assert!(!err.contains("panicked"), "{err}");
    let (status, out, err) = command(ABSENT, "", &["devices"]);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    assert!(out.starts_with("driver: no CUDA driver: /nonexistent/libcuda.so") && out.contains("CPU"), "{out}");
    let (status, _, err) = command(ABSENT, "", &["devices", "--device", "cuda:7"]);
    assert_eq!(status, 1, "{err}");
    let (status, _, err) = command(ABSENT, "", &["plan", "--device", "cuda:0:8GiB", "--no-longest"]);
    assert_eq!(status, 0, "{err}");
    let (status, _, err) = command("libcuda.so", "", &["run", "--device", "cuda:0", "-p", "x", "-n", "1"]);
    assert!(status == 1 && err.contains("no absolute path"), "{err}");
}

#[test]
fn cublas_is_turned_off_or_named_by_a_variable_and_devices_say_so() {
    let Some(simulator) = simulated("devices=1") else { return };
    drop(simulator);
    let driver = Simulator::find().unwrap();
    for (variable, config, by) in [
        ("off", "cublas=rule", "own kernels (cuBLAS: LOADMASTER_CUBLAS is off)"),
        ("", "cublas=rule", "cuBLAS 12.8 from 32 columns on, 512 for quantized weights"),
        // The stand-in driver takes its own functions only, whatever is named.
        ("/nonexistent/libcublas.so", "cublas=off", "own kernels (cuBLAS: the stand-in driver offers none)"),
        (
            "",
            "cublas=wrong",
            "own kernels (cuBLAS: it failed its test: element 0 of 1 products of F32 is 337, not 336)",
        ),
    ] {
        let mut command = Command::cargo_bin("loadmaster").unwrap();
        command.env("LOADMASTER_CUDA_DRIVER", &driver).env("LOADMASTER_CUDASIM", config);
        let output = command.env("LOADMASTER_CUBLAS", variable).args(["devices", "--json"]).output().unwrap();
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(value["products"][0]["by"], by, "{variable} {config}");
        assert_eq!(value["products"].as_array().unwrap().len(), 1);
    }
}

#[test]
fn devices_are_shown_with_their_paths_and_why() {
    let Some(simulator) = simulated("devices=2") else { return };
    drop(simulator);
    let driver = Simulator::find().unwrap().display().to_string();
    let (status, out, err) = command(&driver, "devices=2,memory=64MiB,corrupt-peer=0-1", &["devices", "--json"]);
    assert_eq!((status, err.as_str()), (0, ""));
    let value: serde_json::Value = serde_json::from_str(&out).unwrap();
    let names: Vec<_> = value["devices"].as_array().unwrap().iter().map(|d| d["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["CUDA0", "CUDA1", "CPU"]);
    assert_eq!(value["devices"][0]["bytes"], 64 << 20);
    let paths = value["paths"].as_array().unwrap();
    assert_eq!(paths.len(), 2);
    for path in paths {
        assert_eq!(path["path"], "staged, pinned", "{path}");
        assert!(path["why"].as_str().unwrap().contains("the direct path failed its test"), "{path}");
        assert!(path["bytes_per_second"].as_f64().unwrap() > 0.0);
    }
    let what = value["devices"][2]["what"].as_str().unwrap();
    assert!(what.starts_with("CPU, ") && what.ends_with(" kernels"), "{what}");
    let both = ["devices", "--device", "cuda:1", "--device", "cuda:0"];
    let (status, text, err) = command(&driver, "devices=2,memory=64MiB,corrupt-peer=0-1", &both);
    assert_eq!((status, err.as_str()), (0, ""), "{text}");
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let why = paths[0]["why"].as_str().unwrap();
    assert!(flat.contains(why), "the whole reason, {why}: {text}");
    let (status, text, err) = command(&driver, "devices=2,cublas=rule", &both);
    assert_eq!((status, err.as_str()), (0, ""), "{text}");
    assert_eq!(text.matches("cuBLAS 12.8 from 32 columns on").count(), 2, "{text}");
    let (status, text, err) = command(&driver, "devices=2", &both);
    assert_eq!((status, err.as_str()), (0, ""), "{text}");
    assert_eq!(text.matches("own kernels (cuBLAS: the stand-in driver offers none)").count(), 2, "{text}");
    assert!(text.contains("direct") && text.contains("tested") && text.contains("compute capability"), "{text}");
}

#[test]
fn a_driver_that_is_none_and_a_gpu_that_does_not_answer_are_told_with_the_reason() {
    let no_library = std::env::temp_dir().join(format!("loadmaster-no-driver-{}", std::process::id()));
    std::fs::write(&no_library, "a text, and no library\n".repeat(40)).unwrap();
    let text = no_library.display().to_string();
    let devices = |driver: &str, config: &str| command(driver, config, &["devices"]);
    let told = |driver: &str, words: &[&str]| {
        let (status, out, err) = devices(driver, "");
        assert_eq!((status, err.as_str()), (0, ""), "{out}");
        let first = out.lines().next().unwrap();
        assert!(first.starts_with("driver: no CUDA driver: ") && words.iter().all(|w| first.contains(w)), "{first}");
        assert!(!first.contains("dlopen failed"), "{first}");
    };
    told(ABSENT, &[ABSENT, "LOADMASTER_CUDA_DRIVER"]);
    told(&text, &[&text, "LOADMASTER_CUDA_DRIVER"]);
    std::fs::remove_file(&no_library).unwrap();
    let Some(simulator) = simulated("") else { return };
    drop(simulator);
    let driver = Simulator::find().unwrap().display().to_string();
    for (config, words) in [
        ("nonsense", "LOADMASTER_CUDASIM: `nonsense`"),
        ("devices=99", "LOADMASTER_CUDASIM: `devices=99`"),
        ("devices=0", "no CUDA-capable device is detected"),
    ] {
        let (status, out, err) = devices(&driver, config);
        let first = out.lines().next().unwrap();
        assert!(status == 0 && err.is_empty() && first.contains(words), "{config}: {first}");
    }
    let (status, out, err) = devices(&driver, "fail=cuDeviceGetCount:1");
    assert!(status == 1 && out.is_empty() && err.contains("CUDA_ERROR_UNKNOWN"), "{out}{err}");
    let run = |config: &str, device: &str| command(&driver, config, &["run", "--device", device, "-p", "x", "-n", "1"]);
    for device in ["cuda:9", "cuda:9:8MiB"] {
        let (status, _, err) = run("devices=2", device);
        assert!(status == 1 && err.contains("the driver has 2 GPUs, no GPU 9"), "{err}");
    }
    for failing in ["cuDeviceGetName:1", "cuMemGetInfo:1", "cuDevicePrimaryCtxRetain:1"] {
        let (status, _, err) = run(&format!("fail={failing}:999"), "cuda:0");
        assert!(status == 1 && err.contains("`CUDA0` cannot be opened: GPU 0 does not answer"), "{failing}: {err}");
        assert!(err.contains("CUDA_ERROR_UNKNOWN"), "{failing}: {err}");
    }
}

/// How often the driver was asked for memory of a GPU.
fn taken(simulator: &Simulator) -> u64 {
    simulator.calls().into_iter().filter(|(name, _)| name == "cuMemAlloc").map(|(_, times)| times).sum()
}

#[test]
fn a_model_takes_an_allocation_of_the_driver_for_each_chunk_and_none_for_a_tensor_or_a_run() {
    let model = tiny("tiny-llama-Q8_0.gguf");
    assert!(model.file.tensors().len() > 60);
    for chunk in [64 << 20, 512 << 10] {
        let Some(simulator) = simulated("") else { return };
        let before = taken(&simulator);
        let mut engine = open(&model, &[&format!("cuda:0:64MiB,chunk={chunk}")], |_| ()).unwrap();
        let loaded = taken(&simulator) - before;
        let need = engine.prepared().devices.values().next().unwrap();
        let parts = [need.weights, need.cache, need.compute, need.workspace];
        let least: u64 = parts.iter().map(|bytes| bytes.get().div_ceil(chunk)).sum();
        // A chunk ends before the tensor that it has no room for.
        assert!(loaded >= least && loaded <= least + least / 2 && least < 16, "{loaded} for {least}: {need:?}");
        assert!(chunk < 64 << 20 || loaded == 4, "weights, cache, memory to compute in, workspace: {loaded}");
        for token in [1, 5, 9] {
            feed(&mut engine, &ids(&[token])).unwrap();
        }
        assert_eq!(taken(&simulator) - before, loaded, "a run takes nothing");
    }
}

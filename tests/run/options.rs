//! The command: its options, its answers, its exit status.

use super::support::goldens;
use assert_cmd::Command;
use serde_json::Value;

fn run(args: &[&str]) -> (i32, String, String) {
    let output =
        Command::cargo_bin("loadmaster").expect("it is built").arg("run").args(args).output().expect("it starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    (output.status.code().expect("no signal"), text(output.stdout), text(output.stderr))
}

fn model(name: &str) -> String {
    goldens().join("models").join(name).display().to_string()
}

fn json(args: &[&str]) -> Value {
    let (status, out, err) = run(&[args, &["--json"]].concat());
    assert_eq!((status, err.as_str()), (0, ""), "{args:?}");
    serde_json::from_str(&out).expect("one object")
}

#[test]
fn without_arguments_the_embedded_model_speaks_from_two_virtual_gpus() {
    let (status, out, err) = run(&["-n", "20"]);
    assert_eq!((status, err.as_str()), (0, ""));
    for part in [
        "SIM0",
        "SIM1",
        "CPU",
        "weights",
        "bound",
        " sitting by her sister on the bank, and of having",
        "tokens/s",
        "splits",
        "moved",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
}

#[test]
fn json_has_tokens_text_devices_splits_and_timings() {
    let value = json(&["-p", "Alice was beginning to get very tired of", "-n", "5"]);
    assert_eq!(value["prompt_tokens"].as_array().expect("a list").len(), 15);
    assert_eq!(value["tokens"], serde_json::json!([260, 265, 480, 272, 89]));
    assert_eq!(value["text"], " sitting by");
    assert_eq!(value["splits"], 3);
    assert!(value["copies"].as_u64().expect("a number") > 0);
    assert!(value["timings"]["decode_tokens_per_s"].as_f64().expect("a number") > 0.0);
    let devices = value["devices"].as_array().expect("a list");
    assert_eq!(
        devices.iter().map(|d| d["name"].as_str().expect("a name")).collect::<Vec<_>>(),
        ["SIM0", "SIM1", "CPU"]
    );
    for key in ["weights", "kv", "compute", "bound"] {
        assert!(devices[0][key].as_u64().expect("bytes") > 0, "{key}");
    }
}

#[test]
fn logits_are_written_as_the_golden_files_have_them() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("logits.jsonl");
    let tokens = std::fs::read_to_string(goldens().join("logits/tokens.txt")).expect("golden data is there");
    let out = path.display().to_string();
    let args = [&model("tiny-llama-F16.gguf"), "--tokens", tokens.trim(), "--force", "5,77,103,42", "--ctx", "256"];
    let value = json(&[&args[..], &["--logits-out", &out]].concat());
    assert_eq!(value["tokens"], serde_json::json!([]));
    let lines = |path: &std::path::Path| -> Vec<Value> {
        let text = std::fs::read_to_string(path).expect("it was written");
        text.lines().map(|l| serde_json::from_str(l).expect("JSON")).collect()
    };
    let (found, expected) = (lines(&path), lines(&goldens().join("logits/tiny-llama-F16.jsonl")));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found["step"], expected["step"]);
        assert_eq!(found["logits"].as_array().expect("a list").len(), 128);
        let ids = |v: &Value| v["top"].as_array().expect("a list").iter().map(|e| e[0].clone()).collect::<Vec<_>>();
        assert_eq!(ids(found)[0], ids(expected)[0]);
        assert_eq!(ids(found).len(), 16);
        assert_eq!(found["argmax"], ids(found)[0]);
        for key in ["mean", "rms"] {
            let number = |v: &Value| v[key].as_f64().expect("a number");
            assert!((number(found) - number(expected)).abs() < 1e-4, "{key}");
        }
    }
}

#[test]
fn sequences_side_by_side_say_what_one_alone_says() {
    let alone = json(&["-n", "12"]);
    let together = json(&["-n", "12", "--parallel", "3", "--ctx", "768"]);
    let sequences = together["sequences"].as_array().expect("a list");
    assert_eq!(sequences.len(), 3);
    for sequence in sequences {
        assert_eq!(sequence["tokens"], alone["tokens"]);
    }
}

#[test]
fn a_seed_fixes_what_is_drawn() {
    let drawn = |seed: &str| {
        json(&["-n", "16", "--temp", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", seed])["tokens"]
            .clone()
    };
    assert_eq!(drawn("7"), drawn("7"));
    assert_ne!(drawn("7"), drawn("8"));
}

#[test]
fn placement_options_move_layers_and_not_tokens() {
    let usual = json(&["-n", "8"]);
    let variants: [&[&str]; 8] = [
        &["--device", "cpu"],
        &["--device", "sim:64MiB", "--n-gpu-layers", "3"],
        &["--tensor-split", "1,3"],
        &["--override-tensor", "ffn_.*=CPU"],
        &["--no-kv-offload"],
        &["--policy", "ggml"],
        &["--copies", "2", "--ubatch", "8"],
        &["--threads", "1", "--batch", "4"],
    ];
    for args in variants {
        assert_eq!(json(&[args, &["-n", "8"]].concat())["tokens"], usual["tokens"], "{args:?}");
    }
}

#[test]
fn a_context_that_fills_up_ends_the_text() {
    let value = json(&["-n", "1000", "--ctx", "256"]);
    assert_eq!(value["end"], "context full");
    let tokens = value["tokens"].as_array().expect("a list").len();
    assert_eq!(tokens, 256 - 15 + 1);
}

#[test]
fn bad_input_is_one_message_and_status_2() {
    let tiny = model("tiny-llama-F16.gguf");
    let alice = super::support::root().join("assets/alice-Q8_0.gguf").display().to_string();
    let unified = super::support::root().join("configs/unified-apu.toml").display().to_string();
    let cases: [(&[&str], &str); 15] = [
        (&["--machine", &unified], "can be planned for, but not run on"),
        (&["/nonexistent.gguf", "-p", "x"], "nonexistent"),
        (&["/dev/null", "-p", "x"], "/dev/null"),
        (&[&tiny, "-p", "x"], "give token ids instead of text"),
        (&[&alice], "give a text with -p"),
        (&[&tiny, "--tokens", "1,999"], "token 999 is outside"),
        (&["--tokens", "1,x"], "invalid value"),
        (&["--device", "gpu"], "no kind of device"),
        (&["--machine", "/nonexistent.toml"], "nonexistent"),
        (&["--tensor-split", "1,2,3"], "3 shares"),
        (&["--tensor-split", "0,0"], "all shares are 0"),
        (&["--override-tensor", "x=GPU9"], "no device `GPU9`"),
        (&["--kv-type", "q8_0"], "flash"),
        (&["--temp=-1"], "temperature"),
        (
            &["--ctx", "16", "-p", "Alice was beginning to get very tired of sitting by her sister on the bank"],
            "give a longer --ctx",
        ),
    ];
    for (args, part) in cases {
        let (status, out, err) = run(args);
        assert_eq!((status, out.as_str()), (2, ""), "{args:?}: {err}");
        assert!(err.contains(part), "{args:?}: {err}");
        assert!(!err.contains("panicked"), "{args:?}: {err}");
    }
}

#[test]
fn a_device_that_is_too_small_is_status_1_and_says_what_would_help() {
    let (status, out, err) = run(&["--device", "sim:1MiB"]);
    assert_eq!((status, out.as_str()), (1, ""), "{err}");
    for part in ["SIM0 has 1.00 MiB", "are needed", "weights", "--n-gpu-layers"] {
        assert!(err.contains(part), "{part}: {err}");
    }
}

/// A plan of the embedded model over two virtual GPUs, changed as text.
fn saved_plan(change: impl FnOnce(String) -> String) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("plan.json");
    let alice = super::support::root().join("assets/alice-Q8_0.gguf");
    let plan = Command::cargo_bin("loadmaster")
        .expect("it is built")
        .arg("plan")
        .arg(alice)
        .arg("-o")
        .arg(&path)
        .args(["--device", "sim:64MiB", "--device", "sim:64MiB", "--ctx", "512", "--ubatch", "32", "--copies", "2"])
        .args(["--tensor-split", "1,2"])
        .output()
        .expect("it starts");
    assert!(plan.status.success(), "{}", String::from_utf8_lossy(&plan.stderr));
    let text = std::fs::read_to_string(&path).expect("it was written");
    std::fs::write(&path, change(text)).expect("it can be written");
    let path = path.display().to_string();
    (dir, path)
}

#[test]
fn a_saved_plan_is_carried_out_to_the_byte() {
    let (_dir, path) = saved_plan(|plan| plan);
    let plan: Value = serde_json::from_str(&std::fs::read_to_string(&path).expect("it is there")).expect("JSON");
    for machine in [&[][..], &["--device", "sim:64MiB", "--device", "sim:64MiB"]] {
        let ran = json(&[&["--plan", &path, "-n", "6"], machine].concat());
        for (ran, planned) in
            ran["devices"].as_array().expect("a list").iter().zip(plan["devices"].as_array().expect("a list"))
        {
            for key in ["name", "weights", "kv", "compute"] {
                assert_eq!(ran[key], planned[key], "{key}");
            }
        }
        assert_eq!(ran["splits"], plan["splits"]);
        assert_eq!(ran["tokens"].as_array().expect("a list").len(), 6);
    }
}

#[test]
fn a_plan_for_something_else_is_refused_with_the_reason_and_status_1() {
    let (_dir, path) = saved_plan(|plan| plan);
    let tiny = model("tiny-llama-F16.gguf");
    let (_other, changed) = saved_plan(|plan| {
        let mut plan: Value = serde_json::from_str(&plan).expect("JSON");
        let device = &mut plan["devices"][0];
        let (total, compute) = (device["total"].as_u64().expect("bytes"), device["compute"].as_u64().expect("bytes"));
        (device["total"], device["compute"]) = ((total - compute + 1).into(), 1.into());
        plan.to_string()
    });
    let cases: [(&[&str], &str); 4] = [
        (&["--plan", &path, &tiny, "--tokens", "1"], "another model"),
        (&["--plan", &path, "--device", "sim:64MiB"], "another machine: the number of devices is 3"),
        (&["--plan", &path, "--device", "sim:64MiB", "--device", "sim:65MiB"], "another machine: device 1"),
        (&["--plan", &changed], "what SIM0 takes"),
    ];
    for (args, part) in cases {
        let (status, out, err) = run(args);
        assert_eq!((status, out.as_str()), (1, ""), "{args:?}: {err}");
        assert!(err.contains(part), "{args:?}: {err}");
    }
    let (status, _, err) = run(&["--plan", &path, "--ctx", "64"]);
    assert_eq!(status, 2, "{err}");
    assert_eq!(run(&["--plan", "/dev/null"]).0, 2);
}

#[test]
fn nothing_timed_is_said_where_nothing_was_computed_and_the_end_is_explained() {
    let (status, out, _) = run(&["-n", "1"]);
    assert_eq!(status, 0);
    assert!(out.contains("generated 1 tokens (stopped after 1 token (-n))"), "{out}");
    assert!(!out.contains(" 0.0 tokens/s"), "{out}");
    assert!(json(&["-n", "1"])["timings"]["decode_tokens_per_s"].is_null());
    assert!(run(&["-n", "1000", "--ctx", "256"]).1.contains("(the context is full (--ctx))"));
}

#[test]
fn an_answer_has_the_tokens_of_its_conversation() {
    let smollm2 = "SmolLM2-135M-Instruct.Q4_1.gguf";
    if super::support::fetched("smollm2", smollm2).is_none() {
        return;
    }
    let path = super::support::root().join("models").join(smollm2).display().to_string();
    let value = json(&[&path, "--chat", "-p", "Hi", "-n", "2", "--ctx", "128"]);
    let prompt = value["prompt_tokens"].as_array().expect("a list");
    assert!(prompt.len() > 5, "{value}");
    assert_eq!(&value["sequences"][0]["prompt_tokens"], &value["prompt_tokens"]);
}

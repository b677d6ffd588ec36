//! `loadmaster explain` and `loadmaster compare` as a user meets them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail loudly")]

use assert_cmd::Command;
use loadmaster_graph::file::GraphFile;
use loadmaster_graph::{DeviceId, Op, TensorId};
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Stdio;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn golden(name: &str) -> PathBuf {
    root().join(format!("tests/goldens/graphs/{name}.json.gz"))
}

fn loadmaster(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadmaster"));
    command.args(args).current_dir(root());
    command
}

/// Standard output of a call that must succeed.
fn said(args: &[&str]) -> String {
    let output = loadmaster(args).output().unwrap();
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a call that must be refused: status 2, one message, nothing on standard output, no panic.
fn refused(args: &[&str]) -> String {
    let output = loadmaster(args).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(output.stdout.is_empty(), "{args:?} said something before it refused");
    assert!(error.starts_with("error: ") && !error.contains("panicked"), "{args:?}: {error}");
    error
}

const SMOLLM: &str = "tests/goldens/graphs/smollm2.2g.003.json.gz";

#[test]
fn json_under_policy_ggml_has_the_recorded_values_under_the_recorded_names() {
    for name in ["smollm2.2g.003", "llama3-70b.1x24-ngl40.003", "qwen3moe-moe.1gp.003", "llama-dense.2g.000"] {
        let path = golden(name);
        let file = GraphFile::read_path(&path).unwrap();
        let recorded: Value = serde_json::from_str(&file.to_json().unwrap()).unwrap();
        let text = said(&["explain", path.to_str().unwrap(), "--policy", "ggml", "--format", "json", "--verify"]);
        let found: Value = serde_json::from_str(&text).unwrap();
        let mut compared = 0;
        for (key, value) in recorded["expected"].as_object().unwrap() {
            assert_eq!(&found[key], value, "{name}: {key}");
            compared += 1;
        }
        assert!(compared >= 4, "{name}");
        assert_eq!(found["verified"], Value::Bool(true));
        let devices = found["devices"].as_array().unwrap().len();
        for key in ["lower_bounds", "proved", "buffer_sizes"] {
            assert_eq!(found[key].as_array().unwrap().len(), devices, "{name}: {key}");
        }
        let causes = found["causes"]["nodes"].as_array().unwrap();
        assert_eq!(causes.len(), file.graph.nodes().len());
        assert!(causes.iter().all(|c| !c["cause"].as_str().unwrap().is_empty()));
    }
}

#[test]
fn policy_best_needs_no_more_and_stands_the_check() {
    let total = |policy: &str| -> u64 {
        let text = said(&["explain", SMOLLM, "--policy", policy, "--format", "json", "--verify"]);
        let found: Value = serde_json::from_str(&text).unwrap();
        let sum = |key: &str| found[key].as_array().unwrap().iter().map(|b| b.as_u64().unwrap()).sum::<u64>();
        assert!(sum("lower_bounds") <= sum("buffer_sizes"));
        sum("buffer_sizes")
    };
    assert!(total("best") < total("ggml"));
}

#[test]
fn the_text_names_devices_causes_copies_bounds_and_the_peak() {
    let text = said(&["explain", SMOLLM, "--verify"]);
    for words in [
        "smollm2.2g.003: 1086 nodes",
        "policy best",
        "; verified",
        "every input has 4 copies",
        "SIM1",
        "peak at",
        "the least possible",
        "copies t340 `embd` (288.00 KiB) from CPU for t341",
        "the device changes from CPU",
        "pinned by the caller (1.1)",
        "its weights t0 `token_embd.weight`",
        "are there (1.2c)",
        "is in buf2 (SIM0 any) already",
        "(1.2a)",
    ] {
        assert!(text.contains(words), "no `{words}` in\n{}", &text[..3000]);
    }
    assert_eq!(text, said(&["explain", SMOLLM, "--verify"]), "equal input, equal words");
}

#[test]
fn dot_is_a_graph_with_a_box_for_each_split_and_every_node_in_it() {
    let text = said(&["explain", SMOLLM, "--format", "dot"]);
    assert!(text.starts_with("digraph \"smollm2.2g.003\" {") && text.ends_with("}\n"));
    assert_eq!(text.matches("subgraph cluster_").count(), 3);
    assert!(text.contains("\"t340\" -> \"copy0\" [style=dashed"));
    assert_eq!(text.matches('{').count(), text.matches('}').count());
}

#[test]
fn another_machine_comes_from_specs_or_from_a_file() {
    let specs = said(&["explain", SMOLLM, "--device", "sim:24GiB", "--device", "sim:24GiB"]);
    let file = said(&["explain", SMOLLM, "--machine", "configs/sim-2x24.toml"]);
    for text in [&specs, &file] {
        assert!(text.contains("24.00 GiB") && text.contains("yes, "), "{}", &text[..1500]);
    }
    let small = said(&["explain", SMOLLM, "--device", "sim:24MiB", "--device", "sim:24MiB"]);
    assert!(small.contains("NO, ") && small.contains("too much"));
}

#[test]
fn unified_memory_needs_no_copies() {
    let graph = "tests/goldens/graphs/smollm2.1g-ngl12.003.json.gz";
    let text = said(&["explain", graph, "--machine", "configs/unified-apu.toml", "--verify"]);
    assert!(text.contains("1 split, 0 copies a run"), "{}", &text[..500]);
}

#[test]
fn what_makes_no_sense_is_refused_in_one_message_with_the_place() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let whole = std::fs::read(golden("smollm2.2g.003")).unwrap();
    let truncated = write("truncated.json.gz", &whole[..whole.len() / 2]);
    let text = write("text.json", b"hello");
    let other = write("other.json", br#"{"format": "something", "version": 1}"#);
    let machine = write("bad.toml", b"name = 3");
    let missing_pool =
        write("pool.toml", b"name = \"m\"\n[[buffer_type]]\nname = \"B\"\npool = \"nope\"\nusable_by = []\n");
    let cases: &[(&[&str], &[&str])] = &[
        (&["explain", "nowhere.json"], &["nowhere.json", "No such file"]),
        (&["explain", "configs"], &["configs"]),
        (&["explain", &truncated], &["truncated.json.gz", "gzip"]),
        (&["explain", &text], &["text.json", "line 1"]),
        (&["explain", &other], &["other.json"]),
        (&["explain", SMOLLM, "--device", "gpu:24GiB"], &["gpu:24GiB", "allowed are"]),
        (&["explain", SMOLLM, "--device", "sim:24GX"], &["24GX", "unit", "24GiB"]),
        (&["explain", SMOLLM, "--device", "cpu", "--device", "sim:1GiB"], &["must come last"]),
        (&["explain", SMOLLM, "--device", "sim:1GiB"], &["smollm2.2g.003", "SIM1", "more GPUs"]),
        (&["explain", SMOLLM, "--device", "cpu", "--machine", "configs/cpu.toml"], &["--machine", "cannot be used"]),
        (&["explain", SMOLLM, "--machine", "nowhere.toml"], &["nowhere.toml", "No such file"]),
        (&["explain", SMOLLM, "--machine", &machine], &["bad.toml", "name = 3"]),
        (&["explain", SMOLLM, "--machine", &missing_pool], &["pool.toml", "`nope`"]),
        (&["explain", SMOLLM, "--policy", "worst"], &["worst", "ggml"]),
        (&["explain", SMOLLM, "--format", "xml"], &["xml", "json"]),
        (&["explain"], &["GRAPH"]),
        (&["explain", SMOLLM, "--fast"], &["--fast"]),
        (&["compare"], &["DIR_OR_FILES"]),
        (&["compare", "nowhere"], &["nowhere", "No such file"]),
        (&["compare", "configs"], &["configs", "no *.json"]),
        (&["compare", SMOLLM, &truncated], &["truncated.json.gz"]),
        (&["fly"], &["fly"]),
    ];
    for (args, words) in cases {
        let error = refused(args);
        for word in *words {
            assert!(error.contains(word), "{args:?}: no `{word}` in: {error}");
        }
    }
}

#[test]
fn a_plan_that_computes_nonsense_does_not_stand_the_check() {
    let mut file = GraphFile::read_path(golden("llama-dense.2g.000")).unwrap();
    let reads_view = |n: &TensorId| {
        let read = file.graph.tensor(*n).src.iter().flatten().find(|s| file.graph.tensor(**s).op == Op::Reshape);
        (!file.graph.tensor(*n).op.is_view()).then_some(read).flatten().copied()
    };
    let view = file.graph.nodes().values().find_map(reads_view).unwrap();
    let host = DeviceId::new(file.devices.len() - 1);
    file.pinned.insert(view, host);
    file.expected = None;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("pinned.json");
    file.write_path(&path).unwrap();
    let path = path.to_str().unwrap();
    assert!(said(&["explain", path]).contains("pinned by the caller"));
    let output = loadmaster(&["explain", path, "--verify"]).output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(output.stdout.is_empty());
    assert!(error.contains("pinned.json") && error.contains("before the original is computed"), "{error}");
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    for args in [&["explain", SMOLLM][..], &["explain", SMOLLM, "--format", "json"]] {
        let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_loadmaster"))
            .args(args)
            .current_dir(root())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = [0; 16];
        child.stdout.take().unwrap().read_exact(&mut first).unwrap();
        let mut error = String::new();
        child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        assert!(child.wait().unwrap().success() && error.is_empty(), "{args:?}: {error}");
    }
}

#[test]
fn compare_prints_a_row_a_file_a_total_and_a_mean() {
    let text = said(&["compare", SMOLLM, golden("llama3-8b.cpu.000").to_str().unwrap()]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 5, "{text}");
    assert!(lines[0].contains("ggml") && lines[0].contains("best") && lines[0].contains("bound"));
    let bytes = |line: &str, column: usize| line.split_whitespace().rev().nth(column).unwrap().parse::<u64>().unwrap();
    for (column, line) in [(4, lines[1]), (3, lines[2])] {
        assert!(bytes(line, column) > 0);
    }
    // From the right: best/bound, best/ggml, bound, best, ggml.
    for column in 2..5 {
        assert_eq!(bytes(lines[1], column) + bytes(lines[2], column), bytes(lines[3], column), "{text}");
    }
    assert!(lines[3].starts_with("total of 2"));
    assert!(lines[4].starts_with("geometric mean of best/ggml: 0."));
}

#[test]
fn compare_takes_directories() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["smollm2.cpu.000", "gpt2-dense.1gp.000"] {
        std::fs::copy(golden(name), dir.path().join(format!("{name}.json.gz"))).unwrap();
    }
    let text = said(&["compare", dir.path().to_str().unwrap()]);
    let names: Vec<&str> = text.lines().filter_map(|l| l.split_whitespace().next()).collect();
    assert_eq!(names[1..4], ["gpt2-dense.1gp.000", "smollm2.cpu.000", "total"], "in name order");
}

//! What is asked of `loadmaster plan` is done or refused, what it advises holds when it is followed, and a saved plan that
//! was changed by hand is told from one that was not.
#![allow(clippy::unwrap_used, clippy::panic)]

use assert_cmd::Command;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn header(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/goldens/models/headers/{name}.gguf"));
    path.to_str().unwrap().to_owned()
}

fn loadmaster(arguments: &[&str]) -> (String, String, i32) {
    let output = Command::cargo_bin("loadmaster").unwrap().args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(output.stdout), text(output.stderr), output.status.code().unwrap())
}

fn planned(arguments: &[&str]) -> Value {
    let (out, err, _) = loadmaster(&[&["plan", "--no-longest", "--format", "json"][..], arguments].concat());
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {err}"))
}

fn refused(arguments: &[&str]) -> String {
    let (out, err, status) = loadmaster(arguments);
    assert_eq!((status, out.as_str()), (2, ""), "{arguments:?}: {err}");
    err
}

/// Words of a line for a shell; quotes are single.
fn words(line: &str) -> Vec<String> {
    let parts = line.split('\'').enumerate();
    let words = parts.flat_map(|(i, part)| match i % 2 {
        0 => part.split_whitespace().map(str::to_owned).collect(),
        _ => vec![part.to_owned()],
    });
    words.collect()
}

/// The options that an advice names: those in parentheses.
fn advised(what: &str) -> Vec<String> {
    let mut all = Vec::new();
    let mut rest = what;
    while let Some((_, after)) = rest.split_once("(--") {
        // A pattern may hold parentheses, but those here end before a comma, a blank or the end.
        let (inside, after) = after.split_once(')').unwrap();
        all.extend(words(&format!("--{inside}")));
        rest = after;
    }
    all
}

#[test]
fn three_changes_are_advised_and_each_fits_when_its_options_are_given_by_hand() {
    let models = ["llama3-8b", "llama3-70b", "mixtral-8x7b"].map(header);
    let cases: [(&str, &[&str], &[&str], bool); 8] = [
        (&models[0], &["sim:4GiB", "sim:2GiB", "cpu:1GiB"], &["--n-gpu-layers", "33"], true),
        (&models[0], &["sim:4GiB", "cpu:1GiB"], &[], false),
        (&models[0], &["sim:4GiB", "cpu:1100MiB"], &["--flash-attn", "on"], true),
        (&models[1], &["rtx4090"], &["--n-gpu-layers", "99"], true),
        (&models[1], &["rtx4090", "rtx3060"], &["--tensor-split", "1,1", "--ctx", "65536"], true),
        (&models[1], &["sim:16GiB", "sim:16GiB"], &["--n-gpu-layers", "99", "--copies", "4", "--ctx", "32768"], true),
        (&models[2], &["rtx4090"], &["--n-gpu-layers", "99"], true),
        (&models[2], &["rtx4090", "cpu:4GiB"], &["--ctx", "32768"], false),
    ];
    for (model, devices, options, enough) in cases {
        let devices: Vec<&str> = devices.iter().flat_map(|d| ["--device", d]).collect();
        let plan = planned(&[&[model][..], &devices, options].concat());
        let case = format!("{devices:?} {options:?}: {:#}", plan["relaxations"]);
        assert_eq!(plan["fits"], false, "{case}");
        let relaxations = plan["relaxations"].as_array().unwrap();
        assert!(relaxations.len() >= 3 || !enough, "{case}");
        for relaxation in relaxations {
            let what = relaxation["what"].as_str().unwrap();
            let advised = advised(what);
            // What is advised stands in place of what was given.
            let is_kept = |pair: &&[&str]| {
                let option = pair[0];
                !advised.iter().any(|a| a == option)
                    && !what.contains(&format!("without {option}"))
                    && !what.split(" without ").skip(1).any(|rest| rest.contains(option))
            };
            let kept: Vec<&str> = options.chunks(2).filter(is_kept).flatten().copied().collect();
            let advised: Vec<&str> = advised.iter().map(String::as_str).collect();
            let again = planned(&[&[model][..], &devices, &kept, &advised].concat());
            assert_eq!(again["fits"], true, "{what} of {case}");
            assert_eq!(again["predicted"]["decode"], relaxation["predicted"]["decode"], "{what} of {case}");
        }
    }
}

#[test]
fn no_change_is_advised_beside_one_that_does_alone_unless_it_is_milder_for_it() {
    let model = header("llama3-70b");
    let plan = planned(&[&model, "--device", "rtx4090", "--n-gpu-layers", "99"]);
    let layers = |r: &Value| r["choices"]["n_gpu_layers"].as_u64().unwrap();
    let all = plan["relaxations"].as_array().unwrap();
    let alone = all.iter().find(|r| r["what"].as_str().unwrap().starts_with("fewer layers")).unwrap();
    // One layer more does not fit.
    let more = (layers(alone) + 1).to_string();
    assert_eq!(planned(&[&model, "--device", "rtx4090", "--n-gpu-layers", &more])["fits"], false);
    let beside: Vec<&Value> = all.iter().filter(|r| r["what"].as_str().unwrap().contains(", and ")).collect();
    assert!(!beside.is_empty());
    assert!(beside.iter().all(|r| layers(r) > layers(alone)), "{all:#?}");
}

fn saved(folder: &Path) -> PathBuf {
    let path = folder.join("plan.json");
    let model = header("llama3-8b");
    let (_, err, status) =
        loadmaster(&["plan", &model, "--device", "sim:24GiB", "--no-longest", "-o", path.to_str().unwrap()]);
    assert_eq!(status, 0, "{err}");
    path
}

#[test]
fn options_that_would_change_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(folder.path());
    let (plan, model) = (path.to_str().unwrap(), header("llama3-8b"));
    for options in [&["--ctx", "77"][..], &["--device", "rtx4090"], &["--batch", "2048"], &["--for", "decode"]] {
        let err = refused(&[&["plan", plan][..], options].concat());
        assert!(err.contains(options[0]) && err.contains("is a plan that was made"), "{err}");
    }
    assert_eq!(loadmaster(&["plan", plan, "--format", "json", "--no-longest"]).2, 0);
    let on_card = ["plan", &model, "--device", "sim:24GiB"];
    let err = refused(&[&on_card[..], &["--for", "prefill", "--n-gpu-layers", "3"]].concat());
    assert!(err.contains("--for") && err.contains("--n-gpu-layers"), "{err}");
    let err = refused(&[&on_card[..], &["--fit", "--n-gpu-layers", "3"]].concat());
    assert!(err.contains("--fit") && err.contains("cannot be used"), "{err}");
    let err = refused(&["run", "--plan", plan, "--policy", "ggml"]);
    assert!(err.contains("--policy") && err.contains("cannot be used"), "{err}");
}

#[test]
fn a_plan_by_ggmls_rules_is_run_by_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let path = path.to_str().unwrap();
    for policy in ["ggml", "best"] {
        let devices = ["--device", "sim:64MiB", "--device", "sim:64MiB"];
        let made = loadmaster(&[&["plan", "--policy", policy, "-o", path, "--no-longest"][..], &devices].concat());
        assert_eq!(made.2, 0, "{}", made.1);
        let plan: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        assert_eq!(plan["policy"], policy);
        let (out, err, status) = loadmaster(&["run", "--plan", path, "--tokens", "1,2,3", "-n", "1", "--json"]);
        assert_eq!(status, 0, "{err}");
        let run: Value = serde_json::from_str(&out).unwrap();
        for (planned, taken) in plan["devices"].as_array().unwrap().iter().zip(run["devices"].as_array().unwrap()) {
            assert_eq!(planned["compute"], taken["compute"], "{policy}");
        }
    }
}

#[test]
fn a_plan_that_contradicts_itself_is_refused_with_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let path = saved(folder.path());
    let plan: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let cases: [(&str, Value, &str); 13] = [
        ("/choices/ctx", json!(0), "the context is 0"),
        ("/choices/ctx", json!(8192), "flags for llama.cpp"),
        ("/choices/copies", json!(2), "depth"),
        ("/devices", json!([]), "0 devices"),
        ("/machine", json!([]), "of a machine of 0"),
        ("/devices/0/name", json!("\u{1b}[31mred"), "red` is `SIM0`"),
        ("/devices/0/weights", json!(u64::MAX), "the sum of its parts"),
        ("/pools/0/short", json!(1), "is not short by 1 bytes"),
        ("/fits", json!(false), "whether it fits"),
        ("/layers/3/device", json!("SIM9"), "`SIM9`"),
        ("/predicted/decode", json!(1e300), "makes no sense"),
        ("/version", json!(7), "version 7"),
        ("/policy", json!("worst"), "worst"),
    ];
    for (place, value, told) in cases {
        let mut changed = plan.clone();
        *changed.pointer_mut(place).unwrap() = value;
        std::fs::write(&path, changed.to_string()).unwrap();
        let file = path.to_str().unwrap();
        for arguments in [&["plan", file][..], &["diff", file, file], &["run", "--plan", file]] {
            let err = refused(arguments);
            assert!(err.contains("plan.json: no plan") && err.contains(told), "{place}: {err}");
            assert!(!err.contains('\u{1b}'), "{err:?}");
        }
    }
}

#[test]
fn a_name_from_a_file_does_not_steer_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("plan.json");
    let name = "sim:24GiB,name=\u{1b}[31mred\u{7}";
    let arguments = ["plan", "--device", name, "--no-longest", "--ngl", "7", "-o", path.to_str().unwrap()];
    for arguments in [&arguments[..], &["plan", path.to_str().unwrap()]] {
        let (out, err, status) = loadmaster(arguments);
        assert_eq!(status, 0, "{err}");
        assert!(out.contains("red") && !out.contains(['\u{1b}', '\u{7}']), "{out:?}");
    }
}

#[test]
fn weights_that_are_not_with_their_layer_are_told_with_their_bytes() {
    let model = header("mixtral-8x7b");
    let common = [&model, "--device", "sim:24GiB", "--override-tensor", r"blk\.([0-3]|9)\..*_exps=CPU"];
    let plan = planned(&common.map(|s| s as &str));
    let layers = plan["layers"].as_array().unwrap();
    let away = |i: usize| layers[i]["elsewhere"]["CPU"].as_u64();
    assert!(away(0).is_some() && away(3) == away(9) && away(4).is_none() && layers[4].get("elsewhere").is_none());
    let (text, _, _) = loadmaster(&[&["plan", "--no-longest"][..], &common.map(|s| s as &str)].concat());
    let line = text.lines().find(|l| l.contains("of weights by name on CPU: of layers 0 to 3, 9")).unwrap();
    assert!(line.starts_with("  ") && !line.starts_with("   "), "{text}");
}

#[test]
fn copies_auto_is_honoured_where_options_say_what_goes_where() {
    let model = header("llama3-8b");
    let common =
        [&model, "--device", "sim:24GiB", "--device", "sim:24GiB", "--tensor-split", "16,17", "--ubatch", "256"];
    let copies = |more: &[&str]| planned(&[&common.map(|s| s as &str)[..], more].concat())["copies"].as_u64().unwrap();
    assert_eq!((copies(&[]), copies(&["--copies", "3"])), (1, 3));
    assert!(copies(&["--copies", "auto"]) > 1);
}

#[test]
fn a_buffer_that_is_too_short_for_a_tensor_is_one_device_less_and_not_the_end() {
    let model = header("llama3-8b");
    let short = ["--device", "sim:24GiB,chunk=256MiB", "--ubatch", "2048"];
    // Scores of 1 GiB: on the other device.
    let plan = planned(&[&[&model as &str][..], &short, &["--device", "sim:24GiB"]].concat());
    assert_eq!(plan["fits"], true);
    assert!(plan["layers"].as_array().unwrap().iter().all(|l| l["device"] == "SIM1"), "{:#}", plan["layers"]);
    // Where there is no other, that is a no, with what would help.
    let asked = [&["plan", &model][..], &short, &["--n-gpu-layers", "33"]].concat();
    let (out, err, status) = loadmaster(&asked);
    assert_eq!(status, 1, "{err}");
    assert!(out.contains("it does not fit") && out.contains("kq-0"), "{out}");
    assert!(out.contains("it would with\n  a smaller micro-batch (--ubatch"), "{out}");
    let (out, _, status) = loadmaster(&[&asked[..], &["--format", "json"]].concat());
    let plan: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &plan["fits"], &plan["never_fits"]["buffer_type"]), (1, &json!(false), &json!("SIM0")));
    assert!(plan["relaxations"].as_array().unwrap().len() >= 2, "{plan:#}");
}

#[test]
fn a_placement_by_name_that_no_weight_has_is_told() {
    let model = header("llama3-8b");
    let asked = ["plan", &model, "--device", "sim:24GiB", "--no-longest", "--override-tensor", "nowhere=CPU"];
    let (out, err, status) = loadmaster(&asked);
    assert_eq!(status, 0, "{err}");
    assert!(out.contains("no weight has a name that `nowhere=CPU` matches"), "{out}");
}

/// Case (c), as it is planned: a mask of 131,072 × 512 × 2 bytes, once for each copy.
#[test]
fn a_long_mask_is_copied_only_where_a_deeper_pipeline_pays_for_it() {
    const MASK: u64 = 131_072 * 512 * 2;
    let model = header("llama3-8b");
    let common = [&model, "--device", "sim:80GiB", "--device", "sim:80GiB", "--ctx", "131072", "--flash-attn", "on"];
    let split = ["--tensor-split", "16,17", "--ubatch", "512"];
    let planned = |batch: &str, copies: &str| {
        planned(&[&common.map(|s| s as &str)[..], &split, &["--batch", batch, "--copies", copies]].concat())
    };
    assert_eq!(planned("512", "auto")["copies"], 1, "one micro-batch");
    let (plain, deep) = (planned("4096", "1"), planned("4096", "auto"));
    assert_eq!((&plain["copies"], &deep["copies"]), (&json!(1), &json!(2)), "eight micro-batches over two devices");
    let speed = |plan: &Value| plan["predicted"]["prefill"].as_f64().unwrap();
    assert!(speed(&deep) >= 1.7 * speed(&plain), "{} and {}", speed(&deep), speed(&plain));
    let masks = |plan: &Value, device: usize| {
        let alive = plan["devices"][device]["peak"]["alive"].as_array().unwrap();
        alive.iter().filter(|t| t["tensor"] == "attn_inp_kq_mask" && t["bytes"] == MASK).count()
    };
    for device in 0..2 {
        assert_eq!(masks(&deep, device), 2);
        let compute = |plan: &Value| plan["devices"][device]["compute"].as_u64().unwrap();
        assert!(compute(&deep) >= compute(&plain) + MASK);
    }
    assert_eq!(masks(&plain, 0), 1);
}

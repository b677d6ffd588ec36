//! What is refused: with which status, and which field it names.

use crate::support::{ask, config, empty, service, whole};
use loadmaster::serve::{Config, Limits, LoadSpec};
use serde_json::{Value, json};

#[test]
fn every_refusal_has_its_status_and_names_the_field() {
    let state = service(config());
    let long = "word ".repeat(3000);
    let huge = format!("{{\"prompt\":\"{}\"}}", "x".repeat(5 << 20));
    let cases: Vec<(&str, &str, String, u16, Value)> = vec![
        ("POST", "/v1/completions", "{".into(), 400, Value::Null),
        ("POST", "/v1/completions", "[1]".into(), 400, json!("[0]")),
        ("POST", "/v1/completions", "{}".into(), 400, json!("prompt")),
        ("POST", "/v1/completions", json!({"prompt": "x", "frob": 1}).to_string(), 400, json!("frob")),
        ("POST", "/v1/completions", json!({"prompt": "x", "n": 0}).to_string(), 400, json!("n")),
        ("POST", "/v1/completions", json!({"prompt": "x", "n": "2"}).to_string(), 400, json!("n")),
        ("POST", "/v1/completions", json!({"prompt": "x", "temperature": -1}).to_string(), 400, json!("temperature")),
        ("POST", "/v1/completions", json!({"prompt": "x", "top_p": 2}).to_string(), 400, json!("top_p")),
        ("POST", "/v1/completions", json!({"prompt": "x", "min_p": 2}).to_string(), 400, json!("min_p")),
        ("POST", "/v1/completions", json!({"prompt": "x", "max_tokens": 0}).to_string(), 400, json!("max_tokens")),
        ("POST", "/v1/completions", json!({"prompt": "x", "stop": [""]}).to_string(), 400, json!("stop")),
        ("POST", "/v1/completions", json!({"prompt": "x", "logprobs": 1000}).to_string(), 400, json!("logprobs")),
        ("POST", "/v1/completions", json!({"prompt": "x", "echo": true}).to_string(), 400, json!("echo")),
        ("POST", "/v1/completions", json!({"prompt": []}).to_string(), 400, json!("prompt")),
        ("POST", "/v1/completions", json!({"prompt": [99999]}).to_string(), 400, json!("prompt")),
        ("POST", "/v1/completions", json!({"prompt": vec!["a"; 9]}).to_string(), 400, json!("prompt")),
        ("POST", "/v1/completions", json!({"prompt": long}).to_string(), 413, json!("prompt")),
        ("POST", "/v1/completions", huge, 413, Value::Null),
        ("POST", "/v1/completions", json!({"model": "bob", "prompt": "x"}).to_string(), 404, json!("model")),
        ("POST", "/v1/chat/completions", json!({"messages": []}).to_string(), 400, json!("messages")),
        (
            "POST",
            "/v1/chat/completions",
            json!({"messages": [{"role": "cat", "content": "x"}]}).to_string(),
            400,
            json!("messages[0].role"),
        ),
        (
            "POST",
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "x"}], "tools": [1]}).to_string(),
            400,
            json!("tools"),
        ),
        ("POST", "/api/v1/models", json!({"id": "a/b", "path": "embedded"}).to_string(), 400, json!("id")),
        ("POST", "/api/v1/models", json!({"id": "alice", "path": "embedded"}).to_string(), 409, Value::Null),
        ("POST", "/api/v1/models", json!({"id": "b", "path": "../Cargo.toml"}).to_string(), 400, json!("path")),
        ("POST", "/api/v1/models", json!({"id": "b", "path": "/etc/passwd"}).to_string(), 400, json!("path")),
        ("POST", "/api/v1/models", json!({"id": "b", "path": "a/./../../b"}).to_string(), 400, json!("path")),
        ("POST", "/api/v1/models", json!({"id": "b", "path": "none.gguf"}).to_string(), 404, json!("path")),
        (
            "POST",
            "/api/v1/models",
            json!({"id": "b", "path": "embedded", "settings": {"kv_type": "f9"}}).to_string(),
            400,
            json!("settings"),
        ),
        (
            "POST",
            "/api/v1/models",
            json!({"id": "b", "path": "embedded", "settings": {"parallel": 0}}).to_string(),
            400,
            json!("settings.parallel"),
        ),
        ("DELETE", "/api/v1/models/bob", String::new(), 404, json!("model")),
        ("POST", "/api/v1/models/alice/pin", "{}".into(), 400, json!("pinned")),
        ("POST", "/api/v1/plans", json!({"ctx": 0}).to_string(), 400, json!("ctx")),
        ("POST", "/api/v1/plans", json!({"device": ["--output=x"]}).to_string(), 400, json!("model")),
        ("POST", "/api/v1/graphs", "{}".into(), 400, json!("graph")),
        ("GET", "/api/v1/models/alice/arena", String::new(), 400, json!("device")),
        ("GET", "/api/v1/models/alice/arena?device=SIM0&graph=x", String::new(), 400, json!("graph")),
        ("GET", "/api/v1/models/alice/arena?device=SIM9&graph=decode", String::new(), 404, Value::Null),
        ("GET", "/api/v1/traces/none", String::new(), 404, Value::Null),
        ("GET", "/nowhere", String::new(), 404, Value::Null),
        ("PUT", "/v1/models", String::new(), 405, Value::Null),
    ];
    for (method, path, body, status, field) in cases {
        let (found, answer) = ask(&state, method, path, &body);
        let short = &body[..body.len().min(90)];
        assert_eq!(found.as_u16(), status, "{method} {path} {short}: {answer}");
        assert_eq!(answer["error"]["param"], field, "{method} {path} {short}: {answer}");
        assert!(!answer["error"]["message"].as_str().unwrap().is_empty());
    }
    let (status, ..) = whole(&state, "POST", "/v1/completions", "{}", &[("content-type", "text/plain")]);
    assert_eq!(status, 415);
    assert_eq!(ask(&state, "POST", "/v1/completions", &json!({"prompt": "x"}).to_string()).0, 200);
}

#[test]
fn over_capacity_says_where_how_much_and_what_would_help() {
    let state = empty(config(), &["sim:3MiB", "cpu:3MiB"]);
    let body = json!({ "id": "a", "path": "embedded", "settings": { "ctx": 8192 } });
    let (status, answer) = ask(&state, "POST", "/api/v1/models", &body.to_string());
    assert_eq!(status, 503, "{answer}");
    let error = &answer["error"];
    assert_eq!(error["code"], "over_capacity");
    let (needed, free) = (error["needed"].as_u64().unwrap(), error["free"].as_u64().unwrap());
    assert_eq!(error["deficit"].as_u64().unwrap(), needed - free);
    assert!(["SIM0", "CPU"].contains(&error["device"].as_str().unwrap()));
    assert!(error["relaxations"].is_array());
    assert_eq!(state.models().len(), 0);
}

#[test]
fn a_token_is_asked_for_everywhere_but_for_health_and_the_page() {
    let token = "a token of some length".replace(' ', "-");
    let state = empty(Config { token: Some(token.clone()), ..config() }, &["sim:8MiB"]);
    for path in ["/v1/models", "/api/v1/placement", "/api/openapi.json", "/metrics", "/nowhere"] {
        let given = |auth: &str| whole(&state, "GET", path, "", &[("authorization", auth)]).0.as_u16();
        let known = if path == "/nowhere" { 404 } else { 200 };
        assert_eq!(ask(&state, "GET", path, "").0, 401, "{path}");
        assert_eq!(given(&format!("Bearer {token}")), known, "{path}");
        assert_eq!(given(&format!("bearer {token}")), known, "{path}");
        for wrong in [&token[1..], &format!("{token}x"), ""] {
            assert_eq!(given(&format!("Bearer {wrong}")), 401, "{path} with {wrong}");
        }
    }
    assert_eq!(ask(&state, "GET", "/health", "").0, 200);
    assert_eq!(ask(&state, "GET", "/", "").0, 200);
}

#[test]
fn plans_and_graphs_are_what_the_commands_print() {
    let state = service(config());
    // On the second machine some tensor is longer than any buffer.
    for (device, fits) in [("sim:64MiB", true), ("sim:64MiB,chunk=4KiB", false)] {
        let question = json!({"device": [device, device], "n_gpu_layers": 99, "no_longest": true}).to_string();
        let (status, plan) = ask(&state, "POST", "/api/v1/plans", &question);
        assert_eq!((status.as_u16(), &plan["fits"], plan["never_fits"].is_null()), (200, &json!(fits), fits), "{plan}");
        let command = assert_cmd::Command::cargo_bin("loadmaster")
            .unwrap()
            .args(["plan", "--device", device, "--device", device, "--n-gpu-layers", "99", "--no-longest"])
            .args(["--format", "json"])
            .output()
            .unwrap();
        assert_eq!(plan, serde_json::from_slice::<Value>(&command.stdout).unwrap());
    }
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/random");
    let mut files: Vec<_> = dir.read_dir().unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let file = loadmaster_graph::file::GraphFile::read_path(&files[0]).unwrap();
    let (status, graph) = ask(&state, "POST", "/api/v1/graphs?policy=ggml", &file.to_json().unwrap());
    assert_eq!(status, 200, "{graph}");
    let command = assert_cmd::Command::cargo_bin("loadmaster")
        .unwrap()
        .args(["explain", "--policy", "ggml", "--format", "json"])
        .arg(&files[0])
        .output()
        .unwrap();
    assert_eq!(graph, serde_json::from_slice::<Value>(&command.stdout).unwrap());
    assert_eq!(state.models().len(), 1);
}

#[test]
fn the_document_describes_every_path_that_answers() {
    let state = service(config());
    let (_, document) = ask(&state, "GET", "/api/openapi.json", "");
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() >= 16, "{:?}", paths.keys());
    for (path, item) in paths.iter().filter(|(_, item)| item["get"].is_object()) {
        if path == "/api/v1/events" {
            continue;
        }
        let real = path.replace("{id}", "alice");
        let (status, _) = ask(&state, "GET", &real, "");
        let told = item["get"]["responses"].as_object().unwrap();
        assert!(told.contains_key(status.as_str()), "{path} answers {status}");
    }
}

#[test]
fn limits_of_the_file_are_the_defaults_and_every_range_is_checked() {
    let text = include_str!("../../configs/serve/default.toml");
    let config = Config::parse(text).unwrap();
    assert_eq!(config.limits, Limits::default());
    let plain = Config::default();
    assert_eq!((config.listen, config.models, config.slots), (plain.listen, plain.models, plain.slots));
    for bad in [
        "slots = 0",
        "context = 0",
        "frob = 1",
        "[limits]\nmodels = 17",
        "[limits]\nbody_bytes = 0",
        "[limits]\nheader_seconds = 0",
        "[limits]\nfrob = 1",
        // A semaphore takes no such number, and a queue of this length is none.
        "[limits]\nfollowers = 9223372036854775807",
        "[limits]\nqueue = 9223372036854775807",
        "[limits]\nstops = 9223372036854775807",
        "[limits]\nstop_bytes = 0",
        "listen = \"here\"",
    ] {
        let error = Config::parse(bad).unwrap_err().to_string();
        let key = bad.rsplit('\n').next().unwrap().split(' ').next().unwrap();
        assert!(error.contains(key), "{bad}: {error}");
    }
    let spec = LoadSpec::embedded("x");
    assert_eq!(spec.path, "embedded");
}

//! Input that nobody means well with: refused with the field, and the service goes on.

use crate::support::{Server, ask, config, empty, parse, service};
use axum::http::StatusCode;
use loadmaster::serve::Config;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::TcpStream;

fn send(server: &Server, path: &str, body: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    parse(&String::from_utf8(answer).unwrap())
}

#[test]
fn bodies_that_are_nearly_json_are_refused_and_the_service_goes_on() {
    let state = service(config());
    let server = Server::start(&state);
    let deep = [vec![b'['; 200_000], b"]".repeat(200_000)].concat();
    let deep_prompt = [b"{\"prompt\":".as_slice(), &deep, b"}"].concat();
    let bodies: Vec<Vec<u8>> = vec![
        deep,
        deep_prompt,
        b"{\"prompt\":\"\xff\xfe\"}".to_vec(),
        b"{\"prompt\":\"\\ud800\"}".to_vec(),
        b"{\"prompt\":\"x\",\"prompt\":\"y\"}".to_vec(),
        b"{\"prompt\":\"x\"} {}".to_vec(),
        b"\xef\xbb\xbf{\"prompt\":\"x\"}".to_vec(),
        b"{\"prompt\":\"x\",\"temperature\":NaN}".to_vec(),
        b"{\"prompt\":\"x\",\"temperature\":1e999}".to_vec(),
        b"null".to_vec(),
        vec![0; 64],
        Vec::new(),
    ];
    for path in ["/v1/completions", "/v1/chat/completions", "/api/v1/models", "/api/v1/plans", "/api/v1/graphs"] {
        for body in &bodies {
            let (status, said) = send(&server, path, body);
            let start = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            assert_eq!(status, 400, "{path} {start}: {said}");
            let said: Value = serde_json::from_str(&said).unwrap();
            assert!(!said["error"]["message"].as_str().unwrap().is_empty());
        }
    }
    assert_eq!(ask(&state, "POST", "/v1/completions", &json!({ "prompt": "x", "max_tokens": 1 }).to_string()).0, 200);
}

#[test]
fn numbers_beyond_sense_are_refused_with_their_field() {
    let state = service(config());
    let completions = [
        ("temperature", "1e300"),
        ("temperature", "-0.1"),
        ("top_p", "0"),
        ("top_p", "-1e-30"),
        ("repeat_penalty", "0"),
        ("repeat_penalty", "1e39"),
        ("frequency_penalty", "1e300"),
        ("presence_penalty", "-2"),
        ("max_tokens", "-1"),
        ("max_tokens", "4294967295"),
        ("max_tokens", "4294967296"),
        ("max_tokens", "1.5"),
        ("n", "0"),
        ("n", "-1"),
        ("n", "18446744073709551616"),
        ("top_k", "-1"),
        ("logprobs", "-1"),
        ("seed", "9223372036854775808"),
        ("seed", "0.5"),
        ("best_of", "3"),
        ("logit_bias", "{\"1\":1}"),
        ("stop", "[\"\"]"),
        ("stream_options", "{\"frob\":1}"),
    ];
    for (field, value) in completions {
        let body = format!("{{\"prompt\":\"x\",\"{field}\":{value}}}");
        let (status, said) = ask(&state, "POST", "/v1/completions", &body);
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}: {said}");
        let param = said["error"]["param"].as_str().unwrap();
        assert!(param == field || param.starts_with(&format!("{field}.")), "{body}: {said}");
    }
    let settings = [
        ("ctx", json!(0)),
        ("ctx", json!(u32::MAX)),
        ("ubatch", json!(0)),
        ("ubatch", json!(u32::MAX)),
        ("parallel", json!(u32::MAX)),
        ("tensor_split", json!([-1.0, 1.0])),
        ("tensor_split", json!([3e38, 3e38])),
        ("tensor_split", json!([1e300])),
        ("tensor_split", json!(vec![1.0; 100])),
        ("override_tensor", json!(["("])),
        ("override_tensor", json!([r"(\w{200}){200}=CPU"])),
        ("override_tensor", json!(vec![r"\w{40}=CPU"; 50_000])),
    ];
    for (field, value) in settings {
        let body = json!({ "id": "b", "path": "embedded", "settings": { field: value } }).to_string();
        let (status, said) = ask(&state, "POST", "/api/v1/models", &body);
        assert_eq!(status, StatusCode::BAD_REQUEST, "{}: {said}", &body[..body.len().min(120)]);
        assert!(said["error"]["param"].as_str().unwrap().starts_with("settings"), "{said}");
    }
    let many = json!({ "override_tensor": vec![r"\w{40}=CPU"; 50_000] }).to_string();
    assert_eq!(ask(&state, "POST", "/api/v1/plans", &many).0, StatusCode::BAD_REQUEST);
    assert_eq!(state.models().len(), 1);
}

#[test]
fn no_path_leads_out_of_the_directory_of_models() {
    let outside = tempfile::tempdir().unwrap();
    let models = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret.gguf"), b"GGUF").unwrap();
    std::fs::write(models.path().join("own.gguf"), b"no model").unwrap();
    let state = empty(Config { models: models.path().to_owned(), ..config() }, &["sim:8MiB"]);
    let said = |path: &str| {
        let (status, said) = ask(&state, "POST", "/api/v1/models", &json!({ "id": "b", "path": path }).to_string());
        assert_eq!(said["error"]["param"], "path", "{path:?}: {said}");
        let message = said["error"]["message"].as_str().unwrap().to_owned();
        assert!(!message.contains(&*models.path().to_string_lossy()), "{message}");
        (status.as_u16(), message)
    };
    let absolute = outside.path().join("secret.gguf").to_string_lossy().into_owned();
    for path in ["..", "../secret.gguf", "a/../../secret.gguf", "..\\secret.gguf", "a\0b", "", ".", "/", &absolute] {
        assert_eq!(said(path).0, 400, "{path:?}");
    }
    for path in ["none.gguf", &"x".repeat(100_000), &"x/".repeat(50_000), "%2e%2e/secret.gguf"] {
        assert_eq!(said(path).0, 404, "{path:?}");
    }
    let (status, own) = said("own.gguf");
    assert_eq!(status, 400, "{own}");
    assert!(!own.contains("leads out"), "{own}");
    #[cfg(unix)]
    {
        std::os::unix::fs::symlink(outside.path(), models.path().join("folder")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret.gguf"), models.path().join("link.gguf")).unwrap();
        std::os::unix::fs::symlink(models.path().join("own.gguf"), models.path().join("inside.gguf")).unwrap();
        for path in ["folder/secret.gguf", "link.gguf"] {
            let (status, message) = said(path);
            assert!(status == 400 && message.contains("leads out"), "{path}: {message}");
        }
        assert!(!said("inside.gguf").1.contains("leads out"));
    }
}

/// Whoever comes second is told so; at the end nothing is held that nobody has.
#[test]
fn loads_and_unloads_of_one_id_at_once_leave_nothing_behind() {
    let state = empty(config(), &["sim:64MiB", "sim:64MiB"]);
    let held = || -> Vec<u64> {
        state
            .core
            .devices
            .values()
            .map(|d| d.memory())
            .map(|m| m.total.unwrap_or_default().get() - m.free.unwrap_or_default().get())
            .collect()
    };
    let before = held();
    let body = json!({ "id": "a", "path": "embedded" }).to_string();
    let statuses: BTreeSet<u16> = std::thread::scope(|scope| {
        let client = |c: usize| {
            let (state, body) = (&state, &body);
            move || -> Vec<u16> {
                let turn = |i: usize| match (c + i) % 2 {
                    0 => ask(state, "POST", "/api/v1/models", body).0.as_u16(),
                    _ => ask(state, "DELETE", "/api/v1/models/a", "").0.as_u16(),
                };
                (0..12).map(turn).collect()
            }
        };
        let clients: Vec<_> = (0..4).map(|c| scope.spawn(client(c))).collect();
        clients.into_iter().flat_map(|c| c.join().unwrap()).collect()
    });
    assert!(statuses.is_subset(&BTreeSet::from([200, 201, 404, 409])), "{statuses:?}");
    while ask(&state, "DELETE", "/api/v1/models/a", "").0 == StatusCode::OK {}
    assert_eq!(state.models().len(), 0);
    assert!(state.core.ledger.lock().holdings().is_empty());
    assert_eq!(held(), before);
}

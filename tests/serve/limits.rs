//! Queues, slow clients, followers, and the end.

use crate::support::{Server, config, data, parse, service, sim, until};
use loadmaster::serve::{Config, Limits};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

#[test]
fn more_than_may_wait_is_told_to_come_back() {
    let limits = Limits { queue: 2, ..Limits::default() };
    let state = service(Config { slots: 1, limits, ..config() });
    let server = Server::start(&state);
    let body = json!({ "prompt": "Alice", "max_tokens": 2, "temperature": 0 }).to_string();
    sim(&state, 0).faults().stall();
    let mut taken = vec![server.send("POST", "/v1/completions", &body)];
    until("it runs", || state.model(None).unwrap().mailbox.depth() == (0, 1));
    for waiting in 1..=2 {
        taken.push(server.send("POST", "/v1/completions", &body));
        until("it waits", || state.model(None).unwrap().mailbox.depth() == (waiting, 1));
    }
    let mut refused = String::new();
    server.send("POST", "/v1/completions", &body).read_to_string(&mut refused).unwrap();
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(refused.to_ascii_lowercase().contains("\r\nretry-after: 1\r\n"), "{refused}");
    sim(&state, 0).faults().release();
    for mut stream in taken {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(parse(&answer).0, 200);
    }
}

#[test]
fn slow_heads_and_slow_bodies_are_cut_off_and_others_are_served() {
    let limits = Limits { header_seconds: 1, body_seconds: 1, connections: 4, ..Limits::default() };
    let state = service(Config { limits, ..config() });
    let server = Server::start(&state);
    // As many as there may be connections: whoever comes next is served only because these are cut off.
    let mut slow: Vec<TcpStream> = (0..4).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: here\r\nx-slow: ").unwrap();
    }
    assert_eq!(server.ask("GET", "/health", &Value::Null).0, 200);
    for mut stream in slow {
        let mut rest = Vec::new();
        // Closed, or reset.
        let _ = stream.read_to_end(&mut rest);
        assert!(!String::from_utf8_lossy(&rest).contains("200 OK"));
    }
    let mut stream = TcpStream::connect(server.address).unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert_eq!(parse(&answer).0, 408, "{answer}");
}

#[test]
fn a_connection_that_asks_nothing_more_is_closed() {
    let limits = Limits { request_seconds: 1, ..Limits::default() };
    let state = service(Config { limits, ..config() });
    let server = Server::start(&state);
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.write_all(b"GET /health HTTP/1.1\r\nhost: here\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
}

#[test]
fn bytes_that_are_no_http_are_refused() {
    let state = service(config());
    let server = Server::start(&state);
    for bytes in [&b"\x16\x03\x01\x02\x00"[..], b"GET\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: -1\r\n\r\n"] {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.write_all(bytes).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert!(!answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    }
    assert_eq!(server.ask("GET", "/health", &Value::Null).0, 200);
}

#[test]
fn whoever_follows_is_told_what_happens_and_where_to_go_on() {
    let state = service(config());
    let server = Server::start(&state);
    let follow = |last: u64| {
        let mut stream = TcpStream::connect(server.address).unwrap();
        let head = format!("GET /api/v1/events HTTP/1.1\r\nhost: here\r\nlast-event-id: {last}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        BufReader::new(stream)
            .lines()
            .map_while(Result::ok)
            .filter_map(|l| l.strip_prefix("data: ").map(|d| serde_json::from_str::<Value>(d).unwrap()))
    };
    let mut seen = Vec::new();
    let mut events = follow(0);
    while !seen.iter().any(|e: &Value| e["kind"] == "stats") {
        seen.push(events.next().unwrap());
    }
    let kinds: Vec<&str> = seen.iter().map(|e| e["kind"].as_str().unwrap()).collect();
    for kind in ["copy_path", "admission", "reserve", "load"] {
        assert!(kinds.contains(&kind), "{kind} is not among {kinds:?}");
    }
    let last = seen.iter().filter_map(|e| e["seq"].as_u64()).max().unwrap();
    let mut later = follow(last);
    assert_eq!(server.ask("DELETE", "/api/v1/models/alice", &Value::Null).0, 200);
    let unload = later.find(|e| e["kind"] == "unload").unwrap();
    assert!(unload["seq"].as_u64().unwrap() > last);
    assert_eq!(unload["model"], "alice");
}

#[test]
fn the_end_waits_for_what_runs_and_takes_nothing_new() {
    let state = service(config());
    let mut server = Server::start(&state);
    sim(&state, 0).faults().stall();
    let body = json!({ "prompt": "Alice", "max_tokens": 20, "temperature": 0, "stream": true }).to_string();
    let mut runs = server.send("POST", "/v1/completions", &body);
    until("it runs", || state.model(None).unwrap().mailbox.depth() == (0, 1));
    server.stop();
    until("it ends", || state.is_ending());
    assert!(state.load(&loadmaster::serve::LoadSpec::embedded("late")).is_err());
    sim(&state, 0).faults().release();
    let mut answer = String::new();
    runs.read_to_string(&mut answer).unwrap();
    assert_eq!(data(&parse(&answer).1).last(), Some(&"[DONE]"));
    server.join();
    assert!(state.models().is_empty());
    let held = state.core.devices.values().map(|d| d.memory().free).collect::<Vec<_>>();
    assert_eq!(held[0], state.core.devices.values().next().unwrap().memory().total);
}

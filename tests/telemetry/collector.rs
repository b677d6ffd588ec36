//! A collector on a socket of this machine.

use crate::support::listened;
use loadmaster::telemetry::{Options, Telemetry};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};

/// A request: its first line and its body.
type Request = (String, Vec<u8>);

/// Answers requests until one says so, and returns them.
fn collect(listener: &TcpListener) -> Vec<Request> {
    let mut requests = Vec::new();
    for stream in listener.incoming().map(Result::unwrap) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let Some(request) = read(&mut reader) else { continue };
        if request.0.starts_with("STOP") {
            return requests;
        }
        requests.push(request);
        (&stream).write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").unwrap();
    }
    requests
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let (mut first, mut length) = (String::new(), 0);
    if reader.read_line(&mut first).ok()? == 0 {
        return None;
    }
    for line in reader.by_ref().lines() {
        let line = line.ok()?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        length = line.strip_prefix("content-length:").map_or(length, |n| n.trim().parse().unwrap());
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some((first.trim().to_owned(), body))
}

#[test]
fn a_collector_receives_the_spans_of_every_stage() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let requests = std::thread::scope(|scope| {
        let collecting = scope.spawn(|| collect(&listener));
        listened(&Options { otlp: Some(format!("http://{address}")), ..Options::default() }, 1);
        TcpStream::connect(address).unwrap().write_all(b"STOP\r\n\r\n").unwrap();
        collecting.join().unwrap()
    });
    assert!(!requests.is_empty(), "nothing came");
    assert!(requests.iter().all(|(first, _)| first == "POST /v1/traces HTTP/1.1"), "{:?}", requests[0].0);
    let all: Vec<u8> = requests.into_iter().flat_map(|(_, body)| body).collect();
    for name in ["loadmaster", "plan", "reserve", "bind", "split", "copy", "sync", "token", "SIM0→SIM1"] {
        let found = all.windows(name.len()).any(|part| part == name.as_bytes());
        assert!(found, "{name} did not arrive");
    }
}

#[test]
fn an_endpoint_that_is_none_is_an_error_that_quotes_it() {
    let options = Options { otlp: Some("not an address".to_owned()), ..Options::default() };
    let error = Telemetry::new(&options, "off").err().unwrap();
    assert!(error.to_string().starts_with("--otlp not an address: "), "{error}");
}

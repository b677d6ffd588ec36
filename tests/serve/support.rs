//! A service with virtual GPUs, and a small client.

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use loadmaster::serve::{Config, LoadSpec, ServiceState, app, serve};
use loadmaster_backends::SimDevice;
use loadmaster_graph::DeviceId;
use loadmaster_sched::{DeviceSpec, Machine};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;
use tower::ServiceExt;

/// Small enough that loading is quick.
pub fn config() -> Config {
    Config { slots: 4, context: 128, ..Config::default() }
}

/// A service on these devices, with no model.
pub fn empty(config: Config, devices: &[&str]) -> Arc<ServiceState> {
    let specs: Vec<DeviceSpec> = devices.iter().map(|d| d.parse().unwrap()).collect();
    let machine = Machine::from_specs(&specs).unwrap();
    let devices = loadmaster_sched::exec::open(&machine, NonZeroUsize::MIN).unwrap();
    ServiceState::new(config, machine, devices).unwrap()
}

/// A service with the embedded model on two virtual GPUs.
pub fn service(config: Config) -> Arc<ServiceState> {
    let state = empty(config, &["sim:64MiB", "sim:64MiB"]);
    state.load(&LoadSpec::embedded("alice")).unwrap();
    state
}

/// A virtual GPU of a service.
pub fn sim(state: &ServiceState, index: usize) -> &SimDevice {
    state.core.devices[DeviceId::new(index)].as_any().downcast_ref().unwrap()
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Asks the router. Answers status and body; headers that matter are asked for by [`whole`].
pub fn ask(state: &Arc<ServiceState>, method: &str, path: &str, body: &str) -> (StatusCode, Value) {
    let (status, _, text) = whole(state, method, path, body, &[("content-type", "application/json")]);
    (status, serde_json::from_str(&text).unwrap_or(Value::Null))
}

/// The same with headers, and the body as it came.
pub fn whole(
    state: &Arc<ServiceState>,
    method: &str,
    path: &str,
    body: &str,
    headers: &[(&str, &str)],
) -> (StatusCode, axum::http::HeaderMap, String) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::from(body.to_owned())).unwrap();
    let app = app(state);
    runtime().block_on(async move {
        let response = app.oneshot(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, headers, String::from_utf8(bytes.to_vec()).unwrap())
    })
}

/// A service over a real socket.
pub struct Server {
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(state: &Arc<ServiceState>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, state) = (listener.local_addr().unwrap(), Arc::clone(state));
        let thread = std::thread::spawn(move || {
            runtime().block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let until = async {
                    let _ = stopped.await;
                };
                serve(state, listener, until).await.unwrap();
            });
        });
        Self { address, stop: Some(stop), thread: Some(thread) }
    }

    /// Tells it to end.
    pub fn stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits until it has ended.
    pub fn join(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }

    /// Sends a request and reads to the end: status and body.
    pub fn ask(&self, method: &str, path: &str, body: &Value) -> (u16, String) {
        let mut stream = self.send(method, path, &body.to_string());
        let mut text = Vec::new();
        stream.read_to_end(&mut text).unwrap();
        parse(&String::from_utf8(text).unwrap())
    }

    /// Sends a request.
    pub fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: here\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        stream
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Status and body of an answer.
pub fn parse(answer: &str) -> (u16, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
    (status, if chunked { unchunked(body) } else { body.to_owned() })
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length.trim(), 16).unwrap();
        if length == 0 {
            break;
        }
        whole += &rest[..length];
        body = &rest[length + 2..];
    }
    whole
}

/// The data of a stream of events.
pub fn data(events: &str) -> Vec<&str> {
    events.lines().filter_map(|l| l.strip_prefix("data: ")).collect()
}

/// Waits, without sleeping, until something holds.
pub fn until(what: &str, holds: impl Fn() -> bool) {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed().as_secs() < 60, "never: {what}");
        std::thread::yield_now();
    }
}

/// A completion.
pub fn completion(prompt: &str, seed: u64, tokens: u32) -> Value {
    json!({ "prompt": prompt, "seed": seed, "max_tokens": tokens, "temperature": 0.9, "logprobs": 1 })
}

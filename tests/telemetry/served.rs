//! A scrape of the service: what it says is what the ledger holds, before and after models come and go.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use loadmaster::serve::requests::Requests;
use loadmaster::serve::scrape::snapshot;
use loadmaster::serve::{Config, End, LoadSpec, ServiceState, app};
use loadmaster::telemetry::{Options, Telemetry};
use loadmaster_sched::Machine;
use serde_json::Value;
use std::num::NonZeroUsize;
use std::sync::Arc;
use tower::ServiceExt;

fn service() -> Arc<ServiceState> {
    let specs = ["sim:64MiB", "sim:64MiB"].map(|s| s.parse().unwrap());
    let machine = Machine::from_specs(&specs).unwrap();
    let devices = loadmaster_sched::exec::open(&machine, NonZeroUsize::MIN).unwrap();
    ServiceState::new(Config::default(), machine, devices).unwrap()
}

async fn get(state: &Arc<ServiceState>, path: &str) -> String {
    let answer = app(state).oneshot(Request::get(path).body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK, "{path}");
    String::from_utf8(axum::body::to_bytes(answer.into_body(), usize::MAX).await.unwrap().to_vec()).unwrap()
}

/// Of the series whose names begin so: the sum.
fn sum(scraped: &str, begin: &str, with: &str) -> u64 {
    let lines = scraped.lines().filter(|l| l.starts_with(begin) && l.contains(with));
    lines.map(|l| l.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

/// By device: what the ledger, the API and the scrape say is the same, and what devices count covers it.
async fn agree(state: &Arc<ServiceState>) -> u64 {
    let scraped = get(state, "/metrics").await;
    let placement: Value = serde_json::from_str(&get(state, "/api/v1/placement").await).unwrap();
    let mut all = 0;
    for (device, told) in snapshot(state).devices.iter().zip(placement["devices"].as_array().unwrap()) {
        let of = format!("device=\"{}\"", device.device);
        assert_eq!(told["used"], device.used);
        assert_eq!(sum(&scraped, "loadmaster_memory_bytes{", &of), device.used);
        assert_eq!(sum(&scraped, &format!("loadmaster_device_bytes{{{of}"), "state=\"used\""), device.used);
        for (i, model) in device.models.iter().enumerate() {
            let told = &told["models"][i];
            let held = [model.weights, model.kv, model.compute, model.workspace, model.compute_bound];
            let said = ["weights", "kv", "compute", "workspace", "compute_bound"].map(|f| told[f].as_u64().unwrap());
            assert_eq!(held, said);
        }
        all += device.used;
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_scrape_of_the_service_says_what_the_ledger_holds() {
    let state = service();
    assert_eq!(agree(&state).await, 0);
    let one = {
        tokio::task::block_in_place(|| state.load(&LoadSpec::embedded("one"))).unwrap();
        agree(&state).await
    };
    assert!(one > 0);
    tokio::task::block_in_place(|| state.load(&LoadSpec::embedded("two"))).unwrap();
    assert_eq!(agree(&state).await, 2 * one, "the same model twice holds twice the bytes");
    tokio::task::block_in_place(|| state.unload("one", End::Now)).unwrap();
    assert_eq!(agree(&state).await, one);
    assert!(!get(&state, "/metrics").await.contains("model=\"one\""), "no series of a model that went");
    tokio::task::block_in_place(|| state.end(End::Now));
}

/// Times of a trace count from the beginning of its request; the log's from the beginning of the service.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spans_of_a_trace_count_from_the_beginning_of_its_request() {
    let requests = Requests::default();
    // In the whole process: the model's thread is not this one.
    let running = Telemetry::new(&Options::default(), "off").unwrap().with_queue_log(requests.log()).start().unwrap();
    let specs = ["sim:64MiB", "sim:64MiB"].map(|s| s.parse().unwrap());
    let machine = Machine::from_specs(&specs).unwrap();
    let devices = loadmaster_sched::exec::open(&machine, NonZeroUsize::MIN).unwrap();
    let state = ServiceState::with_requests(Config::default(), machine, devices, requests).unwrap();
    tokio::task::block_in_place(|| state.load(&LoadSpec::embedded("one"))).unwrap();
    let body = Body::from(r#"{"prompt": "Alice", "max_tokens": 4, "temperature": 0}"#);
    let asked = Request::post("/v1/completions").header("content-type", "application/json").body(body).unwrap();
    let answer = app(&state).oneshot(asked).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    // Unloading waits for the model's thread: the request is noted by then.
    tokio::task::block_in_place(|| state.unload("one", End::Drained)).unwrap();
    let id = state.core.requests.list()[0].id.clone();
    let kept = state.core.requests.trace(&id).unwrap();
    let told: Value = serde_json::from_str(&get(&state, &format!("/api/v1/traces/{id}")).await).unwrap();
    let spans = told["spans"].as_array().unwrap();
    let start = kept.request.start.as_nanos() as f64;
    assert!(!spans.is_empty() && spans.len() == kept.spans.len());
    for (told, kept) in spans.iter().zip(&kept.spans) {
        for (told, kept) in [(&told["start_us"], kept.start), (&told["end_us"], kept.end)] {
            let since = (kept.as_nanos() as f64 - start) / 1000.0;
            assert!((told.as_f64().unwrap() - since).abs() < 0.001, "{told} is not {since}");
        }
        assert!(told["end_us"].as_f64() >= told["start_us"].as_f64());
    }
    running.finish().unwrap();
}

//! A scrape of the service: what it says is what the ledger holds, before and after models come and go.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use loadmaster::serve::scrape::snapshot;
use loadmaster::serve::{Config, End, LoadSpec, ServiceState, app};
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
            let held = [model.weights, model.kv, model.compute, model.compute_bound];
            let said = ["weights", "kv", "compute", "compute_bound"].map(|f| told[f].as_u64().unwrap());
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

//! The page before the real service: two virtual GPUs, the embedded model, requests that run.

use crate::browser::Browser;
use crate::page::{NARROW, WIDE, pixels, value};
use loadmaster::serve::requests::Requests;
use loadmaster::serve::{Config, End, LoadSpec, ServiceState, app};
use loadmaster::telemetry::{Options, Running, Telemetry};
use loadmaster_sched::Machine;
use serde_json::{Value, json};
use std::num::NonZeroUsize;
use std::sync::Arc;

/// What is served, on a socket of this machine; it ends with its value.
struct Served {
    url: String,
    state: Arc<ServiceState>,
    _running: Running,
    _runtime: tokio::runtime::Runtime,
}

impl Served {
    fn start() -> Self {
        let requests = Requests::default();
        let listening = Telemetry::new(&Options::default(), "off").unwrap().with_queue_log(requests.log());
        // The only test here that listens in the whole process.
        let running = listening.start().unwrap();
        let specs = ["sim:64MiB", "sim:64MiB"].map(|s| s.parse().unwrap());
        let machine = Machine::from_specs(&specs).unwrap();
        let devices = loadmaster_sched::exec::open(&machine, NonZeroUsize::MIN).unwrap();
        let state = ServiceState::with_requests(Config::default(), machine, devices, requests).unwrap();
        state.load(&LoadSpec::embedded("alice")).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let routes = app(&state);
        runtime.spawn(async move { axum::serve(listener, routes).await });
        Self { url, state, _running: running, _runtime: runtime }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.state.end(End::Now);
    }
}

fn asked(browser: &mut Browser, path: &str) -> Value {
    browser.eval(&format!("fetch('{path}').then((a) => a.json())"))
}

fn complete(browser: &mut Browser, tokens: u32) -> Value {
    let body = json!({ "model": "alice", "prompt": "Alice was beginning", "max_tokens": tokens, "temperature": 0 });
    let asks = "method: 'POST', headers: { 'Content-Type': 'application/json' }";
    browser.eval(&format!("fetch('/v1/completions', {{ {asks}, body: `{body}` }}).then((a) => a.json())"))
}

/// The devices' numbers on the page are those of the API.
fn check_memory(browser: &mut Browser, placement: &Value) -> usize {
    let mut held = 0;
    for device in placement["devices"].as_array().unwrap() {
        let at = format!(".device[data-device=\"{}\"]", device["name"].as_str().unwrap());
        assert_eq!(device["used"], value(browser, &format!("{at} > header [data-field=used]")));
        for model in device["models"].as_array().unwrap() {
            for field in ["weights", "kv", "compute", "compute_bound"] {
                assert_eq!(model[field], value(browser, &format!("{at} tbody [data-field={field}]")), "{at} {field}");
            }
            held += 1;
        }
    }
    held
}

/// What is scraped is what the API says of the ledger.
fn check_scrape(text: &str, placement: &Value) {
    let of = |series: String| -> u64 {
        let line =
            text.lines().find_map(|l| l.strip_prefix(&series)).unwrap_or_else(|| panic!("no {series} in {text}"));
        line.trim().parse().unwrap()
    };
    for device in placement["devices"].as_array().unwrap() {
        let name = device["name"].as_str().unwrap();
        let pool_of = |line: &str| line.split("pool=\"").nth(1).unwrap().split('"').next().unwrap().to_owned();
        let first = format!("loadmaster_device_bytes{{device=\"{name}\"");
        let pool = pool_of(text.lines().find(|l| l.starts_with(&first)).unwrap());
        let labels = format!("device=\"{name}\",pool=\"{pool}\"");
        assert_eq!(device["used"], of(format!("loadmaster_device_bytes{{{labels},state=\"used\"}}")));
        for model in device["models"].as_array().unwrap() {
            for kind in ["weights", "kv", "compute"] {
                let model_name = model["model"].as_str().unwrap();
                let series = format!("loadmaster_memory_bytes{{{labels},model=\"{model_name}\",kind=\"{kind}\"}}");
                assert_eq!(model[kind], of(series));
            }
        }
    }
    let copies = text.lines().filter(|l| l.starts_with("loadmaster_copies_total{"));
    assert!(copies.clone().any(|l| l.contains("SIM0→SIM1")), "{:?}", copies.collect::<Vec<_>>());
    assert!(of("loadmaster_tokens_total{kind=\"generated\"}".to_owned()) >= 12);
}

#[test]
fn the_page_shows_what_the_service_does() {
    let Some(mut browser) = Browser::start() else { return };
    let served = Served::start();
    browser.open(&served.url, WIDE, "light");
    browser.until("document.querySelector('#arena-facts [data-field=size]') && document.getElementById('connection').dataset.state === 'live'");
    let answer = complete(&mut browser, 12);
    assert_eq!(answer["usage"]["completion_tokens"], 12, "{answer}");
    browser.until("document.querySelector('#trace-facts [data-field=splits]')");
    browser.until("document.querySelector('#stats [data-field=requests]').value === '1'");
    let placement = asked(&mut browser, "/api/v1/placement");
    assert!(check_memory(&mut browser, &placement) >= 2);
    let scraped = browser.eval("fetch('/metrics').then((a) => a.text())");
    check_scrape(scraped.as_str().unwrap(), &placement);

    let traces = asked(&mut browser, "/api/v1/traces");
    let id = traces["traces"][0]["id"].as_str().unwrap().to_owned();
    let trace = asked(&mut browser, &format!("/api/v1/traces/{id}"));
    let spans = trace["spans"].as_array().unwrap();
    let count = |kind: &str| spans.iter().filter(|s| s["kind"] == kind).count() as u64;
    assert!(count("split") >= 12 && count("copy") >= 12, "{} spans", spans.len());
    assert_eq!(value(&mut browser, "#trace-facts [data-field=splits]"), count("split"));
    assert_eq!(value(&mut browser, "#trace-facts [data-field=copies]"), count("copy"));

    let arena = asked(&mut browser, "/api/v1/models/alice/arena?device=SIM0&graph=decode");
    assert_eq!(arena["size"], value(&mut browser, "#arena-facts [data-field=size]"));
    assert_eq!(
        arena["tensors"].as_array().unwrap().len() as u64,
        value(&mut browser, "#arena-facts [data-field=tensors]")
    );
    for (size, name) in [(WIDE, "1280"), (NARROW, "390")] {
        for scheme in ["light", "dark"] {
            browser.open(&served.url, size, scheme);
            browser.until("document.querySelector('#trace-facts [data-field=splits]') && document.querySelector('#arena-facts [data-field=size]')");
            browser.until("document.querySelector('#log-body li:not(.empty)')");
            let width = browser.eval("document.documentElement.scrollWidth").as_u64().unwrap();
            assert!(width <= u64::from(size.0), "{name}: the page is {width} wide");
            browser.eval("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
            assert!(pixels(&mut browser, "#arena-chart canvas", "op-product") > 20);
            assert!(pixels(&mut browser, "#trace-chart canvas", "compute") > 20);
            browser.screenshot(&format!("service-{name}-{scheme}"));
        }
    }
    served.state.unload("alice", End::Now).unwrap();
    browser.until("document.querySelectorAll('.device tbody tr').length === 0");
    assert!(browser.complaints.is_empty(), "{:?}", browser.complaints);
}

//! Metrics: what is scraped is what was said, and what is drawn exists.

use crate::documented::rows;
use loadmaster::telemetry::LinkTotal;
use loadmaster::telemetry::metrics::{DeviceBytes, Distribution, ModelBytes, Snapshot, text};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn snapshot() -> Snapshot {
    let model = |model: &str, scale: u64| ModelBytes {
        model: model.to_owned(),
        weights: 1000 * scale,
        kv: 200 * scale,
        compute: 30 * scale,
        workspace: 4 * scale,
        compute_bound: 29 * scale,
    };
    let device = |device: &str, models: Vec<ModelBytes>| DeviceBytes {
        device: device.to_owned(),
        pool: format!("{device} memory"),
        limit: Some(10_000),
        used: models.iter().map(|m| m.weights + m.kv + m.compute + m.workspace).sum(),
        free: Some(5_000),
        models,
    };
    let link =
        |link: &str, path: &str, copies| LinkTotal { link: link.into(), path: path.into(), copies, bytes: copies * 64 };
    Snapshot {
        devices: vec![
            device("sim0", vec![model("a", 1), model("quote\" and \\ and\nline", 2)]),
            device("sim1", vec![model("a", 3)]),
        ],
        plans_made: 4,
        plans_reused: 996,
        links: vec![link("sim0→sim1", "direct", 7), link("sim0→sim1", "pinned", 1), link("cpu→sim0", "direct", 9)],
        queue: 5,
        running: 6,
        requests: 77,
        prompt_tokens: 88,
        generated_tokens: 99,
        failures: vec![("device".to_owned(), 2), ("over_capacity".to_owned(), 3)],
        time_to_first_token: Distribution { ends: vec![0.1, 1.0], counts: vec![0, 1, 0], sum: 0.5 },
        time_per_token: Distribution { ends: vec![0.1, 1.0], counts: vec![3, 2, 1], sum: 7.25 },
    }
}

/// Values by series.
fn series(text: &str) -> BTreeMap<String, f64> {
    let lines = text.lines().filter(|l| !l.starts_with('#'));
    lines.map(|l| l.rsplit_once(' ').unwrap()).map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

#[test]
fn a_scrape_says_what_the_snapshot_holds_to_the_byte() {
    let made = snapshot();
    let scraped = series(&text(&made).unwrap());
    let of = |name: &str| *scraped.get(name).unwrap_or_else(|| panic!("no {name} in {:#?}", scraped.keys()));
    for device in &made.devices {
        let (d, pool) = (&device.device, &device.pool);
        for (state, bytes) in [("limit", 10_000), ("used", device.used), ("free", 5_000)] {
            let name = format!("loadmaster_device_bytes{{device=\"{d}\",pool=\"{pool}\",state=\"{state}\"}}");
            assert_eq!(of(&name), bytes as f64);
        }
        let mut held = 0.0;
        for model in &device.models {
            let m = model.model.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let kinds = [
                ("weights", model.weights),
                ("kv", model.kv),
                ("compute", model.compute),
                ("workspace", model.workspace),
            ];
            for (kind, bytes) in kinds {
                let labels = format!("device=\"{d}\",pool=\"{pool}\",model=\"{m}\",kind=\"{kind}\"");
                assert_eq!(of(&format!("loadmaster_memory_bytes{{{labels}}}")), bytes as f64);
                held += bytes as f64;
            }
            let name = format!("loadmaster_compute_bound_bytes{{device=\"{d}\",model=\"{m}\"}}");
            assert_eq!(of(&name), model.compute_bound as f64);
        }
        assert_eq!(held, device.used as f64, "what models hold is what is used");
    }
    for link in &made.links {
        let labels = format!("link=\"{}\",path=\"{}\"", link.link, link.path);
        assert_eq!(of(&format!("loadmaster_copies_total{{{labels}}}")), link.copies as f64);
        assert_eq!(of(&format!("loadmaster_copied_bytes_total{{{labels}}}")), link.bytes as f64);
    }
    for (name, value) in [
        ("plans_made_total", 4.0),
        ("plans_reused_total", 996.0),
        ("requests_total", 77.0),
        ("queue", 5.0),
        ("running", 6.0),
        ("tokens_total{kind=\"prompt\"}", 88.0),
        ("tokens_total{kind=\"generated\"}", 99.0),
        ("failures_total{kind=\"over_capacity\"}", 3.0),
        ("time_to_first_token_seconds_count", 1.0),
        ("time_per_token_seconds_sum", 7.25),
        ("time_per_token_seconds_bucket{le=\"0.1\"}", 3.0),
        ("time_per_token_seconds_bucket{le=\"1.0\"}", 5.0),
        ("time_per_token_seconds_bucket{le=\"+Inf\"}", 6.0),
    ] {
        assert_eq!(of(&format!("loadmaster_{name}")), value, "{name}");
    }
}

#[test]
fn equal_snapshots_give_equal_texts_with_series_in_the_order_of_the_snapshot() {
    let once = text(&snapshot()).unwrap();
    assert_eq!(once, text(&snapshot()).unwrap());
    let links: Vec<&str> = once.lines().filter(|l| l.starts_with("loadmaster_copies_total")).collect();
    let told: Vec<String> =
        snapshot().links.iter().map(|l| format!("link=\"{}\",path=\"{}\"", l.link, l.path)).collect();
    assert!(
        links.iter().zip(&told).all(|(line, labels)| line.contains(labels)) && links.len() == told.len(),
        "{links:?}"
    );
}

/// Names of metrics, as queries call them.
fn scraped_names() -> BTreeSet<String> {
    let bare = |series: &String| series.split('{').next().unwrap_or_default().to_owned();
    series(&text(&snapshot()).unwrap()).keys().map(bare).collect()
}

#[test]
fn every_metric_is_documented_and_every_documented_metric_exists() {
    let histogram =
        |name: &String| ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s).map(str::to_owned));
    let existing: BTreeSet<String> =
        scraped_names().iter().map(|n| histogram(n).unwrap_or_else(|| n.clone())).collect();
    let documented: BTreeSet<String> = rows("Metrics").into_iter().map(|c| c[0].clone()).collect();
    assert_eq!(existing, documented);
}

#[test]
fn the_grafana_dashboard_asks_for_metrics_that_exist() {
    let existing = scraped_names();
    let name = regex::Regex::new("loadmaster_[a-z_]+").unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/grafana");
    let mut asked = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let board: Value = serde_json::from_slice(&std::fs::read(entry.path()).unwrap()).unwrap();
        let panels = board["panels"].as_array().unwrap();
        assert!(panels.len() >= 8);
        for target in panels.iter().flat_map(|p| p["targets"].as_array().into_iter().flatten()) {
            let query = target["expr"].as_str().unwrap();
            asked.extend(name.find_iter(query).map(|m| m.as_str().to_owned()));
        }
    }
    assert!(asked.is_subset(&existing), "{:?}", asked.difference(&existing));
    let base =
        |n: &String| n.trim_end_matches("_bucket").trim_end_matches("_sum").trim_end_matches("_count").to_owned();
    let shown: BTreeSet<String> = asked.iter().map(base).collect();
    let all: BTreeSet<String> = existing.iter().map(base).collect();
    assert_eq!(all.difference(&shown).collect::<Vec<_>>(), Vec::<&String>::new(), "every metric is drawn");
}

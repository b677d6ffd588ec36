//! The trace file, parsed back.

use crate::support::listened;
use loadmaster::telemetry::Options;
use serde_json::Value;
use std::collections::BTreeMap;

/// A slice of a track in whole nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Slice {
    start: u64,
    end: u64,
}

struct Trace {
    events: Vec<Value>,
    /// By process and thread number: their names.
    names: BTreeMap<(u64, u64), (String, String)>,
}

impl Trace {
    fn of(copies: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        listened(&Options { trace: Some(path.clone()), ..Options::default() }, copies);
        let events: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
        let named = |wanted: &str| -> BTreeMap<(u64, u64), String> {
            let of = events.iter().filter(|e| e["ph"] == "M" && e["name"] == wanted);
            of.map(|e| (id(e), e["args"]["name"].as_str().unwrap().to_owned())).collect()
        };
        let processes = named("process_name");
        let names = named("thread_name").into_iter().map(|(at, t)| (at, (processes[&(at.0, 0)].clone(), t))).collect();
        Self { events, names }
    }

    fn tracks(&self) -> BTreeMap<&(String, String), Vec<Slice>> {
        let mut tracks: BTreeMap<_, Vec<Slice>> = BTreeMap::new();
        for event in self.events.iter().filter(|e| e["ph"] == "X") {
            let nanos = |v: &Value| (v.as_f64().unwrap() * 1000.0).round() as u64;
            let start = nanos(&event["ts"]);
            tracks.entry(&self.names[&id(event)]).or_default().push(Slice { start, end: start + nanos(&event["dur"]) });
        }
        tracks.values_mut().for_each(|t| t.sort());
        tracks
    }

    fn named(&self, name: &str) -> usize {
        self.events.iter().filter(|e| e["ph"] != "M" && (e["name"] == name || e["cat"] == name)).count()
    }
}

fn id(event: &Value) -> (u64, u64) {
    (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap())
}

#[test]
fn spans_of_a_queue_or_a_link_follow_each_other_and_those_of_a_thread_nest() {
    for copies in [1, 2] {
        let trace = Trace::of(copies);
        let tracks = trace.tracks();
        for ((process, track), slices) in &tracks {
            if process == "host threads" {
                let mut open: Vec<Slice> = Vec::new();
                // Of two that begin together, the longer is outside.
                let mut by_length = slices.clone();
                by_length.sort_by_key(|s| (s.start, std::cmp::Reverse(s.end)));
                for slice in by_length {
                    open.retain(|o| o.end > slice.start);
                    assert!(open.iter().all(|o| slice.end <= o.end), "{track}: {slice:?} leaves {open:?}");
                    open.push(slice);
                }
                continue;
            }
            for pair in slices.windows(2) {
                assert!(pair[0].end <= pair[1].start, "{process}, {track}: {pair:?}");
            }
        }
        let has = |process: &str, part: &str| tracks.keys().any(|(p, t)| p == process && t.contains(part));
        assert!(has("SIM0", "compute") && has("SIM1", "compute"), "{:?}", tracks.keys());
        assert!(has("links", "CPU→SIM0") && has("links", "SIM0→SIM1"), "{:?}", tracks.keys());
    }
}

#[test]
fn every_stage_is_in_the_file() {
    let trace = Trace::of(1);
    for stage in ["load", "plan", "reserve", "grow", "bind", "split", "copy", "sync", "token", "copy path"] {
        assert!(trace.named(stage) > 0, "no {stage}");
    }
    assert_eq!(trace.named("token"), crate::support::TOKENS);
}

#[test]
fn a_file_that_cannot_be_made_is_an_error_with_its_path() {
    let options = Options { trace: Some("no/such/folder/trace.json".into()), ..Options::default() };
    let error = loadmaster::telemetry::Telemetry::new(&options, "off").err().unwrap();
    assert!(error.to_string().starts_with("no/such/folder/trace.json: "), "{error}");
}

//! What listening costs: tokens are decoded by turns with nobody listening and with each kind of listener.
//!
//! Turns are short and in an order that changes from round to round, so that whatever else slows the machine slows all alike; what is
//! compared is the median of each kind's tokens. `LOADMASTER_MODEL` names another model than the embedded one.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs)]

use loadmaster::engine::{Engine, Model, Settings};
use loadmaster::telemetry::{Options, QueueLog, Telemetry};
use loadmaster_models::kv::{Batch, SequenceId};
use loadmaster_models::tokenizer::TokenId;
use loadmaster_sched::Machine;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROUNDS: usize = 40;
/// Tokens of a turn.
const TURN: usize = 12;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Listener {
    Nobody,
    /// Lines on standard error at the default level of `run`, and of `serve`.
    Lines(&'static str),
    /// What `serve` always has: lines at its level, and the log of queues.
    QueueLog,
    TraceFile,
}

const LISTENERS: [(&str, Listener); 5] = [
    ("nobody listens", Listener::Nobody),
    ("lines, warn (run)", Listener::Lines("warn")),
    ("lines, info", Listener::Lines("info")),
    ("lines, info, and the log of queues (serve)", Listener::QueueLog),
    ("a trace file", Listener::TraceFile),
];

fn main() {
    let model = Arc::new(
        std::env::var_os("LOADMASTER_MODEL")
            .map_or_else(|| Model::embedded().unwrap(), |path| Model::open(std::path::Path::new(&path)).unwrap()),
    );
    let specs = ["sim:2GiB", "sim:2GiB", "cpu"].map(|s| s.parse().unwrap());
    let machine = Machine::from_specs(&specs).unwrap();
    let settings = Settings::new(&model.params);
    let threads = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let mut engine = Engine::open(Arc::clone(&model), &machine, settings, threads, &mut |_, _| {}).unwrap();
    let mut times = vec![Vec::new(); LISTENERS.len()];
    turn(&mut engine, &mut Vec::new());
    for round in 0..ROUNDS {
        for i in 0..LISTENERS.len() {
            let at = (i + round) % LISTENERS.len();
            listen(LISTENERS[at].1, || turn(&mut engine, &mut times[at]));
        }
    }
    let medians: Vec<Duration> = times.iter_mut().map(|t| median(t)).collect();
    println!("{}, {} tokens of each kind", model.name, ROUNDS * TURN);
    for ((name, _), time) in LISTENERS.iter().zip(&medians) {
        let more = (time.as_secs_f64() / medians[0].as_secs_f64() - 1.0) * 100.0;
        println!("{name:<44} {:>9.1} µs a token  {more:>+6.2} %", time.as_secs_f64() * 1e6);
    }
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

/// Listeners are made for a turn: while one exists that wants spans, nobody's turn would pay for asking it.
fn listen(listener: Listener, work: impl FnOnce()) {
    let folder = tempfile::tempdir().unwrap();
    let mut options = Options::default();
    let telemetry = match listener {
        Listener::Nobody => return work(),
        Listener::Lines(level) => Telemetry::new(&options, level).unwrap(),
        Listener::QueueLog => Telemetry::new(&options, "info").unwrap().with_queue_log(&QueueLog::new(20_000)),
        Listener::TraceFile => {
            options.trace = Some(folder.path().join("trace.json"));
            Telemetry::new(&options, "warn").unwrap()
        }
    };
    let (dispatch, running) = telemetry.into_dispatch();
    tracing::dispatcher::with_default(&dispatch, work);
    running.finish().unwrap();
}

/// The same tokens at the same positions each time, so that every turn does the same work.
fn turn(engine: &mut Engine, times: &mut Vec<Duration>) {
    let sequence = SequenceId::new(0);
    for i in 0..TURN {
        let batch = Batch::of_sequence(sequence, engine.state().next(sequence), &[TokenId::new(i + 1)]);
        let start = Instant::now();
        engine.decode(&batch, |_, _| ()).unwrap();
        times.push(start.elapsed());
    }
    let end = engine.state().next(sequence);
    engine.state_mut().remove(sequence, &(Default::default()..end)).unwrap();
}

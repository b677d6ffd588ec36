//! A run of a golden model on two virtual GPUs, listened to.

use loadmaster::engine::{Engine, Model, Settings};
use loadmaster::telemetry::{Options, QueueLog, Telemetry};
use loadmaster_models::kv::{Batch, SequenceId};
use loadmaster_models::tokenizer::TokenId;
use loadmaster_sched::Machine;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::Path;
use std::sync::Arc;

pub const TOKENS: usize = 5;

pub fn engine(copies: u32) -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/models").join("tiny-llama-F16.gguf");
    let model = Arc::new(Model::open(&path).unwrap());
    let specs = ["sim:64MiB", "sim:64MiB", "cpu"].map(|s| s.parse().unwrap());
    let machine = Machine::from_specs(&specs).unwrap();
    let mut settings = Settings::new(&model.params);
    settings.copies = NonZeroU32::new(copies).unwrap();
    let threads = NonZeroUsize::new(2).unwrap();
    Engine::open(model, &machine, settings, threads, &mut |_, _| {}).unwrap()
}

pub fn feed(engine: &mut Engine, count: usize) {
    let sequence = SequenceId::new(0);
    for i in 0..count {
        let batch = Batch::of_sequence(sequence, engine.state().next(sequence), &[TokenId::new(i + 1)]);
        engine.decode(&batch, |_, _| ()).unwrap();
    }
}

/// Loads and runs while the options' layers, and a log, listen.
pub fn listened(options: &Options, copies: u32) -> Arc<QueueLog> {
    let log = QueueLog::new(100_000);
    let (dispatch, running) = Telemetry::new(options, "off").unwrap().with_queue_log(&log).into_dispatch();
    tracing::dispatcher::with_default(&dispatch, || {
        let mut engine = engine(copies);
        feed(&mut engine, TOKENS);
    });
    running.finish().unwrap();
    log
}

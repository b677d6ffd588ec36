//! The log of queues.

use crate::support::{TOKENS, listened};
use loadmaster::telemetry::{Options, QueueLog, SpanKind};
use std::collections::BTreeMap;
use std::time::Duration;

#[test]
fn the_log_holds_what_queues_did_and_its_totals_are_the_sums_of_its_copies() {
    let log = listened(&Options::default(), 1);
    let spans = log.between(Duration::ZERO, log.now());
    let splits = |device: &str| spans.iter().filter(|s| s.kind == SpanKind::Split && &*s.device == device).count();
    assert!(splits("SIM0") >= TOKENS && splits("SIM1") >= TOKENS);
    assert!(spans.iter().all(|s| s.start <= s.end));
    assert!(spans.windows(2).all(|pair| pair[0].start <= pair[1].start), "by beginning");
    let mut sums: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for span in spans.iter().filter(|s| s.kind == SpanKind::Copy) {
        let sum = sums.entry(span.link.as_deref().unwrap()).or_default();
        *sum = (sum.0 + 1, sum.1 + span.bytes);
    }
    let totals = log.totals();
    let told: BTreeMap<&str, (u64, u64)> = totals.iter().map(|t| (&*t.link, (t.copies, t.bytes))).collect();
    assert_eq!(sums, told);
    assert!(told["SIM0→SIM1"].0 >= TOKENS as u64 && told["SIM0→SIM1"].1 > 0, "{told:?}");
}

#[test]
fn the_log_forgets_what_is_oldest_and_keeps_its_totals() {
    let log = QueueLog::new(8);
    let (dispatch, running) =
        loadmaster::telemetry::Telemetry::new(&Options::default(), "off").unwrap().with_queue_log(&log).into_dispatch();
    tracing::dispatcher::with_default(&dispatch, || {
        let mut engine = crate::support::engine(1);
        crate::support::feed(&mut engine, TOKENS);
    });
    running.finish().unwrap();
    assert_eq!(log.between(Duration::ZERO, Duration::MAX).len(), 8);
    assert!(log.totals().iter().map(|t| t.copies).sum::<u64>() > 8);
    assert!(log.between(Duration::MAX, Duration::MAX).is_empty());
}

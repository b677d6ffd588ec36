//! Random programs of streams and events: races found are those that sets of finished operations show, and a program
//! without races gives the bytes of its own order, whatever order the seed chose.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::ops::Range;

use common::*;
use loadmaster_cudasim::ffi::device::*;
use loadmaster_cudasim::ffi::memory::*;
use loadmaster_cudasim::ffi::stream::*;

const STREAMS: usize = 3;
const EVENTS: usize = 3;
const BUFFERS: usize = 3;
const BYTES: usize = 64;

#[derive(Clone, Debug)]
enum Action {
    Fill { to: (usize, Range<usize>), value: u8, stream: usize },
    Copy { to: (usize, Range<usize>), from: (usize, Range<usize>), stream: usize },
    Record { event: usize, stream: usize },
    Wait { event: usize, stream: usize },
    SyncStream(usize),
    SyncEvent(usize),
}

/// A generator of its own, so that programs stay the same whatever the simulator draws.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound as u64) as usize
    }

    fn place(&mut self, len: usize) -> (usize, Range<usize>) {
        let start = self.below(BYTES - len + 1);
        (self.below(BUFFERS), start..start + len)
    }

    fn action(&mut self, waits: usize) -> Action {
        let stream = self.below(STREAMS);
        if self.below(100) >= waits {
            let len = 1 + self.below(24);
            let to = self.place(len);
            let value = self.below(250) as u8;
            let from = self.place(len);
            let apart = to.0 != from.0 || to.1.end <= from.1.start || from.1.end <= to.1.start;
            return if apart && self.below(2) == 0 {
                Action::Copy { to, from, stream }
            } else {
                Action::Fill { to, value, stream }
            };
        }
        let event = self.below(EVENTS);
        match self.below(10) {
            0 => Action::SyncStream(stream),
            1 => Action::SyncEvent(event),
            2..6 => Action::Record { event, stream },
            _ => Action::Wait { event, stream },
        }
    }
}

/// What is known to be finished, operation by operation.
type Known = u128;

/// Whether two operations touch a byte, one of them writing, with neither known to the other.
fn has_race(program: &[Action]) -> bool {
    let (mut streams, mut events, mut host): ([Known; STREAMS], [Known; EVENTS], Known) = ([0; 3], [0; 3], 0);
    let mut log: Vec<(usize, Range<usize>, bool)> = Vec::new();
    let mut owners = Vec::new();
    for action in program {
        let (touched, stream) = match action {
            Action::Fill { to, stream, .. } => (vec![(to.0, to.1.clone(), true)], *stream),
            Action::Copy { to, from, stream } => {
                (vec![(from.0, from.1.clone(), false), (to.0, to.1.clone(), true)], *stream)
            }
            Action::Record { event, stream } => {
                events[*event] = streams[*stream] | host;
                continue;
            }
            Action::Wait { event, stream } => {
                streams[*stream] |= events[*event];
                continue;
            }
            Action::SyncStream(stream) => {
                host |= streams[*stream];
                continue;
            }
            Action::SyncEvent(event) => {
                host |= events[*event];
                continue;
            }
        };
        streams[stream] |= host;
        for (buffer, range, writes) in &touched {
            let clash = log.iter().zip(&owners).any(|((b, r, w), op)| {
                let overlap = b == buffer && r.start < range.end && range.start < r.end;
                overlap && (*w || *writes) && streams[stream] & ((1 as Known) << op) == 0
            });
            if clash {
                return true;
            }
        }
        let op = owners.last().map_or(0, |last: &u32| last + 1);
        owners.extend(touched.iter().map(|_| op));
        log.extend(touched);
        streams[stream] |= (1 as Known) << op;
    }
    false
}

/// The bytes that the program's own order gives.
fn in_order(program: &[Action]) -> Vec<Vec<u8>> {
    let mut buffers = vec![vec![0xFF; BYTES]; BUFFERS];
    for action in program {
        match action {
            Action::Fill { to, value, .. } => buffers[to.0][to.1.clone()].fill(*value),
            Action::Copy { to, from, .. } => {
                let bytes = buffers[from.0][from.1.clone()].to_vec();
                buffers[to.0][to.1.clone()].copy_from_slice(&bytes);
            }
            _ => {}
        }
    }
    buffers
}

/// Runs a program on the simulator; its bytes and the report.
fn run(program: &[Action], config: &str) -> (Vec<Vec<u8>>, String) {
    let machine = Machine::new(config);
    let buffers: Vec<u64> = (0..BUFFERS).map(|_| machine.alloc(BYTES)).collect();
    let streams: Vec<Ptr> = (0..STREAMS).map(|_| machine.stream()).collect();
    let events: Vec<Ptr> = (0..EVENTS).map(|_| machine.event()).collect();
    let at = |place: &(usize, Range<usize>)| buffers[place.0] + place.1.start as u64;
    for action in program {
        // SAFETY: handles and addresses of this machine.
        ok(unsafe {
            match action {
                Action::Fill { to, value, stream } => cuMemsetD8Async(at(to), *value, to.1.len(), streams[*stream]),
                Action::Copy { to, from, stream } => {
                    cuMemcpyDtoDAsync_v2(at(to), at(from), to.1.len(), streams[*stream])
                }
                Action::Record { event, stream } => cuEventRecord(events[*event], streams[*stream]),
                Action::Wait { event, stream } => cuStreamWaitEvent(streams[*stream], events[*event], 0),
                Action::SyncStream(stream) => cuStreamSynchronize(streams[*stream]),
                Action::SyncEvent(event) => cuEventSynchronize(events[*event]),
            }
        });
    }
    // SAFETY: no pointers.
    ok(unsafe { cuCtxSynchronize() });
    let bytes = buffers.iter().map(|address| machine.download(*address, BYTES)).collect();
    (bytes, report())
}

#[test]
fn races_are_found_exactly_where_sets_of_finished_operations_show_them() {
    let (mut racing, mut clean) = (0, 0);
    for seed in 0..2000u64 {
        let mut random = Random(seed);
        let waits = 50 + random.below(45);
        let length = 4 + random.below(20);
        let program: Vec<Action> = (0..length).map(|_| random.action(waits)).collect();
        let expected = has_race(&program);
        let (bytes, report) = run(&program, &format!("seed={seed}"));
        assert_eq!(report.contains("race: "), expected, "seed {seed}: {program:#?}\n{report}");
        if expected {
            racing += 1;
        } else {
            clean += 1;
            assert_eq!((bytes, report.as_str()), (in_order(&program), ""), "seed {seed}: {program:#?}");
        }
    }
    assert!(racing > 200 && clean > 200, "{racing} with races, {clean} without");
}

#[test]
fn a_program_without_races_gives_the_same_bytes_in_a_thousand_orders() {
    let mut random = Random(5);
    let clean = loop {
        let program: Vec<Action> = (0..60).map(|_| random.action(70)).collect();
        let works = program.iter().filter(|a| matches!(a, Action::Fill { .. } | Action::Copy { .. })).count();
        if works >= 10 && !has_race(&program) {
            break program;
        }
    };
    let expected = in_order(&clean);
    for seed in 0..1000 {
        let (bytes, report) = run(&clean, &format!("seed={seed}"));
        assert_eq!((&bytes, report.as_str()), (&expected, ""), "seed {seed}");
    }
}

//! The execution protocol of real graphs: every wait is enough, every wait is necessary, in any interleaving.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail tests")]

#[allow(unused_imports, reason = "`random` finds them here")]
mod support;

#[allow(dead_code, reason = "every test file uses its own part")]
#[path = "support/random.rs"]
mod random;

use loadmaster_alloc::{Arenas, BestOptions, InPlaceTable, Placer};
use loadmaster_graph::file::GraphFile;
use loadmaster_graph::{Bytes, TensorId};
use loadmaster_sched::exec::{
    CopyPath, ExecError, ExpertUpload, Finding, Interleaver, Outputs, PathTable, Planned, Schedule, ScheduleOptions,
    check, schedule, waits,
};
use loadmaster_sched::{LowerOptions, PlanOptions, SchedError, Setup, Sizes, compute_types, plan};
use random::{Rng, Switches, random_graph, random_machine};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use support::{Sketch, dev, parts};

/// Interleavings that all tests of this file run together, at least.
const SEEDS: usize = 10_000;

fn golden_files() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/graphs");
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(".json.gz"));
    files.sort();
    assert!(files.len() >= 100, "golden files are missing");
    files
}

/// A way to execute a golden graph.
#[derive(Clone, Debug)]
struct Way {
    placer: Placer,
    path: CopyPath,
    outputs: Outputs,
    experts: ExpertUpload,
}

fn ways() -> [Way; 2] {
    let (plain, staged) = (CopyPath::Direct, CopyPath::Pinned);
    [
        Way { placer: Placer::Ggml, path: plain, outputs: Outputs::InPlace, experts: ExpertUpload::All },
        Way { placer: Placer::default(), path: staged, outputs: Outputs::Fetched, experts: ExpertUpload::Used },
    ]
}

/// The steps of a golden graph. Every root with memory of its own is a buffer of its own.
fn schedule_of(file: &GraphFile, way: &Way) -> Schedule {
    let setup = Setup::of(file).unwrap();
    let plan = setup.plan(&file.graph, way.placer.clone()).unwrap();
    let by_root = |t: TensorId| (!file.graph.tensor(t).is_view()).then_some((t.index() as u32, Bytes::ZERO));
    let planned = Planned::of(&plan, &setup.machine, &setup.residency, &by_root);
    let mut options = ScheduleOptions::new(PathTable::all(setup.machine.devices().len(), way.path));
    options.outputs = way.outputs;
    options.experts = way.experts;
    options.piece = Bytes(4096);
    schedule(&planned, &options).unwrap()
}

fn on_every_golden(mut test: impl FnMut(&str, &Schedule)) {
    for path in golden_files() {
        let file = GraphFile::read_path(&path).unwrap();
        for way in ways() {
            let name = format!("{} {way:?}", path.file_name().unwrap().to_string_lossy());
            test(&name, &schedule_of(&file, &way));
        }
    }
}

#[test]
fn golden_graphs_are_free_of_races_in_ten_thousand_adversarial_orders() {
    let seeds = (SEEDS / (2 * golden_files().len()) + 1) as u64;
    let mut first = 0;
    on_every_golden(|name, schedule| {
        let waits = waits(schedule);
        check(schedule, &waits).unwrap_or_else(|race| panic!("{name}: {race}"));
        let interleaver = Interleaver::new(schedule, &waits);
        for seed in first..first + seeds {
            interleaver.run(seed).unwrap_or_else(|finding| panic!("{name}, seed {seed}: {finding}"));
        }
        first += seeds;
    });
    assert!(first >= SEEDS as u64);
}

#[test]
fn a_protocol_with_any_one_wait_removed_is_caught_by_the_check_and_by_an_interleaving() {
    let mut canaries = 0;
    on_every_golden(|name, schedule| {
        let waits = waits(schedule);
        let large = schedule.steps().len() > 200;
        for (index, (step, wait)) in waits.iter().enumerate().step_by(if large { 37 } else { 1 }) {
            let without = waits.without(index);
            assert_eq!(without.len() + 1, waits.len());
            let race = check(schedule, &without);
            assert!(race.is_err(), "{name}: nobody misses that {step} waits for {wait:?}");
            let interleaver = Interleaver::new(schedule, &without);
            let caught = (0..400).find_map(|seed| interleaver.run(seed).err());
            assert!(matches!(caught, Some(Finding::Race(_))), "{name}: {step} without {wait:?}: {caught:?}");
            canaries += 1;
        }
    });
    assert!(canaries > 1000, "only {canaries} waits were removed");
}

#[test]
fn runs_on_the_host_alone_wait_only_before_the_caller_writes_inputs_again() {
    let path = golden_files().into_iter().find(|p| p.to_string_lossy().contains("smollm2.cpu")).unwrap();
    let file = GraphFile::read_path(&path).unwrap();
    let schedule = schedule_of(&file, &ways()[0]);
    let waits = waits(&schedule);
    assert_eq!(schedule.queues().len(), 2);
    assert_eq!(waits.len(), 1, "the first write of a run waits for the run before");
    let (step, wait) = waits.iter().next().unwrap();
    assert_eq!(wait.runs_back, 1);
    assert!(step < wait.on);
}

/// The steps of a random graph on a random machine: shared arenas, foreign readers, chunks, pipelining, staged copies.
/// `None`: it cannot be planned, or copies something before it is computed.
fn random_schedule(seed: u64) -> Option<Schedule> {
    let mut rng = Rng(seed);
    let on = Switches::of(seed);
    let machine = random_machine(&mut rng, on);
    let nodes = 1 + rng.below(60);
    let (graph, residency) = random_graph(&mut rng, &machine, on, nodes).finish();
    let n_copies = NonZeroU32::new(1 + rng.below(4) as u32).unwrap();
    let best = BestOptions { in_place: InPlaceTable::loadmaster().into(), ..BestOptions::default() };
    let placer = if rng.one_in(2) { Placer::Ggml } else { Placer::Best(best) };
    let lower = LowerOptions { n_copies, keep: Vec::new() };
    let options = PlanOptions { lower, placer, ..PlanOptions::default() };
    let arenas = Arenas::new(compute_types(&machine, &Sizes::ByRule));
    let plan = match plan(&graph, &machine, &residency, arenas, &options) {
        Ok(plan) => plan,
        Err(SchedError::CannotMove { .. } | SchedError::NoDevice { .. }) => return None,
        Err(other) => panic!("seed {seed}: {other}"),
    };
    let by_root = |t: TensorId| (!graph.tensor(t).is_view()).then_some((t.index() as u32, Bytes::ZERO));
    let planned = Planned::of(&plan, &machine, &residency, &by_root);
    let mut paths = PathTable::all(machine.devices().len(), CopyPath::Direct);
    for (from, to) in (0..20).map(|_| (rng.below(machine.devices().len()), rng.below(machine.devices().len()))) {
        paths.set(dev(from), dev(to), CopyPath::Pinned);
    }
    let mut options = ScheduleOptions::new(paths);
    options.outputs = if rng.one_in(2) { Outputs::Fetched } else { Outputs::InPlace };
    options.piece = Bytes(64);
    match schedule(&planned, &options) {
        Ok(schedule) => Some(schedule),
        Err(ExecError::CopiedTooEarly { .. }) => None,
        Err(other) => panic!("seed {seed}: {other}"),
    }
}

#[test]
fn random_graphs_on_random_machines_are_free_of_races_and_need_each_wait() {
    let (mut schedules, mut removed) = (0, 0);
    for seed in 0..1000 {
        let Some(schedule) = random_schedule(seed) else { continue };
        let waits = waits(&schedule);
        check(&schedule, &waits).unwrap_or_else(|race| panic!("seed {seed}: {race}"));
        let interleaver = Interleaver::new(&schedule, &waits);
        for order in 0..4 {
            interleaver.run(order).unwrap_or_else(|finding| panic!("seed {seed}, order {order}: {finding}"));
        }
        for index in (0..waits.len()).step_by(1 + waits.len() / 8) {
            assert!(check(&schedule, &waits.without(index)).is_err(), "seed {seed}: wait {index} is not needed");
            removed += 1;
        }
        schedules += 1;
    }
    assert!(schedules > 700 && removed > 3000, "{schedules} schedules, {removed} waits removed");
}

//! Runs the execution protocol of graph files in adversarial orders, for as long as it is told to.
//!
//! `cargo run --release -p loadmaster-sched --example soak -- ORDERS [DIR_OR_FILES…]`: so many orders in all, spread over
//! the files (default: the golden graphs), under both placers, with direct and with staged copies. Every wait of each
//! protocol is removed once, too, and must be missed by the check.

use loadmaster_alloc::Placer;
use loadmaster_graph::file::GraphFile;
use loadmaster_graph::{Bytes, TensorId};
use loadmaster_sched::Setup;
use loadmaster_sched::exec::{
    CopyPath, Interleaver, Outputs, PathTable, Planned, Schedule, ScheduleOptions, check, schedule, waits,
};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> ExitCode {
    match soak() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn soak() -> Result<(), Failure> {
    let mut args = std::env::args().skip(1);
    let orders: u64 = args.next().ok_or("how many orders? soak ORDERS [DIR_OR_FILES…]")?.parse()?;
    let given: Vec<PathBuf> = args.map(PathBuf::from).collect();
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/graphs");
    let files = graph_files(if given.is_empty() { vec![golden] } else { given })?;
    let tasks: Vec<(&PathBuf, usize)> = files.iter().flat_map(|f| (0..WAYS).map(move |way| (f, way))).collect();
    let each = orders.div_ceil(tasks.len().max(1) as u64);
    let next = AtomicUsize::new(0);
    let work = || -> Result<u64, Failure> {
        let mut ran = 0;
        while let Some(&(file, way)) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let first = each * tasks.iter().position(|t| *t == (file, way)).unwrap_or(0) as u64;
            test(file, way, first..first + each).map_err(|e| format!("{}, way {way}: {e}", file.display()))?;
            ran += each;
        }
        Ok(ran)
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let ran: Result<Vec<u64>, Failure> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        handles.into_iter().map(|h| h.join().unwrap_or_else(|_| Err("a worker panicked".into()))).collect()
    });
    println!("{} orders over {} protocols of {} graphs: no race", ran?.iter().sum::<u64>(), tasks.len(), files.len());
    Ok(())
}

fn graph_files(given: Vec<PathBuf>) -> Result<Vec<PathBuf>, Failure> {
    let mut files = Vec::new();
    for path in given {
        if path.is_dir() {
            let entries = std::fs::read_dir(&path)?.collect::<Result<Vec<_>, _>>()?;
            files.extend(entries.into_iter().map(|e| e.path()).filter(|p| p.to_string_lossy().contains(".json")));
        } else {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() { Err("no graph files".into()) } else { Ok(files) }
}

/// Ways to execute a graph.
const WAYS: usize = 4;

fn schedule_of(file: &GraphFile, way: usize) -> Result<Schedule, Failure> {
    let setup = Setup::of(file)?;
    let placer = if way.is_multiple_of(2) { Placer::Ggml } else { Placer::default() };
    let plan = setup.plan(&file.graph, placer)?;
    // Every root with memory of its own is a buffer of its own.
    let by_root = |t: TensorId| (!file.graph.tensor(t).is_view()).then_some((t.index() as u32, Bytes::ZERO));
    let planned = Planned::of(&plan, &setup.machine, &setup.residency, &by_root);
    let path = if way < 2 { CopyPath::Direct } else { CopyPath::Pinned };
    let mut options = ScheduleOptions::new(PathTable::all(setup.machine.devices().len(), path));
    options.outputs = if way < 2 { Outputs::InPlace } else { Outputs::Fetched };
    Ok(schedule(&planned, &options)?)
}

fn test(path: &Path, way: usize, seeds: std::ops::Range<u64>) -> Result<(), Failure> {
    let file = GraphFile::read_path(path)?;
    let schedule = schedule_of(&file, way)?;
    let waits = waits(&schedule);
    check(&schedule, &waits)?;
    let interleaver = Interleaver::new(&schedule, &waits);
    for seed in seeds {
        interleaver.run(seed).map_err(|finding| format!("seed {seed}: {finding}"))?;
    }
    match (0..waits.len()).find(|&i| check(&schedule, &waits.without(i)).is_ok()) {
        Some(index) => Err(format!("nobody misses wait {index}").into()),
        None => Ok(()),
    }
}

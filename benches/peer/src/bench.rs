//! Stage by stage, ggml beside loadmaster, in turns, so that a busy machine slows both.

use crate::file::GraphFile;
use crate::ggml::{Gallocr, Ggml};
use crate::ours::Ours;
use crate::unbacked::unbacked;
use crate::{compare, ffi};
use anyhow::{Context, ensure};
use loadmaster_alloc::{AllocGraph, BufferType, GraphAllocator, Placer};
use std::cell::RefCell;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The graphs of the issue: pipelined on two GPUs, on eight, and a small one.
pub const GRAPHS: [&str; 3] =
    ["llama3-70b.2x48-fa.000.json.gz", "qwen3-235b-a22b.8x24-fa.000.json.gz", "smollm2.2g.000.json.gz"];

/// What the processor's caches hold when a stage begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Caches {
    /// What the round before left there.
    Warm,
    /// Something else, as between two tokens, whose weights have passed through them.
    Cold,
}

/// Bytes that push everything else out of the caches.
const EVICTION: usize = 96 << 20;

/// Prints a table of medians for each file.
pub fn run(files: &[impl AsRef<Path>], rounds: usize, caches: Caches) -> anyhow::Result<()> {
    println!("{:<28} {:<38} {:>6} {:>9} {:>11} {:>8}", "graph", "stage", "nodes", "ggml", "loadmaster", "ratio");
    println!("{:<28} {:<38} {:>6} {:>9} {:>11} {:>8}", "", "", "", "ns/node", "ns/node", "");
    for path in files {
        let path = path.as_ref();
        bench(path, rounds, caches).with_context(|| path.display().to_string())?;
    }
    println!(
        "medians of {rounds} rounds, ggml and loadmaster in turns, {} caches; ratio: loadmaster / ggml",
        if caches == Caches::Warm { "warm" } else { "cold" }
    );
    Ok(())
}

fn bench(path: &Path, rounds: usize, caches: Caches) -> anyhow::Result<()> {
    let file = GraphFile::read(path)?;
    let mut ggml = Ggml::new(&file)?;
    let ours = Ours::new(&file)?;
    if let Some(difference) = compare::first_difference(&ggml.answer(&file)?, &ours.answer()?) {
        anyhow::bail!("the plans differ, so their times cannot be compared: {difference}");
    }
    let table = Table { graph: &file.name, nodes: file.nodes.len() };
    let clock = Clock::new(rounds, caches);
    planning(&table, &mut ggml, &ours, &clock)?;
    reserving(&table, &mut ggml, &ours, &clock)?;
    allocating(&table, &mut ggml, &ours, &clock)?;
    whole(&table, &mut ggml, &ours, &clock)
}

/// `ggml_backend_sched_split_graph` assigns, splits, and lists the allocator's graph.
fn planning(table: &Table, ggml: &mut Ggml, ours: &Ours, clock: &Clock) -> anyhow::Result<()> {
    let [mut theirs, mut one, mut two, mut three] = [(); 4].map(|()| Times::new(clock));
    for _ in 0..clock.rounds {
        ggml.reset();
        theirs.time(|| ggml.split());
        drop(one.time(|| ours.assign())?);
        let planned = two.time(|| {
            let assignment = ours.assign()?;
            let splits = ours.split(&assignment)?;
            anyhow::Ok((assignment, splits))
        })?;
        drop(planned);
        let lowered = three.time(|| {
            let assignment = ours.assign()?;
            let splits = ours.split(&assignment)?;
            anyhow::Ok(black_box(ours.lower(&assignment, &splits)?))
        })?;
        drop(lowered);
    }
    table.row("split_graph | assign", &mut theirs, &mut one);
    table.row("split_graph | assign, split", &mut theirs, &mut two);
    table.row("split_graph | assign, split, lower", &mut theirs, &mut three);
    Ok(())
}

/// `reserve_n` once its buffers are large enough: planning alone.
fn reserving(table: &Table, ggml: &mut Ggml, ours: &Ours, clock: &Clock) -> anyhow::Result<()> {
    ggml.reset();
    ggml.split();
    let galloc = ggml.gallocr();
    let lowered = ours.lowered()?;
    let mut reference = allocator(ours, Placer::Ggml);
    let mut best = allocator(ours, Placer::default());
    let (mut theirs, mut same, mut better) = (Times::new(clock), Times::new(clock), Times::new(clock));
    for _ in 0..clock.rounds {
        theirs.time(|| reserve(ggml, &galloc))?;
        // As `lower` hands it over: its key is there, since it grows with the list.
        let graph = lowered.fresh();
        same.time(|| reference.reserve_n(&graph, &lowered.nodes, &lowered.leafs))?;
        let graph = lowered.fresh();
        better.time(|| best.reserve_n(&graph, &lowered.nodes, &lowered.leafs))?;
    }
    table.row("reserve_n | Placer::Ggml", &mut theirs, &mut same);
    table.row("reserve_n | Placer::Best", &mut theirs, &mut better);
    Ok(())
}

/// `alloc_graph` with a known plan.
fn allocating(table: &Table, ggml: &mut Ggml, ours: &Ours, clock: &Clock) -> anyhow::Result<()> {
    let galloc = ggml.gallocr();
    let lowered = ours.lowered()?;
    let mut allocator = allocator(ours, Placer::Ggml);
    let known = lowered.fresh();
    allocator.reserve_n(&known, &lowered.nodes, &lowered.leafs)?;
    let (mut theirs, mut same, mut new) = (Times::new(clock), Times::new(clock), Times::new(clock));
    for round in 0..clock.rounds {
        // ggml writes addresses into the tensors, so each round needs the graph anew.
        ggml.reset();
        ggml.split();
        if round == 0 {
            reserve(ggml, &galloc)?;
        }
        let (graph, ..) = ggml.lowered();
        // SAFETY: live allocator and graph.
        let fits = theirs.time(|| unsafe { ffi::ggml_gallocr_alloc_graph(galloc.0, graph) });
        ensure!(fits, "ggml_gallocr_alloc_graph refused");
        same.time(|| allocator.alloc_graph(&known))?;
        let graph = lowered.fresh();
        new.time(|| allocator.alloc_graph(&graph))?;
    }
    table.row("alloc_graph | the same graph again", &mut theirs, &mut same);
    table.row("alloc_graph | an equal graph", &mut theirs, &mut new);
    Ok(())
}

/// What a caller does for a first graph, and for every further one.
fn whole(table: &Table, ggml: &mut Ggml, ours: &Ours, clock: &Clock) -> anyhow::Result<()> {
    let mut allocator = allocator(ours, Placer::Ggml);
    let [mut their_reserve, mut our_reserve, mut their_alloc, mut our_alloc] = [(); 4].map(|()| Times::new(clock));
    for _ in 0..clock.rounds {
        ggml.reset();
        let graph = &raw mut ggml.rebuilt.graph;
        // SAFETY: live scheduler and graph.
        ensure!(their_reserve.time(|| unsafe { ffi::ggml_backend_sched_reserve(ggml.sched, graph) }), "sched_reserve");
        our_reserve.time(|| {
            let l = ours.lowered()?;
            anyhow::Ok(allocator.reserve_n(&l.graph, &l.nodes, &l.leafs)?)
        })?;
        ggml.reset();
        // SAFETY: as above; copy 0 is used again in every round.
        unsafe { ffi::ggml_backend_sched_synchronize(ggml.sched) };
        ensure!(their_alloc.time(|| unsafe { ffi::ggml_backend_sched_alloc_graph(ggml.sched, graph) }), "sched_alloc");
        our_alloc.time(|| {
            let l = ours.lowered()?;
            anyhow::Ok(allocator.alloc_graph(&l.graph)?)
        })?;
    }
    table.row("sched_reserve | all stages", &mut their_reserve, &mut our_reserve);
    table.row("sched_alloc_graph | all stages", &mut their_alloc, &mut our_alloc);
    Ok(())
}

fn reserve(ggml: &mut Ggml, galloc: &Gallocr) -> anyhow::Result<()> {
    let (graph, nodes, leafs) = ggml.lowered();
    // SAFETY: live allocator and graph, id arrays as long as the graph says.
    ensure!(unsafe { ffi::ggml_gallocr_reserve_n(galloc.0, graph, nodes, leafs) }, "ggml_gallocr_reserve_n refused");
    Ok(())
}

/// A lowered graph whose structural key nobody has asked for.
pub struct Fresh<'g> {
    pub graph: AllocGraph<'g>,
    pub nodes: Vec<loadmaster_alloc::ArenaId>,
    pub leafs: Vec<loadmaster_alloc::ArenaId>,
}

impl<'g> Fresh<'g> {
    fn fresh(&self) -> AllocGraph<'g> {
        self.graph.clone()
    }
}

impl Ours {
    fn lowered(&self) -> anyhow::Result<Fresh<'_>> {
        let assignment = self.assign()?;
        let splits = self.split(&assignment)?;
        let lowered = self.lower(&assignment, &splits)?;
        Ok(Fresh { graph: lowered.graph, nodes: lowered.node_buffer_ids, leafs: lowered.leaf_buffer_ids })
    }
}

/// An allocator over the file's devices whose buffers are numbers.
fn allocator(ours: &Ours, placer: Placer) -> GraphAllocator {
    let mut types: Vec<Arc<dyn BufferType>> = Vec::new();
    for arena in ours.arenas.ids() {
        let home = ours.arenas.home(arena);
        let known = if home == arena { None } else { types.get(home.index()).cloned() };
        types.push(known.unwrap_or_else(|| unbacked(ours.arenas.buffer_type(arena))));
    }
    GraphAllocator::new_n(types).with_placer(placer)
}

/// How times are taken.
struct Clock {
    rounds: usize,
    eviction: Option<RefCell<Vec<u64>>>,
}

impl Clock {
    fn new(rounds: usize, caches: Caches) -> Self {
        let eviction = (caches == Caches::Cold).then(|| RefCell::new(vec![0; EVICTION / 8]));
        Self { rounds, eviction }
    }

    /// Brings the caches into their state.
    fn settle(&self) {
        if let Some(words) = &self.eviction {
            words.borrow_mut().iter_mut().for_each(|w| *w = w.wrapping_add(1));
        }
    }
}

/// Times of one stage.
struct Times<'a> {
    clock: &'a Clock,
    samples: Vec<Duration>,
}

impl<'a> Times<'a> {
    fn new(clock: &'a Clock) -> Self {
        Self { clock, samples: Vec::with_capacity(clock.rounds) }
    }

    fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        self.clock.settle();
        let start = Instant::now();
        let result = black_box(work());
        self.samples.push(start.elapsed());
        result
    }

    fn median_ns(&mut self) -> f64 {
        self.samples.sort_unstable();
        self.samples.get(self.samples.len() / 2).map_or(f64::NAN, |d| d.as_nanos() as f64)
    }
}

struct Table<'a> {
    graph: &'a str,
    nodes: usize,
}

impl Table<'_> {
    fn row(&self, stage: &str, theirs: &mut Times<'_>, ours: &mut Times<'_>) {
        let nodes = self.nodes as f64;
        let (theirs, ours) = (theirs.median_ns() / nodes, ours.median_ns() / nodes);
        let ratio = ours / theirs;
        println!("{:<28} {stage:<38} {:>6} {theirs:>9.1} {ours:>11.2} {ratio:>8.3}", self.graph, self.nodes);
    }
}

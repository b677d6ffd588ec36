//! Every golden graph, planned under policy `ggml`: devices, splits, inputs, buffer ids, sizes and offsets are those that
//! ggml chose. Beside the graphs of real models there are random ones, with shared buffer types, chunk limits, pins,
//! holes and other things that real models do not combine; ggml's answers to them come from benches/peer.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail loudly")]

use loadmaster_alloc::{AllocGraph, AllocPlan, ItemId, Origin, Placer};
use loadmaster_graph::file::{AllocEntry, Expected, ExpectedPlace, GraphFile};
use loadmaster_graph::{Bytes, TensorId};
use loadmaster_sched::{Plan, Setup};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

type Outcome = Result<(), String>;

/// A folder of golden graphs and how many it holds.
type Folder = (&'static str, usize);

const REAL: Folder = ("graphs", 154);
const RANDOM: Folder = ("random", 201);

fn golden_files((folder, count): Folder) -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.to_string_lossy().ends_with(".json.gz"))
        .collect();
    assert_eq!(files.len(), count, "golden files are missing in {folder}");
    files.sort();
    files
}

/// Runs a check on every golden file, on all cores, and reports every file that fails.
fn on_every_golden(folders: &[Folder], check: impl Fn(&GraphFile) -> Outcome + Sync) {
    let files: Vec<PathBuf> = folders.iter().flat_map(|&folder| golden_files(folder)).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut failures = Vec::new();
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let file = GraphFile::read_path(path).map_err(|e| e.to_string());
            if let Err(why) = file.and_then(|file| check(&file)) {
                failures.push(format!("{}: {why}", path.file_name().unwrap().to_string_lossy()));
            }
        }
        failures
    };
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut failures: Vec<String> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        handles.into_iter().flat_map(|h| h.join().unwrap()).collect()
    });
    failures.sort();
    assert!(failures.is_empty(), "{} of {} files differ\n{}", failures.len(), files.len(), failures.join("\n"));
}

/// The first place where two lists differ, in words.
fn same<T: PartialEq + Debug>(what: &str, found: &[T], expected: &[T], note: impl Fn(usize) -> String) -> Outcome {
    if let Some(i) = found.iter().zip(expected).position(|(f, e)| f != e) {
        return Err(format!("{what}[{i}] is {:?}, not {:?} ({})", found[i], expected[i], note(i)));
    }
    if found.len() != expected.len() {
        return Err(format!("{what} has {} entries, not {}", found.len(), expected.len()));
    }
    Ok(())
}

struct Planned<'g> {
    file: &'g GraphFile,
    expected: &'g Expected,
    plan: Plan<'g>,
}

fn plan(file: &GraphFile) -> Result<Planned<'_>, String> {
    let expected = file.expected.as_ref().ok_or("records no plan")?;
    let plan = Setup::of(file).and_then(|setup| setup.plan(&file.graph, Placer::Ggml));
    Ok(Planned { file, expected, plan: plan.map_err(|e| e.to_string())? })
}

impl Planned<'_> {
    fn why(&self, tensor: TensorId) -> String {
        let cause = self.plan.assignment.cause(tensor);
        format!("{tensor} `{}`, rule {}: {cause}", self.file.graph.tensor(tensor).name, cause.rule())
    }

    fn same_devices(&self) -> Outcome {
        let graph = &self.file.graph;
        let found = self.plan.assignment.leaf_devices(graph);
        same("leaf_devices", found.as_slice(), self.expected.leaf_devices.as_slice(), |i| {
            self.why(graph.leafs().as_slice()[i])
        })?;
        let found = self.plan.assignment.node_devices(graph);
        same("node_devices", found.as_slice(), self.expected.node_devices.as_slice(), |i| {
            self.why(graph.nodes().as_slice()[i])
        })
    }

    fn same_splits(&self) -> Outcome {
        let found: Vec<_> = self
            .plan
            .splits
            .splits()
            .values()
            .map(|s| {
                let inputs: Vec<TensorId> = s.inputs().map(|c| self.plan.splits.copies()[c].tensor).collect();
                (s.device, s.start, s.end, inputs)
            })
            .collect();
        let expected: Vec<_> =
            self.expected.splits.values().map(|s| (s.device, s.start, s.end, s.inputs.clone())).collect();
        same("splits", &found, &expected, |i| match self.plan.splits.splits().values().nth(i) {
            Some(split) => format!("rule 2: {}", split.cause),
            None => "rule 2".to_owned(),
        })
    }

    fn same_alloc_graph(&self) -> Outcome {
        let (graph, expected) = (&self.plan.lowered.graph, &self.expected.alloc_graph);
        let rule = |_| "rule 3".to_owned();
        same("alloc_graph.leafs", &entries(graph, graph.leafs()), &expected.leafs, rule)?;
        same("alloc_graph.nodes", &entries(graph, graph.nodes()), &expected.nodes, rule)?;
        let ids = |ids: &[loadmaster_alloc::ArenaId]| ids.iter().map(|a| a.index()).collect::<Vec<_>>();
        let devices = |ids: &[loadmaster_graph::DeviceId]| ids.iter().map(|d| d.index()).collect::<Vec<_>>();
        let (found, recorded) = (ids(&self.plan.lowered.leaf_buffer_ids), devices(&expected.leaf_buffer_ids));
        same("alloc_graph.leaf_buffer_ids", &found, &recorded, rule)?;
        let (found, recorded) = (ids(&self.plan.lowered.node_buffer_ids), devices(&expected.node_buffer_ids));
        same("alloc_graph.node_buffer_ids", &found, &recorded, rule)?;
        self.same_sources()
    }

    fn same_places(&self) -> Outcome {
        let Some(sizes) = &self.expected.buffer_sizes else { return Ok(()) };
        let (graph, plan) = (&self.plan.lowered.graph, &self.plan.memory);
        let note = |rule: &'static str| move |_| format!("rule {rule}");
        let lists = [
            ("leaf_offsets", graph.leafs(), &self.expected.leaf_offsets),
            ("node_offsets", graph.nodes(), &self.expected.node_offsets),
        ];
        for (what, items, expected) in lists {
            let expected = expected.as_ref().ok_or_else(|| format!("records no {what}"))?;
            same(what, &places(plan, items), expected, note("4.2 to 5"))?;
        }
        same("buffer_sizes", plan.buffer_sizes().as_slice(), sizes.as_slice(), note("4"))
    }

    /// Nodes that read a copy read the recorded sources; all others read their own.
    fn same_sources(&self) -> Outcome {
        for &tensor in self.file.graph.nodes().values() {
            let own: Vec<Option<AllocEntry>> =
                self.file.graph.topology().sources(tensor).iter().map(|s| s.map(AllocEntry::Tensor)).collect();
            let expected = self.expected.alloc_graph.changed_src.get(&tensor).unwrap_or(&own);
            let sources = self.plan.lowered.graph.sources(ItemId::of(tensor));
            let found: Vec<_> = sources.iter().map(|s| s.map(|s| entry(&self.plan.lowered.graph, s))).collect();
            let kept = expected.len().max(found.len());
            let pad = |list: &[Option<AllocEntry>]| {
                let mut list = list.to_vec();
                list.resize(kept, None);
                list
            };
            same(&format!("sources of {tensor}"), &pad(&found), &pad(expected), |_| "rule 2".to_owned())?;
        }
        Ok(())
    }
}

fn entry(graph: &AllocGraph<'_>, item: ItemId) -> AllocEntry {
    match graph.item(item).origin {
        Origin::Tensor(tensor) => AllocEntry::Tensor(tensor),
        Origin::Copy { of, device, copy } => AllocEntry::CopyOf { of, device, copy },
        Origin::Keep(tensor) => AllocEntry::Keep(tensor),
    }
}

fn entries(graph: &AllocGraph<'_>, items: &[ItemId]) -> Vec<AllocEntry> {
    items.iter().map(|&item| entry(graph, item)).collect()
}

fn places(plan: &AllocPlan, items: &[ItemId]) -> Vec<Option<ExpectedPlace>> {
    let place = |p: loadmaster_alloc::Placement| ExpectedPlace {
        buffer: loadmaster_graph::DeviceId::new(p.arena.index()),
        chunk: p.chunk.index() as u32,
        offset: p.offset,
        size: p.size,
    };
    items.iter().map(|&item| plan.placement(item).map(place)).collect()
}

#[test]
fn every_golden_graph_needs_the_recorded_bytes_at_the_recorded_offsets() {
    let compared = AtomicUsize::new(0);
    on_every_golden(&[REAL, RANDOM], |file| {
        let planned = plan(file)?;
        compared.fetch_add(usize::from(planned.expected.buffer_sizes.is_some()), Ordering::Relaxed);
        planned.same_places()
    });
    assert_eq!(compared.into_inner(), 106 + RANDOM.1, "files that record offsets");
}

#[test]
fn every_golden_graph_gets_the_recorded_devices_splits_and_buffer_ids() {
    on_every_golden(&[REAL, RANDOM], |file| {
        let planned = plan(file)?;
        planned.same_devices()?;
        planned.same_splits()?;
        planned.same_alloc_graph()
    });
}

#[test]
fn the_padding_rule_gives_every_recorded_size_of_a_tensor() {
    on_every_golden(&[REAL], |file| {
        let setup = Setup::of(file).map_err(|e| e.to_string())?;
        for (id, tensor) in file.graph.tensors().iter() {
            for device in file.devices.ids() {
                let recorded = file.alloc_sizes.get(&id).map_or(tensor.nbytes(), |sizes| sizes[device]);
                let found: Bytes = setup.machine.compute_type(device).alloc_size(tensor);
                if found != recorded {
                    return Err(format!("{id} takes {found:?} on {device}, not {recorded:?}"));
                }
            }
        }
        Ok(())
    });
}

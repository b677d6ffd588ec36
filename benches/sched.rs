//! assign, split and lower on two full-size graphs: `cargo bench --bench sched`. Prints nanoseconds a node, too.

#![allow(clippy::unwrap_used, clippy::panic)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use loadmaster_graph::file::GraphFile;
use loadmaster_sched::{LowerOptions, Setup, assign, lower, split};
use std::hint::black_box;
use std::path::Path;

const GRAPHS: [&str; 2] = ["llama3-70b.2x48-fa.003", "qwen3-235b-a22b.8x24-fa.003"];

fn load(name: &str) -> GraphFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/goldens/graphs/{name}.json.gz"));
    GraphFile::read_path(&path).expect("golden files are readable")
}

/// Criterion's throughput line gives elements (nodes) a second; its inverse is the time of a node.
fn stages(c: &mut Criterion) {
    for name in GRAPHS {
        let file = load(name);
        let setup = Setup::of(&file).expect("golden files make machines");
        let (graph, machine, residency) = (&file.graph, &setup.machine, &setup.residency);
        let options = LowerOptions { n_copies: setup.n_copies, ..LowerOptions::default() };
        let assigned = || assign(graph, machine, residency, setup.assign).expect("golden graphs can be assigned");
        let assignment = assigned();
        let cut = || split(graph, machine, residency, &assignment).expect("golden graphs can be split");
        let plan = cut();

        let mut group = c.benchmark_group(format!("{name} ({} nodes)", graph.nodes().len()));
        group.throughput(Throughput::Elements(graph.nodes().len() as u64));
        group.bench_function(BenchmarkId::from_parameter("assign"), |b| b.iter(|| black_box(assigned())));
        group.bench_function(BenchmarkId::from_parameter("split"), |b| b.iter(|| black_box(cut())));
        group.bench_function(BenchmarkId::from_parameter("lower"), |b| {
            b.iter(|| black_box(lower(graph, residency, &assignment, &plan, &options)));
        });
        group.bench_function(BenchmarkId::from_parameter("assign+split+lower"), |b| {
            b.iter(|| {
                let assignment = assigned();
                let plan = split(graph, machine, residency, &assignment).expect("golden graphs can be split");
                black_box(lower(graph, residency, &assignment, &plan, &options).expect("golden plans can be lowered"));
            });
        });
        group.finish();
    }
}

/// Prints the time of a node, which criterion's own lines only give inverted.
fn per_node(_: &mut Criterion) {
    for name in GRAPHS {
        let file = load(name);
        let setup = Setup::of(&file).expect("golden files make machines");
        let options = LowerOptions { n_copies: setup.n_copies, ..LowerOptions::default() };
        let mut best = f64::INFINITY;
        for _ in 0..300 {
            let start = std::time::Instant::now();
            let assignment = assign(&file.graph, &setup.machine, &setup.residency, setup.assign).expect("as above");
            let plan = split(&file.graph, &setup.machine, &setup.residency, &assignment).expect("as above");
            black_box(lower(&file.graph, &setup.residency, &assignment, &plan, &options).expect("as above"));
            best = best.min(start.elapsed().as_nanos() as f64);
        }
        let nodes = file.graph.nodes().len();
        println!("{name}: {:.1} ns a node (assign+split+lower, best of 300, {nodes} nodes)", best / nodes as f64);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(50).measurement_time(std::time::Duration::from_secs(3));
    targets = stages, per_node
}
criterion_main!(benches);

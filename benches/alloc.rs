//! reserve_n under both placers and alloc_graph with a known plan, on two full-size graphs: `cargo bench --bench alloc`.
//! Prints nanoseconds a node, too.

#![allow(clippy::unwrap_used, clippy::panic)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use loadmaster_alloc::{BestOptions, Buffer, BufferType, GraphAllocator, InPlaceTable, Placer, Refused, report};
use loadmaster_graph::file::GraphFile;
use loadmaster_graph::{Align, Bytes, Tensor, TensorId};
use loadmaster_sched::{Lowered, Setup};
use std::any::Any;
use std::hint::black_box;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const GRAPHS: [&str; 2] = ["llama3-70b.2x48-fa.003", "qwen3-235b-a22b.8x24-fa.003"];

fn load(name: &str) -> GraphFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/goldens/graphs/{name}.json.gz"));
    GraphFile::read_path(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// A device's rules without its memory, so that planning is all that is measured.
#[derive(Debug)]
struct Unbacked(Arc<dyn BufferType>);

#[derive(Debug)]
struct NoBytes(Bytes);

impl Buffer for NoBytes {
    fn size(&self) -> Bytes {
        self.0
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl BufferType for Unbacked {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn alignment(&self) -> Align {
        self.0.alignment()
    }
    fn max_size(&self) -> Option<Bytes> {
        self.0.max_size()
    }
    fn is_host(&self) -> bool {
        self.0.is_host()
    }
    fn alloc_size(&self, id: TensorId, tensor: &Tensor) -> Bytes {
        self.0.alloc_size(id, tensor)
    }
    fn alloc_buffer(&self, size: Bytes) -> Result<Arc<dyn Buffer>, Refused> {
        Ok(Arc::new(NoBytes(size)))
    }
}

fn placers() -> [(&'static str, Placer); 3] {
    let own = BestOptions { in_place: InPlaceTable::loadmaster().into(), ..BestOptions::default() };
    [("ggml", Placer::Ggml), ("best", Placer::Best(BestOptions::default())), ("best, own table", Placer::Best(own))]
}

/// A lowered graph and what allocates it.
struct Bench<'f> {
    lowered: Lowered<'f>,
    types: Vec<Arc<dyn BufferType>>,
}

impl<'f> Bench<'f> {
    fn new(file: &'f GraphFile) -> Self {
        let setup = Setup::of(file).expect("golden files make machines");
        let plan = setup.plan(&file.graph, Placer::Ggml).expect("golden graphs can be planned");
        let types =
            plan.arenas.ids().map(|id| Arc::new(Unbacked(Arc::clone(plan.arenas.buffer_type(id)))) as _).collect();
        Self { lowered: plan.lowered, types }
    }

    fn allocator(&self, placer: Placer) -> GraphAllocator {
        GraphAllocator::new_n(self.types.clone()).with_placer(placer)
    }

    fn reserve(&self, allocator: &mut GraphAllocator) {
        let Lowered { graph, node_buffer_ids, leaf_buffer_ids, .. } = &self.lowered;
        black_box(allocator.reserve_n(graph, node_buffer_ids, leaf_buffer_ids).expect("golden graphs can be planned"));
    }

    fn size(&self, allocator: &GraphAllocator) {
        let Lowered { graph, node_buffer_ids, leaf_buffer_ids, .. } = &self.lowered;
        black_box(allocator.reserve_n_size(graph, node_buffer_ids, leaf_buffer_ids).expect("as above"));
    }
}

/// Criterion's throughput line gives elements (nodes) a second; its inverse is the time of a node.
fn stages(c: &mut Criterion) {
    for name in GRAPHS {
        let file = load(name);
        let bench = Bench::new(&file);
        let mut group = c.benchmark_group(format!("{name} ({} nodes)", file.graph.nodes().len()));
        group.throughput(Throughput::Elements(file.graph.nodes().len() as u64));
        for (placer, options) in placers() {
            let mut allocator = bench.allocator(options);
            group.bench_function(BenchmarkId::new("reserve_n", placer), |b| b.iter(|| bench.reserve(&mut allocator)));
        }
        let mut allocator = bench.allocator(Placer::Ggml);
        bench.reserve(&mut allocator);
        group.bench_function("alloc_graph, known", |b| {
            b.iter(|| black_box(allocator.alloc_graph(&bench.lowered.graph).expect("reserved")));
        });
        group.finish();
    }
}

fn best_of(runs: u32, mut run: impl FnMut()) -> f64 {
    let time = |run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        start.elapsed().as_nanos() as f64
    };
    (0..runs).map(|_| time(&mut run)).fold(f64::INFINITY, f64::min)
}

/// Prints the time of a node, which criterion's own lines only give inverted.
fn per_node(_: &mut Criterion) {
    for name in GRAPHS {
        let file = load(name);
        let bench = Bench::new(&file);
        let nodes = file.graph.nodes().len() as f64;
        for (placer, options) in placers() {
            let mut allocator = bench.allocator(options);
            let plan = best_of(200, || bench.size(&allocator)) / nodes;
            let reserve = best_of(200, || bench.reserve(&mut allocator)) / nodes;
            println!("{name}, {placer}: plan {plan:.1}, reserve_n {reserve:.1} ns a node (best of 200, {nodes} nodes)");
        }
        let mut allocator = bench.allocator(Placer::Ggml);
        bench.reserve(&mut allocator);
        let known = best_of(2000, || {
            black_box(allocator.alloc_graph(&bench.lowered.graph).expect("reserved"));
        });
        println!("{name}: alloc_graph with a known plan {known:.0} ns, {:.3} ns a node", known / nodes);
        let ids = loadmaster_alloc::BufferIds::Each {
            nodes: &bench.lowered.node_buffer_ids,
            leafs: &bench.lowered.leaf_buffer_ids,
        };
        let plan = allocator.alloc_graph(&bench.lowered.graph).expect("reserved").plan().clone();
        let explained = best_of(50, || {
            black_box(report(&bench.lowered.graph, allocator.arenas(), ids, &plan).expect("planned"));
        });
        println!("{name}: report {:.2} ms", explained / 1e6);
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(30).measurement_time(std::time::Duration::from_secs(2));
    targets = stages, per_node
}
criterion_main!(benches);

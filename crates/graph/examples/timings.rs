//! Times the reader, the verifier and the structural hash on a graph file:
//! `cargo run --release -p loadmaster-graph --example timings -- FILE.json.gz`.

use loadmaster_graph::{Graph, GraphFile, hash};
use std::hint::black_box;
use std::time::{Duration, Instant};

const ROUNDS: u32 = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: timings FILE.json[.gz]")?;
    let bytes = std::fs::read(path)?;
    let file = GraphFile::from_bytes(&bytes)?;
    let json = file.to_json()?;
    let tensors = file.graph.tensors().len();
    println!("{tensors} tensors, {} bytes of JSON", json.len());
    report("read gzip", tensors, best(|| GraphFile::from_bytes(&bytes)));
    report("read plain", tensors, best(|| GraphFile::from_bytes(json.as_bytes())));
    report("write plain", tensors, best(|| file.to_json()));
    let clone = best(|| file.graph.clone());
    let new = best(|| {
        let graph = file.graph.clone();
        let (tensors, nodes, leafs) = (graph.tensors().clone(), graph.nodes().clone(), graph.leafs().clone());
        Graph::new("again", tensors, nodes, leafs)
    });
    report("clone", tensors, clone);
    report("verify, index and hash (two clones taken off)", tensors, new.saturating_sub(clone * 2));
    report("hash", tensors, best(|| hash::of(&file.graph)));
    Ok(())
}

fn best<R>(mut run: impl FnMut() -> R) -> Duration {
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        black_box(run());
        start.elapsed()
    });
    times.min().unwrap_or_default()
}

fn report(what: &str, tensors: usize, time: Duration) {
    let per_tensor = time.as_nanos() as f64 / tensors.max(1) as f64;
    println!("{what}: {:.3} ms, {per_tensor:.1} ns a tensor", time.as_secs_f64() * 1e3);
}

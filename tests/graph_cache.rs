//! A graph that a model kept is the one that would be built: random models and recorded ones, random homes of weights.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "support/random_models.rs"]
mod random_models;

use loadmaster::engine::Model;
use loadmaster_graph::{ColumnOrder, DType};
use loadmaster_models::families::{
    self, Attention, BatchShape, CacheRequest, GraphSpec, HomeId, Homes, KvLayout, ModelGraph, SlidingCells,
};
use loadmaster_models::kv::Sharing;
use random_models::{Family, Random, Shape};
use std::path::Path;
use std::sync::Arc;

/// Two homes, so that equal placements, and different ones that come to the same graph, are often met.
fn homes(random: &mut Random, model: &Model) -> Homes {
    let layers = model.params.layers.len();
    let mut home = || HomeId::new(random.below(2) as usize);
    let (input, output) = (home(), home());
    let cut = random.below(layers as u32 + 1) as usize;
    let layer = |i: usize| HomeId::new(usize::from(i < cut));
    let factors = random.pick(&[None, Some(0), Some(1)]).map(HomeId::new);
    let factors = model.file.find("rope_freqs.weight").zip(factors).into_iter().collect();
    Homes { input, layers: (0..layers).map(layer).collect(), output, factors }
}

fn spec(random: &mut Random, model: &Model) -> GraphSpec {
    let sequences = 1 + random.below(2);
    let request = CacheRequest {
        context: random.pick(&[256, 512]),
        sequences,
        sharing: Sharing::PerSequence,
        micro_batch: 64,
        sliding: SlidingCells::Window,
        key_type: DType::F16,
        value_type: DType::F16,
    };
    let layout = KvLayout::new(&model.params, &request).unwrap();
    let shape = BatchShape::largest(&layout, random.pick(&[2, 64]));
    let columns = ColumnOrder { columns: random.pick(&[1, 4]), tail: 0 };
    let outputs = random.pick(&[1, shape.tokens]);
    let attention = random.pick(&[Attention::Plain, Attention::Flash]);
    let homes = homes(random, model);
    GraphSpec { shape: BatchShape { outputs, columns, ..shape }, layout, attention, homes }
}

/// Asks a model for many graphs, some of them again; how often it gave one that it had given before.
fn graphs_given_again(random: &mut Random, model: &Model) -> usize {
    let mut given: Vec<Arc<ModelGraph>> = Vec::new();
    let mut asked: Vec<GraphSpec> = Vec::new();
    let mut again = 0;
    for _ in 0..40 {
        let mut spec = match asked.last() {
            Some(last) if random.one_in(2) => last.clone(),
            _ => spec(random, model),
        };
        if random.one_in(2) {
            spec.homes = homes(random, model);
        }
        let found = model.graph(spec.clone()).unwrap();
        let built = families::build(&model.file, &model.params, &spec).unwrap();
        assert!(*found == built, "{}: another graph than that of {spec:?}", model.name);
        again += usize::from(given.iter().any(|g| Arc::ptr_eq(g, &found)));
        given.push(found);
        asked.push(spec);
    }
    let mut wrong = asked.pop().unwrap();
    wrong.homes.layers.push(HomeId::new(0));
    assert!(model.graph(wrong).is_err(), "{}", model.name);
    again
}

#[test]
fn a_graph_that_was_kept_is_the_one_that_would_be_built() {
    let (mut again, mut sharing) = (0, 0);
    let mut check = |random: &mut Random, model: &Model| {
        again += graphs_given_again(random, model);
        let spec = spec(random, model);
        sharing += usize::from(model.graph(spec).unwrap().shares_weights);
    };
    for seed in 0..42 {
        let mut random = Random::new(seed ^ 0x6772_6170);
        let shape = Shape::random(&mut random, Family::ALL[seed as usize % Family::ALL.len()]);
        let model = shape.model(&mut random);
        check(&mut random, &model);
    }
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/models");
    for name in ["tiny-llama-F16", "tiny-gemma3-Q8_0", "tiny-mixtral-Q8_0", "tiny-phi3-Q4_1", "headers/llama3-8b"] {
        let model = Model::open(&goldens.join(format!("{name}.gguf"))).unwrap();
        check(&mut Random::new(7), &model);
    }
    assert!(again > 200 && sharing > 10, "{again} graphs again, {sharing} models share weights");
}

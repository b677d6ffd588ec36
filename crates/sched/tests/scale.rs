//! No fixed tables: thousands of inputs, splits and sources, and more devices than a machine word has bits.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail loudly")]

mod support;

#[path = "support/chain.rs"]
mod chain;

use chain::plan_and_check;
use loadmaster_graph::{Op, TensorId};
use loadmaster_sched::{AssignOptions, Usage};
use support::{Sketch, dev, machine};

#[test]
fn two_thousand_inputs_enter_one_split() {
    let m = machine(&["sim:64GiB"]);
    let mut s = Sketch::default();
    let gpu = s.buffer(&m, 0, Usage::Weights);
    let w = s.leaf("w", Some(gpu));
    let mut sum = s.node(Op::Scale, &[w]);
    let inputs: Vec<TensorId> = (0..2000).map(|i| s.input(&format!("x{i}"))).collect();
    for x in inputs {
        sum = s.node(Op::Add, &[sum, x]);
    }
    let (graph, residency) = s.finish();
    let plan = plan_and_check(&graph, &m, &residency, AssignOptions::default(), 2).unwrap();
    assert_eq!(plan.splits.splits().len(), 1);
    assert_eq!(plan.splits.copies().len(), 2000);
    assert_eq!(plan.lowered.graph.leafs().len(), 2000 * 2 + 2000 * 2 + 2001);
}

#[test]
fn ten_thousand_nodes_make_ten_thousand_splits() {
    let m = machine(&["sim:64GiB", "sim:64GiB"]);
    let mut s = Sketch::default();
    let weights = [0, 1].map(|d| s.buffer(&m, d, Usage::Weights));
    let weights = weights.map(|b| s.leaf("w", Some(b)));
    let mut last = s.input("x");
    for i in 0..10_000 {
        last = s.node(Op::MulMat, &[weights[i % 2], last]);
    }
    let (graph, residency) = s.finish();
    let plan = plan_and_check(&graph, &m, &residency, AssignOptions::default(), 1).unwrap();
    assert_eq!(plan.splits.splits().len(), 10_000);
    assert_eq!(plan.splits.copies().len(), 10_000);
}

#[test]
fn forty_and_two_hundred_devices_take_a_layer_each() {
    for count in [40, 200] {
        let m = machine(&vec!["sim:1GiB"; count]);
        let mut s = Sketch::default();
        let x = s.input("x");
        let mut last = x;
        let mut layers = Vec::new();
        for device in 0..count {
            let buffer = s.buffer(&m, device, Usage::Weights);
            let w = s.leaf(&format!("w{device}"), Some(buffer));
            let product = s.node(Op::MulMat, &[w, last]);
            last = s.node(Op::Add, &[product, x]);
            layers.push((device, last));
        }
        let (graph, residency) = s.finish();
        let plan = plan_and_check(&graph, &m, &residency, AssignOptions::default(), 4).unwrap();
        assert_eq!(plan.splits.splits().len(), count);
        assert_eq!(plan.splits.copies().len(), 2 * count - 1, "x and the previous layer; the first layer is x");
        for (device, tensor) in layers {
            assert_eq!(plan.assignment.device(tensor), dev(device));
        }
    }
}

#[test]
fn sixty_sources_of_one_node_from_sixty_devices_are_all_copied() {
    let m = machine(&vec!["sim:1GiB"; 61]);
    let mut s = Sketch::default();
    let mut results = Vec::new();
    for device in 1..61 {
        let buffer = s.buffer(&m, device, Usage::Weights);
        let w = s.leaf(&format!("w{device}"), Some(buffer));
        results.push(s.node(Op::Scale, &[w]));
    }
    let buffer = s.buffer(&m, 0, Usage::Weights);
    let w = s.leaf("w", Some(buffer));
    let near = s.node(Op::Scale, &[w]);
    results.push(near);
    let joined = s.node(Op::Concat, &results);
    let (graph, residency) = s.finish();
    let plan = plan_and_check(&graph, &m, &residency, AssignOptions::default(), 1).unwrap();
    assert_eq!(plan.assignment.device(joined), dev(0));
    assert_eq!(plan.splits.copies().len(), 60);
}

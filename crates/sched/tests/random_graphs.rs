//! Random graphs on random machines, through the whole chain with every checker; and the checkers themselves.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail loudly")]

mod support;

#[path = "support/chain.rs"]
mod chain;
#[path = "support/random.rs"]
mod random;

use chain::plan_and_check;
use loadmaster_graph::{CopyId, Op};
use loadmaster_sched::{
    AssignOptions, LowerOptions, Machine, OpOffload, PlanFault, SchedError, assign, check_lowered, check_splits, lower,
    split,
};
use random::{Rng, Switches, random_graph, random_machine, shared_host_buffer, unlisted};
use std::num::NonZeroU32;
use support::{Sketch, dev, machine, parts};

#[test]
fn random_graphs_on_random_machines_satisfy_every_checker() {
    let mut planned = 0;
    let mut copies = 0;
    for seed in 0..1500_u64 {
        let mut rng = Rng(seed);
        let on = Switches::of(seed);
        let machine = random_machine(&mut rng, on);
        let nodes = 1 + rng.below(60);
        let (graph, residency) = random_graph(&mut rng, &machine, on, nodes).finish();
        let op_offload = if rng.one_in(4) { OpOffload::Off } else { OpOffload::On };
        let options = AssignOptions { op_offload, ..AssignOptions::default() };
        let n_copies = 1 + rng.below(4) as u32;
        match plan_and_check(&graph, &machine, &residency, options, n_copies) {
            Ok(plan) => {
                planned += 1;
                copies += plan.splits.copies().len();
            }
            // Tensors that cannot stay in their buffer are drawn, too, as is a tensor larger than any chunk.
            Err(SchedError::CannotMove { .. } | SchedError::NoDevice { .. }) => {}
            Err(other) => panic!("seed {seed}: {other}"),
        }
    }
    assert!(planned > 1200 && copies > 1200, "{planned} plans with {copies} copies");
}

#[test]
fn a_host_buffer_that_several_gpus_use_in_place_is_copied_to_none_of_them() {
    let mut parts = parts(3);
    let shared = shared_host_buffer(&mut parts, [dev(0), dev(2), dev(3)].into_iter().collect());
    let m = Machine::new(parts).unwrap();
    let mut s = Sketch::default();
    let buffer = s.buffers.push(shared);
    let near = [1, 2].map(|d| s.buffer(&m, d, loadmaster_sched::Usage::Weights));
    let w = s.leaf("w", Some(buffer));
    let others = near.map(|b| s.leaf("other", Some(b)));
    let first = s.node(Op::Scale, &[w]);
    let second = s.node(Op::MulMat, &[others[0], w]);
    let third = s.node(Op::MulMat, &[others[1], w]);
    let (graph, residency) = s.finish();
    let plan = plan_and_check(&graph, &m, &residency, AssignOptions::default(), 1).unwrap();
    let device = |t| plan.assignment.device(t).index();
    assert_eq!([first, second, third].map(device), [0, 1, 2]);
    let copied: Vec<_> = plan.splits.copies().values().map(|c| (c.tensor, c.to.index())).collect();
    assert_eq!(copied, [(w, 1)], "only the GPU that cannot use it");
}

#[test]
fn a_source_that_nothing_lists_goes_with_its_user() {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let gpu = s.buffer(&m, 0, loadmaster_sched::Usage::Weights);
    let w = s.leaf("w", Some(gpu));
    let hidden = unlisted(&mut s);
    s.node(Op::MulMat, &[w, hidden]);
    let (graph, residency) = s.finish();
    let plan = plan_and_check(&graph, &m, &residency, AssignOptions::default(), 2).unwrap();
    assert_eq!(plan.assignment.device(hidden), dev(0));
}

/// A graph of two devices with copies both ways.
fn crossing() -> (Machine, Sketch) {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let (gpu, host) =
        (s.buffer(&m, 0, loadmaster_sched::Usage::Weights), s.buffer(&m, 1, loadmaster_sched::Usage::Weights));
    let (w, e) = (s.leaf("w", Some(gpu)), s.leaf("e", Some(host)));
    let x = s.input("x");
    let a = s.node(Op::MulMat, &[w, x]);
    let b = s.node(Op::GetRows, &[e, a]);
    s.node(Op::MulMat, &[w, b]);
    (m, s)
}

#[test]
fn the_checker_of_splits_notices_a_view_that_is_pinned_away_from_its_root() {
    let (m, mut s) = crossing();
    let last = s.nodes[2];
    let view = s.view(Op::Reshape, last, &[last]);
    s.node(Op::Silu, &[view]);
    s.pin(view, 1);
    let (graph, residency) = s.finish();
    let assignment = assign(&graph, &m, &residency, AssignOptions::default()).unwrap();
    let splits = split(&graph, &m, &residency, &assignment).unwrap();
    let found = check_splits(&graph, &m, &residency, &assignment, &splits).unwrap_err();
    assert!(matches!(found, PlanFault::EarlyCopy { tensor, .. } if tensor == view), "{found}");
}

#[test]
fn the_checker_of_splits_notices_splits_of_another_assignment() {
    let (m, s) = crossing();
    let (graph, mut residency) = s.finish();
    let options = AssignOptions::default();
    let assignment = assign(&graph, &m, &residency, options).unwrap();
    let splits = split(&graph, &m, &residency, &assignment).unwrap();
    check_splits(&graph, &m, &residency, &assignment, &splits).unwrap();
    let middle = graph.nodes().as_slice()[1];
    residency.pinned.insert(middle, dev(0));
    let moved = assign(&graph, &m, &residency, options).unwrap();
    let fault = |a, s| check_splits(&graph, &m, &residency, a, s).unwrap_err();
    assert!(matches!(fault(&assignment, &splits), PlanFault::PinMoved { .. }));
    assert!(matches!(fault(&moved, &splits), PlanFault::WrongSplit { .. }));
    let joined = split(&graph, &m, &residency, &moved).unwrap();
    residency.pinned.clear();
    let found = check_splits(&graph, &m, &residency, &assignment, &joined).unwrap_err();
    assert!(matches!(found, PlanFault::WrongSplit { .. }), "{found}");
}

#[test]
fn the_checker_of_splits_notices_a_device_that_cannot_compute_or_read() {
    let (m, s) = crossing();
    let (graph, residency) = s.finish();
    let assignment = assign(&graph, &m, &residency, AssignOptions::default()).unwrap();
    let splits = split(&graph, &m, &residency, &assignment).unwrap();
    let mut parts = m.parts().clone();
    parts.devices[dev(0)].ops = loadmaster_sched::OpSet::all().without(Op::MulMat);
    let poorer = Machine::new(parts).unwrap();
    let found = check_splits(&graph, &poorer, &residency, &assignment, &splits).unwrap_err();
    assert!(matches!(found, PlanFault::Unsupported { .. }), "{found}");
    let none = loadmaster_sched::SplitPlan::default();
    let found = check_splits(&graph, &m, &residency, &assignment, &none).unwrap_err();
    assert!(matches!(found, PlanFault::Ranges { .. }), "{found}");
}

#[test]
fn the_checker_of_lists_notices_another_number_of_copies_and_a_wrong_id() {
    let (m, s) = crossing();
    let (graph, residency) = s.finish();
    let assignment = assign(&graph, &m, &residency, AssignOptions::default()).unwrap();
    let splits = split(&graph, &m, &residency, &assignment).unwrap();
    let options = LowerOptions { n_copies: NonZeroU32::new(2).unwrap(), keep: Vec::new() };
    let lowered = lower(&graph, &residency, &assignment, &splits, &options).unwrap();
    check_lowered(&graph, &assignment, &splits, &lowered).unwrap();
    let mut wrong = lowered.clone();
    wrong.node_buffer_ids.swap(0, 1);
    let found = check_lowered(&graph, &assignment, &splits, &wrong).unwrap_err();
    assert_eq!(found, PlanFault::List { list: "nodes", position: 0 });
    let mut wrong = lowered.clone();
    wrong.graph.push_leaf(wrong.copy_item(CopyId::new(0), 1));
    let found = check_lowered(&graph, &assignment, &splits, &wrong).unwrap_err();
    assert!(matches!(found, PlanFault::List { list: "leafs", .. }), "{found}");
    let mut wrong = lowered.clone();
    let reader = loadmaster_alloc::ItemId::of(graph.nodes().as_slice()[0]);
    wrong.graph.set_source(reader, 1, loadmaster_alloc::ItemId::new(0));
    let found = check_lowered(&graph, &assignment, &splits, &wrong).unwrap_err();
    assert!(matches!(found, PlanFault::Sources { .. }), "{found}");
}

//! Where graphs are cut, what is copied, and the list that the allocator sees.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail loudly")]

mod support;

use loadmaster_alloc::{ItemId, Origin};
use loadmaster_graph::{Flags, Op, TensorId};
use loadmaster_sched::{CopyCause, KeepUntil, LowerOptions, Operand, SchedError, SplitCause, Usage, lower};
use std::num::NonZeroU32;
use support::{Planned, Sketch, dev, machine, node};

/// GPU, host, GPU: `x` is read three times on the GPU.
fn there_and_back() -> (Planned, [TensorId; 5]) {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let (gpu, host) = (s.buffer(&m, 0, Usage::Weights), s.buffer(&m, 1, Usage::Weights));
    let (w, e) = (s.leaf("w", Some(gpu)), s.leaf("e", Some(host)));
    let x = s.input("x");
    let a = s.node(Op::MulMat, &[w, x]);
    let b = s.node(Op::Add, &[a, x]);
    let c = s.node(Op::GetRows, &[e, b]);
    let d = s.node(Op::MulMat, &[w, x, c]);
    (Planned::new(&m, s), [x, a, b, c, d])
}

#[test]
fn a_tensor_is_copied_once_for_a_device_and_later_splits_read_that_copy() {
    let (p, [x, _, b, c, d]) = there_and_back();
    assert_eq!(p.split_list(), [(0, 0, 2, vec![x]), (1, 2, 3, vec![b]), (0, 3, 4, vec![c])]);
    let copies: Vec<_> = p.splits.copies().values().collect();
    assert_eq!(copies[0].cause, CopyCause::InputElsewhere);
    assert_eq!(copies[1].cause, CopyCause::ComputedElsewhere);
    assert_eq!((copies[1].from, copies[1].to, copies[1].reader), (dev(0), dev(1), node(2)));
    assert_eq!(copies[1].bytes, p.graph.tensor(b).nbytes());
    let reads: Vec<_> = p.splits.operands(&p.graph, node(3)).collect();
    assert!(matches!(reads[0], Some(Operand::Tensor(_))), "weights are read in place");
    assert_eq!(reads[1], Some(Operand::Copy(p.splits.splits().values().next().unwrap().inputs().next().unwrap())));
    assert!(matches!(reads[2], Some(Operand::Copy(_))));
    assert_eq!(p.graph.nodes()[node(3)], d);
}

#[test]
fn a_second_set_of_uploaded_weights_begins_a_new_split() {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let host = s.buffer(&m, 1, Usage::Weights);
    let (w1, w2) = (s.leaf("w1", Some(host)), s.leaf("w2", Some(host)));
    let x = s.input("x");
    let a = s.batch_node(Op::MulMat, &[w1, x], 64);
    let b = s.batch_node(Op::MulMat, &[w2, a], 64);
    let c = s.batch_node(Op::MulMat, &[w1, b], 64);
    let p = Planned::new(&m, s);
    assert_eq!(p.split_list(), [(0, 0, 1, vec![w1, x]), (0, 1, 2, vec![w2]), (0, 2, 3, vec![])]);
    let causes: Vec<_> = p.splits.splits().values().map(|s| s.cause).collect();
    assert_eq!(causes[1..], [SplitCause::MoreWeights { source: w2 }, SplitCause::MoreWeights { source: w1 }]);
    assert!(matches!(p.splits.copies().values().next().unwrap().cause, CopyCause::BufferNotUsable { .. }));
    assert_eq!(p.device(c), 0);
}

#[test]
fn views_belong_to_the_split_around_them_and_a_graph_of_views_is_one_split() {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let loose = s.leaf("loose", None);
    s.view(Op::View, loose, &[loose]);
    s.view(Op::Reshape, loose, &[loose]);
    let p = Planned::new(&m, s);
    assert_eq!(p.split_list(), [(0, 0, 2, vec![])]);
    assert_eq!(p.splits.splits().values().next().unwrap().cause, SplitCause::First);
}

#[test]
fn a_graph_without_nodes_has_no_split() {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    s.input("x");
    let p = Planned::new(&m, s);
    assert!(p.splits.splits().is_empty());
    assert!(p.lower(&LowerOptions::default()).graph.nodes().is_empty());
}

#[test]
fn a_node_with_holes_reads_what_stands_around_them() {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let gpu = s.buffer(&m, 0, Usage::Weights);
    let w = s.leaf("w", Some(gpu));
    let x = s.input("x");
    let y = s.node(Op::MulMat, &[w, x]);
    s.tensors[y].src = [Some(w), None, None, Some(x)].into_iter().collect();
    let p = Planned::new(&m, s);
    let reads: Vec<_> = p.splits.operands(&p.graph, node(0)).collect();
    assert!(matches!(reads[..], [Some(Operand::Tensor(_)), None, None, Some(Operand::Copy(_))]));
    let lowered = p.lower(&LowerOptions::default());
    assert!(lowered.graph.sources(ItemId::of(y))[1].is_none());
}

#[test]
fn a_cast_that_names_itself_as_its_source_is_no_copy() {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let gpu = s.buffer(&m, 0, Usage::Weights);
    let w = s.leaf("w", Some(gpu));
    let y = s.node(Op::Scale, &[w]);
    let cast = s.node(Op::Cpy, &[y]);
    s.tensors[cast].src = [Some(y), Some(cast)].into_iter().collect();
    let p = Planned::new(&m, s);
    assert!(p.splits.copies().is_empty());
    assert_eq!(p.device(cast), 0);
    p.lower(&LowerOptions::default());
}

fn origins(p: &Planned, items: &[ItemId], lowered: &loadmaster_sched::Lowered<'_>) -> Vec<Origin> {
    assert!(!p.graph.nodes().is_empty());
    items.iter().map(|&i| lowered.graph.item(i).origin).collect()
}

#[test]
fn each_input_is_kept_then_copied_before_its_split() {
    let (p, [x, a, b, c, d]) = there_and_back();
    let lowered = p.lower(&LowerOptions::default());
    let copy = |of, device| Origin::Copy { of, device: dev(device), copy: 0 };
    let nodes = origins(&p, lowered.graph.nodes(), &lowered);
    let t = Origin::Tensor;
    let expected =
        [Origin::Keep(x), copy(x, 0), t(a), t(b), Origin::Keep(b), copy(b, 1), t(c), Origin::Keep(c), copy(c, 0), t(d)];
    assert_eq!(nodes, expected);
    let ids: Vec<usize> = lowered.node_buffer_ids.iter().map(|a| a.index()).collect();
    assert_eq!(ids, [1, 0, 0, 0, 0, 1, 1, 1, 0, 0]);
    assert_eq!(lowered.graph.item(lowered.copy_item(loadmaster_graph::CopyId::new(0), 0)).flags, Flags::NONE);
}

#[test]
fn pipelining_gives_every_input_and_every_copy_as_many_places_as_there_are_turns() {
    let (p, [x, ..]) = there_and_back();
    let options = LowerOptions { n_copies: NonZeroU32::new(3).unwrap(), keep: Vec::new() };
    let lowered = p.lower(&options);
    let leafs = origins(&p, lowered.graph.leafs(), &lowered);
    assert_eq!(leafs.len(), 3 + 3 * 3 + 3, "x and its copies, three split inputs, and the leafs themselves");
    assert_eq!(leafs[0], Origin::Tensor(x));
    let both = Flags::INPUT.with(Flags::OUTPUT);
    for turn in 0..7 {
        let item = lowered.leaf_item(x, turn);
        assert_eq!(lowered.graph.item(item).flags, both);
        let at_home = Origin::Copy { of: x, device: dev(1), copy: turn % 3 };
        let expected = if turn % 3 == 0 { Origin::Tensor(x) } else { at_home };
        assert_eq!(lowered.graph.item(item).origin, expected);
        let copied = lowered.copy_item(loadmaster_graph::CopyId::new(2), turn);
        assert!(matches!(lowered.graph.item(copied).origin, Origin::Copy { copy, .. } if copy == turn % 3));
        assert_eq!(lowered.graph.item(copied).flags, both);
    }
    assert_eq!(lowered.leaf_item(p.graph.leafs().as_slice()[0], 2), ItemId::of(p.graph.leafs().as_slice()[0]));
}

#[test]
fn a_back_end_can_keep_a_tensor_until_a_node_has_run() {
    let (p, [_, a, b, ..]) = there_and_back();
    let wish = |tensor, until| KeepUntil { until: node(until), tensor };
    let keep = vec![wish(b, 3), wish(a, 2), wish(a, 2), wish(b, 2)];
    let lowered = p.lower(&LowerOptions { keep, ..LowerOptions::default() });
    let nodes = origins(&p, lowered.graph.nodes(), &lowered);
    assert_eq!(nodes[7..9], [Origin::Keep(a), Origin::Keep(b)], "after n2, each once");
    assert_eq!(nodes[12], Origin::Keep(b), "after n3");
    assert_eq!((lowered.node_buffer_ids[7].index(), lowered.node_buffer_ids[12].index()), (1, 0), "the split's device");
}

#[test]
fn wishes_for_what_is_not_there_and_absurd_copy_counts_are_refused() {
    let (p, _) = there_and_back();
    let fails = |options: &LowerOptions| lower(&p.graph, &p.residency, &p.assignment, &p.splits, options).unwrap_err();
    let wish = |tensor, until| KeepUntil { until: node(until), tensor: TensorId::new(tensor) };
    let keep = |k| LowerOptions { keep: vec![k], ..LowerOptions::default() };
    assert!(matches!(fails(&keep(wish(99, 0))), SchedError::UnknownTensor { .. }));
    assert!(matches!(fails(&keep(wish(0, 99))), SchedError::UnknownNode { .. }));
    let many = LowerOptions { n_copies: NonZeroU32::MAX, ..LowerOptions::default() };
    assert!(matches!(fails(&many), SchedError::Limit { what: "pipeline copies", .. }));
}

#[test]
fn plans_of_another_graph_are_refused() {
    let (p, _) = there_and_back();
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let x = s.input("x");
    s.node(Op::Silu, &[x]);
    let other = Planned::new(&m, s);
    let wrong = loadmaster_sched::split(&p.graph, &m, &p.residency, &other.assignment).unwrap_err();
    assert!(matches!(wrong, SchedError::Mismatch { what: "assignment", found: 2, expected: 7 }), "{wrong}");
    let options = LowerOptions::default();
    let wrong = lower(&p.graph, &p.residency, &p.assignment, &other.splits, &options).unwrap_err();
    assert!(matches!(wrong, SchedError::Mismatch { what: "split plan", found: 1, expected: 4 }), "{wrong}");
}

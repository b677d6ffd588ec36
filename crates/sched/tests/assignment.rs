//! Every rule of section 1 on the smallest graph that shows it, with its cause.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail loudly")]

mod support;

use loadmaster_graph::{BufferTypeId, DeviceId, Op};
use loadmaster_sched::machine::BufferTypeDesc;
use loadmaster_sched::{
    AssignOptions, Cause, DeviceSet, Machine, OpOffload, OpSet, ResidentBuffer, SchedError, Sweep, Usage,
};
use support::{Planned, Sketch, assign_error, dev, machine, parts};

#[test]
fn a_pinned_node_stays_whatever_its_weights_say() {
    let m = machine(&["sim:1GiB", "sim:1GiB"]);
    let mut s = Sketch::default();
    let weights = s.buffer(&m, 0, Usage::Weights);
    let w = s.leaf("w", Some(weights));
    let x = s.input("x");
    let y = s.node(Op::MulMat, &[w, x]);
    s.pin(y, 1);
    let p = Planned::new(&m, s);
    assert_eq!((p.device(y), p.cause(y)), (1, Cause::Pinned));
}

#[test]
fn a_tensor_in_a_buffer_goes_to_the_first_device_that_can_use_it_and_a_view_to_that_of_its_root() {
    let m = machine(&["sim:1GiB", "sim:1GiB"]);
    let mut s = Sketch::default();
    let cache = s.buffer(&m, 1, Usage::Any);
    let kv = s.leaf("kv", Some(cache));
    let x = s.input("x");
    let stored = s.view(Op::SetRows, kv, &[x, kv]);
    let read = s.view(Op::View, kv, &[stored]);
    let p = Planned::new(&m, s);
    for tensor in [kv, stored, read] {
        assert_eq!((p.device(tensor), p.cause(tensor)), (1, Cause::InBuffer { buffer: cache }), "{tensor}");
    }
}

#[test]
fn a_tensor_that_cannot_stay_in_its_buffer_is_an_error_that_names_all_three() {
    let mut parts = parts(1);
    parts.devices[dev(0)].ops = OpSet::all().without(Op::SetRows);
    let m = Machine::new(parts).unwrap();
    let mut s = Sketch::default();
    let cache = s.buffer(&m, 0, Usage::Any);
    let kv = s.leaf("kv", Some(cache));
    let x = s.input("x");
    let stored = s.view(Op::SetRows, kv, &[x, kv]);
    let error = assign_error(&m, s);
    assert!(
        matches!(error, SchedError::CannotMove { tensor, buffer, op: Op::SetRows, .. } if tensor == stored && buffer == cache)
    );
    let text = error.to_string();
    assert!(
        text.contains("`view`") && text.contains("buf0") && text.contains("SET_ROWS") && text.contains("SIM0"),
        "{text}"
    );
}

#[test]
fn an_input_is_on_the_fallback() {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let x = s.input("x");
    s.node(Op::Silu, &[x]);
    let p = Planned::new(&m, s);
    assert_eq!((p.device(x), p.cause(x)), (1, Cause::Input));
}

#[test]
fn the_first_weight_source_decides_even_where_no_device_fits_it() {
    let mut parts = parts(2);
    parts.devices[dev(0)].ops = OpSet::all().without(Op::MulMat);
    let m = Machine::new(parts).unwrap();
    let mut s = Sketch::default();
    let (first, second) = (s.buffer(&m, 0, Usage::Weights), s.buffer(&m, 1, Usage::Weights));
    let (a, b) = (s.leaf("a", Some(first)), s.leaf("b", Some(second)));
    let scaled = s.node(Op::Scale, &[b]);
    let product = s.node(Op::MulMat, &[a, b]);
    let p = Planned::new(&m, s);
    assert_eq!((p.device(scaled), p.cause(scaled)), (1, Cause::WeightSource { source: b }));
    // `a` is asked first, and no device that can use it multiplies: the neighbour decides.
    assert!(matches!(p.cause(product), Cause::Expanded { from, .. } if from == scaled));
}

#[test]
fn a_buffer_of_another_usage_and_rope_frequencies_attract_nothing() {
    let m = machine(&["sim:1GiB", "sim:1GiB"]);
    let mut s = Sketch::default();
    let (cache, weights) = (s.buffer(&m, 1, Usage::Any), s.buffer(&m, 1, Usage::Weights));
    let (kv, freqs) = (s.leaf("kv", Some(cache)), s.leaf("freqs", Some(weights)));
    let near = s.buffer(&m, 0, Usage::Weights);
    let w = s.leaf("w", Some(near));
    let y = s.node(Op::Scale, &[w]);
    let read = s.node(Op::Add, &[kv, y]);
    let roped = s.node(Op::Rope, &[y, freqs]);
    let attended = s.node(Op::FlashAttnExt, &[roped, freqs]);
    let p = Planned::new(&m, s);
    for tensor in [read, roped, attended] {
        assert!(matches!(p.cause(tensor), Cause::Expanded { sweep: Sweep::ForwardsAccelerators, .. }));
        assert_eq!(p.device(tensor), 0);
    }
}

/// Weights on the host, a product of `rows` rows, one GPU.
fn offloaded(rows: u64, options: AssignOptions) -> (usize, bool) {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let host = s.buffer(&m, 1, Usage::Weights);
    let w = s.leaf("w", Some(host));
    let x = s.input("x");
    let y = s.batch_node(Op::MulMat, &[w, x], rows);
    let p = Planned::with(&m, s, options);
    assert!(matches!(p.cause(y), Cause::Offload { source } | Cause::WeightSource { source } if source == w));
    (p.device(y), matches!(p.cause(y), Cause::Offload { .. }))
}

#[test]
fn a_batch_of_32_is_worth_uploading_weights_and_31_is_not() {
    let on = AssignOptions::default();
    assert_eq!(offloaded(31, on), (1, false));
    assert_eq!(offloaded(32, on), (0, true));
    assert_eq!(offloaded(32, AssignOptions { op_offload: OpOffload::Off, ..on }), (1, false));
}

#[test]
fn weights_that_the_host_cannot_read_as_they_are_stay_where_they_are() {
    // Re-laid weights: host memory, usable by the host, not readable as they are.
    let mut parts = parts(1);
    let pool = parts.buffer_types[parts.devices[dev(1)].buffer_type].pool;
    let like = parts.buffer_types[parts.devices[dev(1)].buffer_type].clone();
    let usable_by = DeviceSet::from_iter([dev(1)]);
    let repacked =
        parts.buffer_types.push(BufferTypeDesc { name: "CPU_REPACK".into(), pool, host: false, usable_by, ..like });
    let m = Machine::new(parts).unwrap();
    let mut s = Sketch::default();
    let buffer = s.buffers.push(ResidentBuffer { buffer_type: repacked, usage: Usage::Weights });
    let w = s.leaf("w", Some(buffer));
    let x = s.input("x");
    let y = s.batch_node(Op::MulMat, &[w, x], 512);
    let p = Planned::new(&m, s);
    assert_eq!((p.device(y), p.cause(y)), (1, Cause::WeightSource { source: w }));
}

#[test]
fn accelerators_spread_forwards_then_backwards_and_the_fallback_clears_what_is_carried() {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let (gpu, host) = (s.buffer(&m, 0, Usage::Weights), s.buffer(&m, 1, Usage::Weights));
    let (w, e) = (s.leaf("w", Some(gpu)), s.leaf("e", Some(host)));
    let x = s.input("x");
    let before = s.node(Op::Silu, &[x]);
    let on_gpu = s.node(Op::MulMat, &[w, before]);
    let after = s.node(Op::Silu, &[on_gpu]);
    let on_host = s.node(Op::GetRows, &[e, x]);
    let last = s.node(Op::Add, &[on_host, after]);
    let p = Planned::new(&m, s);
    let expanded = |sweep, from| Cause::Expanded { sweep, from };
    assert_eq!((p.device(before), p.cause(before)), (0, expanded(Sweep::BackwardsAccelerators, on_gpu)));
    assert_eq!((p.device(after), p.cause(after)), (0, expanded(Sweep::ForwardsAccelerators, on_gpu)));
    assert_eq!((p.device(last), p.cause(last)), (1, expanded(Sweep::ForwardsAny, on_host)));
}

#[test]
fn the_fallback_spreads_backwards_where_no_accelerator_does() {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let host = s.buffer(&m, 1, Usage::Weights);
    let e = s.leaf("e", Some(host));
    let x = s.input("x");
    let first = s.node(Op::Silu, &[x]);
    let last = s.node(Op::GetRows, &[e, first]);
    let p = Planned::new(&m, s);
    assert_eq!(p.cause(first), Cause::Expanded { sweep: Sweep::BackwardsAny, from: last });
}

#[test]
fn a_node_that_no_neighbour_can_take_goes_where_most_of_its_sources_are() {
    let mut parts = parts(3);
    parts.devices[dev(0)].ops = OpSet::all().without(Op::Concat);
    let m = Machine::new(parts).unwrap();
    let mut s = Sketch::default();
    let buffers = [0, 1, 2].map(|d| s.buffer(&m, d, Usage::Any));
    let near = s.buffer(&m, 0, Usage::Weights);
    let w = s.leaf("w", Some(near));
    let [a, b, c] = buffers.map(|buffer| s.leaf("cache", Some(buffer)));
    let before = s.node(Op::Scale, &[w]);
    let joined = s.node(Op::Concat, &[a, b, c, c]);
    let after = s.node(Op::Scale, &[w]);
    let p = Planned::new(&m, s);
    assert_eq!((p.device(before), p.device(after)), (0, 0));
    assert_eq!((p.device(joined), p.cause(joined)), (2, Cause::BestFit { usable_sources: 2 }));
}

/// A GPU and a host that compute in one buffer type.
fn unified() -> Machine {
    let mut parts = parts(1);
    parts.devices[dev(1)].buffer_type = BufferTypeId::new(0);
    let pool = parts.buffer_types[BufferTypeId::new(0)].pool;
    parts.pools[pool].kind = loadmaster_sched::machine::PoolKind::Unified;
    parts.devices[dev(1)].pools = vec![pool];
    parts.buffer_types[BufferTypeId::new(0)].host = true;
    parts.buffer_types[BufferTypeId::new(0)].usable_by = [dev(0), dev(1)].into_iter().collect();
    Machine::new(parts).unwrap()
}

#[test]
fn a_node_moves_up_to_a_device_that_works_in_the_same_memory_but_a_pinned_one_does_not() {
    let m = unified();
    let mut s = Sketch::default();
    let x = s.input("x");
    let pinned = s.node(Op::Silu, &[x]);
    let free = s.node(Op::Silu, &[pinned]);
    s.pin(pinned, 1);
    let p = Planned::new(&m, s);
    assert_eq!((p.device(pinned), p.cause(pinned)), (1, Cause::Pinned));
    assert_eq!((p.device(free), p.cause(free)), (0, Cause::Upgraded { from: dev(1) }));
    assert!(p.splits.copies().is_empty(), "one memory, no copies");
}

#[test]
fn an_unassigned_view_follows_its_root_and_a_plain_source_its_first_user() {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let gpu = s.buffer(&m, 0, Usage::Weights);
    let w = s.leaf("w", Some(gpu));
    let loose = s.leaf("loose", None);
    let y = s.node(Op::MulMat, &[w, loose]);
    let v = s.view(Op::Reshape, y, &[y]);
    let p = Planned::new(&m, s);
    assert_eq!((p.device(v), p.cause(v)), (0, Cause::ViewOf { root: y }));
    assert_eq!((p.device(loose), p.cause(loose)), (0, Cause::SourceOf { user: y }));
}

#[test]
fn a_view_of_something_that_nothing_places_takes_the_first_device_and_its_root_follows() {
    let m = machine(&["sim:1GiB"]);
    let mut s = Sketch::default();
    let loose = s.leaf("loose", None);
    let unused = s.leaf("unused", None);
    let v = s.view(Op::View, loose, &[loose]);
    let p = Planned::new(&m, s);
    assert_eq!((p.device(v), p.cause(v)), (0, Cause::FirstSupporting));
    assert_eq!((p.device(loose), p.cause(loose)), (0, Cause::RootOf { view: v }));
    assert_eq!((p.device(unused), p.cause(unused)), (1, Cause::Unused));
}

#[test]
fn a_node_that_no_device_supports_is_an_error_that_names_node_operation_and_devices() {
    let mut parts = parts(1);
    for device in [dev(0), dev(1)] {
        parts.devices[device].ops = OpSet::all().without(Op::SsmScan);
    }
    let m = Machine::new(parts).unwrap();
    let mut s = Sketch::default();
    let x = s.input("x");
    let y = s.node(Op::SsmScan, &[x]);
    let error = assign_error(&m, s);
    assert!(matches!(error, SchedError::NoDevice { tensor, op: Op::SsmScan, .. } if tensor == y));
    let text = error.to_string();
    assert!(text.contains("n0") && text.contains("SSM_SCAN") && text.contains("SIM0, CPU"), "{text}");
}

#[test]
fn arguments_for_another_graph_or_machine_are_refused() {
    let m = machine(&["sim:1GiB"]);
    let plan = |change: &dyn Fn(&mut Sketch)| {
        let mut s = Sketch::default();
        let x = s.input("x");
        s.node(Op::Silu, &[x]);
        change(&mut s);
        assign_error(&m, s)
    };
    let strange = ResidentBuffer { buffer_type: BufferTypeId::new(9), usage: Usage::Any };
    let cases: [(SchedError, &str); 5] = [
        (plan(&|s| s.residency.external = [true].into_iter().collect()), "external"),
        (plan(&|s| s.buffer_of[0] = Some(loadmaster_graph::BufferId::new(3))), "buf3"),
        (plan(&|s| s.buffers = [strange].into_iter().collect()), "bt9"),
        (plan(&|s| s.pin(loadmaster_graph::TensorId::new(0), 7)), "dev7"),
        (plan(&|s| s.pin(loadmaster_graph::TensorId::new(70), 0)), "t70"),
    ];
    for (error, word) in cases {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn every_cause_says_its_rule_and_what_led_to_it() {
    let t = loadmaster_graph::TensorId::new(17);
    let causes = [
        (Cause::Pinned, "1.1", "pinned"),
        (Cause::InBuffer { buffer: loadmaster_graph::BufferId::new(2) }, "1.2a", "buf2"),
        (Cause::Input, "1.2b", "input"),
        (Cause::WeightSource { source: t }, "1.2c", "t17"),
        (Cause::Offload { source: t }, "1.2c", "uploading the weights t17"),
        (Cause::Expanded { sweep: Sweep::ForwardsAccelerators, from: t }, "1.3a", "t17 (forwards"),
        (Cause::Expanded { sweep: Sweep::BackwardsAccelerators, from: t }, "1.3b", "t17 (backwards"),
        (Cause::Expanded { sweep: Sweep::ForwardsAny, from: t }, "1.3c", "any device"),
        (Cause::Expanded { sweep: Sweep::BackwardsAny, from: t }, "1.3d", "any device"),
        (Cause::BestFit { usable_sources: 3 }, "1.4", "3 of its sources"),
        (Cause::Upgraded { from: DeviceId::new(4) }, "1.4", "dev4"),
        (Cause::ViewOf { root: t }, "1.5", "view of t17"),
        (Cause::SourceOf { user: t }, "1.5", "used by t17"),
        (Cause::FirstSupporting, "1.5", "first device"),
        (Cause::RootOf { view: t }, "-", "view t17"),
        (Cause::Unused, "-", "not used"),
    ];
    for (cause, rule, words) in causes {
        assert_eq!(cause.rule(), rule);
        assert!(cause.to_string().contains(words), "{cause}");
    }
}

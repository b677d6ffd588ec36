//! Machines: what is refused and why, short specs, memory rules.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail loudly")]

mod support;

use loadmaster_graph::{Align, BufferTypeId, Bytes, DType, Op, PoolId, Tensor};
use loadmaster_sched::machine::{Link, LinkPath, MachineError, offload_batch};
use loadmaster_sched::{DeviceSpec, Machine, MachineParts, SchedError};
use support::{dev, machine, parts};

fn link(from: usize, to: usize) -> Link {
    Link { from: dev(from), to: dev(to), path: LinkPath::Peer, bandwidth: Bytes::gib(25), latency_ns: 10 }
}

type Change = fn(&mut MachineParts);
type Expected = fn(&MachineError) -> bool;

#[test]
fn every_contradiction_of_a_machine_is_refused_with_its_own_error() {
    let own = BufferTypeId::new(0);
    let cases: [(Change, Expected); 18] = [
        (|p| *p = MachineParts::default(), |e| matches!(e, MachineError::NoDevice)),
        (
            |p| p.devices[dev(1)].name = "SIM0".into(),
            |e| matches!(e, MachineError::DuplicateName { what: "device", .. }),
        ),
        (
            |p| p.pools[PoolId::new(1)].name = "SIM0".into(),
            |e| matches!(e, MachineError::DuplicateName { what: "pool", .. }),
        ),
        (|p| p.devices[dev(1)].name = "".into(), |e| matches!(e, MachineError::NoName { what: "device", index: 1 })),
        (
            |p| p.buffer_types[BufferTypeId::new(1)].name = "".into(),
            |e| matches!(e, MachineError::NoName { what: "buffer type", index: 1 }),
        ),
        (|p| p.fallback = Some(dev(9)), |e| matches!(e, MachineError::UnknownDevice { .. })),
        (
            |p| p.buffer_types[BufferTypeId::new(0)].usable_by.insert(dev(70)),
            |e| matches!(e, MachineError::UnknownDevice { .. }),
        ),
        (|p| p.links.push(link(0, 5)), |e| matches!(e, MachineError::UnknownDevice { .. })),
        (
            |p| p.buffer_types[BufferTypeId::new(0)].pool = PoolId::new(8),
            |e| matches!(e, MachineError::UnknownPool { .. }),
        ),
        (|p| p.devices[dev(0)].pools.push(PoolId::new(8)), |e| matches!(e, MachineError::UnknownPool { .. })),
        (
            |p| p.devices[dev(0)].buffer_type = BufferTypeId::new(8),
            |e| matches!(e, MachineError::UnknownBufferType { .. }),
        ),
        (
            |p| p.devices[dev(0)].buffer_type = BufferTypeId::new(1),
            |e| matches!(e, MachineError::CannotUseOwnType { .. }),
        ),
        (|p| p.devices[dev(0)].pools.clear(), |e| matches!(e, MachineError::ForeignPool { .. })),
        (
            |p| p.buffer_types[BufferTypeId::new(0)].row_padding = Some(100),
            |e| matches!(e, MachineError::RowPadding { padding: 100, .. }),
        ),
        (|p| p.buffer_types[BufferTypeId::new(0)].host = true, |e| matches!(e, MachineError::HostFlag { .. })),
        (|p| p.pools[PoolId::new(0)].capacity = Some(Bytes::ZERO), |e| matches!(e, MachineError::EmptyPool { .. })),
        (|p| p.links.push(link(1, 1)), |e| matches!(e, MachineError::LinkToItself { .. })),
        (|p| p.links.extend([link(0, 1), link(0, 1)]), |e| matches!(e, MachineError::DuplicateLink { .. })),
    ];
    for (i, (change, expected)) in cases.into_iter().enumerate() {
        let mut parts = parts(1);
        change(&mut parts);
        let error = Machine::new(parts).unwrap_err();
        assert!(expected(&error), "case {i}: {error}");
        assert!(error.to_string().len() > 10);
    }
    for (max_size, capacity) in [(Bytes(64), None), (Bytes::gib(2), Some(Bytes::gib(1)))] {
        let mut parts = parts(1);
        parts.buffer_types[own].max_size = Some(max_size);
        parts.pools[PoolId::new(0)].capacity = capacity;
        assert!(matches!(Machine::new(parts), Err(MachineError::MaxSize { .. })));
    }
    let mut parts = parts(1);
    parts.links.push(Link { bandwidth: Bytes::ZERO, ..link(0, 1) });
    assert!(matches!(Machine::new(parts), Err(MachineError::NoBandwidth { .. })));
}

#[test]
fn the_fastest_link_between_two_devices_is_the_one_taken() {
    let mut parts = parts(1);
    let slow = Link { path: LinkPath::Pageable, bandwidth: Bytes::gib(1), ..link(0, 1) };
    parts.links = vec![slow, link(0, 1)];
    let m = Machine::new(parts).unwrap();
    assert_eq!(m.link(dev(0), dev(1)).map(|l| l.path), Some(LinkPath::Peer));
    assert_eq!(m.link(dev(1), dev(0)), None);
}

#[test]
fn short_specs_make_the_machine_that_they_say() {
    let m = machine(&["sim:24GiB", "cuda:3,memory=80GiB", "sim:1.5GiB,chunk=256MiB,align=256,name=small", "cpu:64GiB"]);
    let names: Vec<&str> = m.devices().values().map(|d| &*d.name).collect();
    assert_eq!(names, ["SIM0", "CUDA3", "small", "CPU"]);
    assert_eq!(m.fallback(), dev(3));
    let small = m.compute_type(dev(2));
    assert_eq!((small.max_size, small.alignment), (Some(Bytes::mib(256)), Align::new(256).unwrap()));
    assert_eq!(m.pools()[small.pool].capacity, Some(Bytes::mib(1536)));
    assert!(m.compute_type(dev(3)).host && !small.host);
    assert!(!m.can_read(dev(0), dev(1)) && m.can_read(dev(3), dev(3)));
    assert_eq!(m.device_named("CUDA3"), Some(dev(1)));
}

#[test]
fn the_host_is_added_where_no_spec_names_it() {
    let m = machine(&["sim:24GiB"]);
    assert_eq!(m.devices().len(), 2);
    assert_eq!(&*m.device(m.fallback()).name, "CPU");
    assert_eq!(machine(&[]).devices().len(), 1);
}

#[test]
fn a_cuda_device_may_be_given_several_times_with_a_limit_each() {
    let m = machine(&["cuda:0:8GiB", "cuda:1", "cuda:0,limit=4GiB", "cuda:0,memory=1GiB,name=last"]);
    let names: Vec<&str> = m.devices().values().map(|d| &*d.name).collect();
    assert_eq!(names, ["CUDA0", "CUDA1", "CUDA0.1", "last", "CPU"]);
    let capacity = |i| m.pools()[m.compute_type(dev(i)).pool].capacity;
    assert_eq!([0, 1, 2].map(capacity), [Some(Bytes::gib(8)), None, Some(Bytes::gib(4))]);
}

#[test]
fn wrong_specs_are_refused_and_told_what_is_allowed() {
    for (text, words) in [
        ("gpu:24GiB", "`gpu` is no kind of device; allowed are cpu"),
        ("", "allowed are"),
        ("sim", "needs a size"),
        ("sim:", "no size"),
        ("sim:24GX", "its unit is none"),
        ("sim:GB", "does not begin with a number"),
        ("sim:0B", "without memory"),
        ("cuda", "needs its number"),
        ("cuda:x", "`x` is no device number"),
        ("cuda:-1", "no device number"),
        ("cuda:0:", "no size"),
        ("cuda:0:8GiB,memory=4GiB", "given twice"),
        ("sim:1GiB,fast", "no KEY=VALUE"),
        ("sim:1GiB,speed=9", "`speed` is no option; allowed are"),
        ("sim:1GiB,name=", "name is empty"),
        ("sim:1GiB,chunk=2GiB", "more than the device has"),
        ("sim:1GiB,chunk=64B", "less than the alignment"),
        ("sim:1GiB,align=100", "no power of two"),
        ("sim:1GiB,chunk=1MiB,chunk=2MiB", "given twice"),
        ("sim:1GiB,memory=2GiB", "after the colon"),
    ] {
        let error = text.parse::<DeviceSpec>().unwrap_err().to_string();
        assert!(error.contains(words) && error.contains(text), "{text}: {error}");
    }
}

#[test]
fn specs_that_contradict_each_other_are_refused() {
    for (specs, words) in [
        (&["cpu", "sim:1GiB"][..], "must come last"),
        (&["cuda:0", "cuda:0"], "it is given twice"),
        (&["cuda:0:8GiB", "cuda:0"], "how much memory each takes"),
        (&["sim:1GiB,name=a", "sim:1GiB,name=a"], "two devices are named `a`"),
        (&["sim:1GiB,name=CPU"], "named `CPU`"),
    ] {
        let specs: Vec<DeviceSpec> = specs.iter().map(|s| s.parse().unwrap()).collect();
        let error: SchedError = Machine::from_specs(&specs).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn only_quantized_rows_that_end_early_are_padded() {
    let m = machine(&["sim:1GiB"]);
    let size = |device, dtype, ne0| {
        let tensor = Tensor::leaf("w", dtype, [ne0, 3, 1, 1]).unwrap();
        m.compute_type(dev(device)).alloc_size(&tensor).get()
    };
    let plain = |dtype: DType, ne0| 3 * dtype.row_size(ne0).unwrap().get();
    assert_eq!(size(0, DType::Q8_0, 576), plain(DType::Q8_0, 576) + DType::Q8_0.row_size(448).unwrap().get());
    assert_eq!(size(0, DType::Q4K, 256), plain(DType::Q4K, 256) + DType::Q4K.row_size(256).unwrap().get());
    assert_eq!(size(0, DType::Q8_0, 1024), plain(DType::Q8_0, 1024));
    assert_eq!(size(0, DType::F16, 576), plain(DType::F16, 576));
    assert_eq!(size(1, DType::Q8_0, 576), plain(DType::Q8_0, 576), "host memory needs none");
}

#[test]
fn the_batch_of_an_operation_is_counted_as_the_reference_does() {
    let batch = |op| {
        let mut tensor = Tensor::leaf("y", DType::F32, [2, 3, 5, 7]).unwrap();
        tensor.op = op;
        offload_batch(&tensor)
    };
    assert_eq!([Op::GetRows, Op::MulMat, Op::MulMatId, Op::Rope, Op::Add].map(batch), [0, 3, 5, 5, 105]);
}

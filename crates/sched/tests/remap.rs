//! Graph files on other machines than their own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail loudly")]

mod support;

use loadmaster_alloc::Placer;
use loadmaster_graph::file::GraphFile;
use loadmaster_graph::{Bytes, DeviceId};
use loadmaster_sched::{Machine, SchedError, Setup, check_splits};
use std::path::Path;
use support::{dev, machine};

fn golden(name: &str) -> GraphFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../tests/goldens/graphs/{name}.json.gz"));
    GraphFile::read_path(path).unwrap()
}

/// Plans the file on the machine; every stage is checked. Bytes by device.
fn plan(file: &GraphFile, machine: &Machine) -> (Vec<DeviceId>, Vec<Bytes>) {
    let setup = Setup::on(file, machine).unwrap();
    let plan = setup.plan(&file.graph, Placer::Ggml).unwrap();
    check_splits(&file.graph, &setup.machine, &setup.residency, &plan.assignment, &plan.splits).unwrap();
    let devices = plan.assignment.node_devices(&file.graph).values().copied().collect();
    (devices, plan.memory.buffer_sizes().values().copied().collect())
}

#[test]
fn the_same_devices_given_as_specs_get_the_recorded_plan() {
    for name in ["smollm2.2g.003", "qwen3moe-moe.2g.003", "gemma3-dense.2g.004"] {
        let file = golden(name);
        let (devices, sizes) = plan(&file, &machine(&["sim:24GiB", "sim:24GiB"]));
        let expected = file.expected.as_ref().unwrap();
        assert_eq!(devices, expected.node_devices.as_slice(), "{name}");
        assert_eq!(sizes, expected.buffer_sizes.as_ref().unwrap().as_slice(), "{name}");
    }
}

#[test]
fn devices_without_a_namesake_are_matched_by_position() {
    let file = golden("smollm2.2g.003");
    let (devices, sizes) = plan(&file, &machine(&["cuda:0", "cuda:1", "sim:1GiB"]));
    assert_eq!(devices.iter().map(|d| d.index()).max(), Some(3));
    assert_eq!(sizes[2], Bytes::ZERO, "the third GPU holds nothing");
    let own = file.expected.as_ref().unwrap().buffer_sizes.as_ref().unwrap();
    assert_eq!(sizes[0], own[dev(0)]);
}

#[test]
fn names_decide_before_positions() {
    let file = golden("smollm2.2g.003");
    let (_, swapped) = plan(&file, &machine(&["sim:1GiB,name=SIM1", "sim:1GiB,name=SIM0"]));
    let (_, straight) = plan(&file, &machine(&["sim:1GiB", "sim:1GiB"]));
    assert_eq!((swapped[0], swapped[1]), (straight[1], straight[0]));
}

#[test]
fn a_device_that_holds_something_and_has_no_counterpart_is_named() {
    let file = golden("smollm2.2g.003");
    let error = Setup::on(&file, &machine(&["sim:24GiB"])).unwrap_err();
    assert!(matches!(&error, SchedError::Remap(e) if e.device == "SIM1" && e.position == 1 && e.gpus == 1));
    assert!(error.to_string().contains("buf") && error.to_string().contains("more GPUs"), "{error}");
}

#[test]
fn a_graph_of_the_host_runs_on_a_machine_with_gpus() {
    let file = golden("smollm2.cpu.003");
    let (devices, sizes) = plan(&file, &machine(&["sim:24GiB"]));
    assert!(devices.contains(&dev(1)));
    assert_eq!(sizes.len(), 2);
}

#[test]
fn on_unified_memory_nothing_is_copied() {
    let file = golden("smollm2.1g-ngl12.003");
    let mut parts = support::parts(1);
    let own = parts.devices[dev(0)].buffer_type;
    parts.pools[parts.buffer_types[own].pool].kind = loadmaster_sched::machine::PoolKind::Unified;
    parts.buffer_types[own].host = true;
    parts.buffer_types[own].usable_by.insert(dev(1));
    parts.devices[dev(1)].buffer_type = own;
    parts.devices[dev(1)].pools = vec![parts.buffer_types[own].pool];
    let m = Machine::new(parts).unwrap();
    let setup = Setup::on(&file, &m).unwrap();
    let plan = setup.plan(&file.graph, Placer::Ggml).unwrap();
    assert!(plan.splits.copies().is_empty());
    assert_eq!(plan.memory.buffer_sizes().values().filter(|b| **b > Bytes::ZERO).count(), 1, "one arena for both");
}

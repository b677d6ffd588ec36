//! Experts in host memory: a device that computes with them gets those that the batch uses.

use crate::world::{Gpus, Inputs, Loaded, Model, Random, World, outputs, run_once};
use loadmaster_graph::{DType, DeviceId, GraphBuilder, TensorId};
use loadmaster_sched::Usage;
use loadmaster_sched::exec::{Action, ExecError, ExpertUpload};
use std::collections::BTreeMap;

const WIDTH: u64 = 32;
const EXPERTS: u64 = 8;
const TOKENS: u64 = 3;

struct Case {
    model: Model,
    gate: TensorId,
    ids: TensorId,
    x: TensorId,
}

/// A node that the GPU computes, and experts chosen by ids that the caller gives; weights of the gate on the GPU.
fn case() -> Case {
    let mut b = GraphBuilder::new();
    let x = b.leaf("x", DType::F32, &[WIDTH, 1, TOKENS]).unwrap();
    let ids = b.leaf("ids", DType::I32, &[2, TOKENS]).unwrap();
    b.set_input(x).unwrap();
    b.set_input(ids).unwrap();
    let gate = b.leaf("gate", DType::F32, &[WIDTH, WIDTH]).unwrap();
    let experts = b.leaf("experts", DType::F32, &[WIDTH, WIDTH, EXPERTS]).unwrap();
    let y = b.mul_mat(gate, x).unwrap();
    let chosen = b.mul_mat_id(experts, y, ids).unwrap();
    let out = b.scale(chosen, 2.0).unwrap();
    b.set_output(out).unwrap();
    b.expand(out).unwrap();
    let graph = b.finish("experts").unwrap();
    let mut random = Random(1);
    let mut weights = BTreeMap::new();
    weights.insert(gate, (random.floats(WIDTH * WIDTH), Usage::Weights));
    weights.insert(experts, (random.floats(WIDTH * WIDTH * EXPERTS), Usage::Weights));
    let pinned = [(chosen, 0), (out, 0)].into();
    Case { model: Model { graph, weights, pinned, outputs: vec![out] }, gate, ids, x }
}

fn inputs(case: &Case, ids: [i32; 6]) -> Inputs {
    let ids = ids.iter().flat_map(|i| i.to_le_bytes()).collect();
    [(case.x, Random(5).floats(WIDTH * TOKENS)), (case.ids, ids)].into()
}

fn place(case: &Case, world: &World) -> Loaded {
    Loaded::new(world, &case.model, |t| if t == case.gate { DeviceId::new(0) } else { world.host() }).unwrap()
}

#[test]
fn only_the_experts_of_the_batch_are_uploaded_and_results_are_the_same() {
    let case = case();
    let mut seen = Vec::new();
    for upload in [ExpertUpload::All, ExpertUpload::Used] {
        let world = World::new(&Gpus::new(1));
        let loaded = place(&case, &world);
        let mut session = world.session(|o| o.experts = upload).unwrap();
        let plan = session.prepare(&case.model.graph, loaded.resident()).unwrap();
        let exec = session.executable(plan).unwrap();
        let ids = exec.schedule().steps().values().filter(|s| matches!(s.action, Action::Ids { .. })).count();
        assert_eq!(ids, usize::from(upload == ExpertUpload::Used));
        let mut results = Vec::new();
        let mut moved = Vec::new();
        for ids in [[0, 1, 0, 1, 1, 0], [7, 7, 7, 7, 7, 7], [0, 1, 2, 3, 4, 5], [6, 2, 2, 6, 4, 6]] {
            let before = world.devices[0].stats().to_device;
            run_once(exec, &inputs(&case, ids)).unwrap();
            let after = world.devices[0].stats().to_device;
            moved.push((after.copies - before.copies, after.bytes.get() - before.bytes.get()));
            results.push(outputs(exec, &case.model).unwrap());
        }
        seen.push((results, moved));
    }
    assert!(seen[0].0 == seen[1].0, "results differ");
    let (all, used) = (&seen[0].1, &seen[1].1);
    let expert = WIDTH * WIDTH * 4;
    let rest = all[0].1 - EXPERTS * expert;
    // Past a run of experts, 512 bytes more where there are any.
    let bytes = |experts: u64, padded_runs: u64| rest + experts * expert + padded_runs * 512;
    let expected = [bytes(2, 1), bytes(1, 0), bytes(6, 1), bytes(3, 3)];
    assert_eq!(used.iter().map(|m| m.1).collect::<Vec<_>>(), expected);
    assert!(all.iter().all(|m| m.1 == all[0].1));
}

#[test]
fn an_id_that_names_no_expert_is_an_error_and_the_next_run_works() {
    let case = case();
    let world = World::new(&Gpus::new(1));
    let loaded = place(&case, &world);
    let mut session = world.session(|_| ()).unwrap();
    let plan = session.prepare(&case.model.graph, loaded.resident()).unwrap();
    let exec = session.executable(plan).unwrap();
    for bad in [-1, 8] {
        let error = run_once(exec, &inputs(&case, [0, 1, bad, 3, 4, 5])).unwrap_err();
        assert!(matches!(error, ExecError::ExpertId { id, experts: 8, .. } if id == i64::from(bad)), "{error}");
        assert!(matches!(outputs(exec, &case.model), Err(ExecError::NoResults)));
        run_once(exec, &inputs(&case, [0, 1, 2, 3, 4, 5])).unwrap();
        outputs(exec, &case.model).unwrap();
    }
}

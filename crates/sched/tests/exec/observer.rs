//! Looking at nodes while they are computed.

use crate::random::{inputs, model};
use crate::results::{random_world, reference, spread};
use crate::world::{Loaded, difference, outputs, run_once, trace, write_all};
use loadmaster_graph::{NodeId, TensorId};
use loadmaster_sched::exec::{ExecError, Flow, Observer};

#[test]
fn an_observer_sees_every_node_that_computes_once_with_its_bytes() {
    for seed in 0..10 {
        let model = model(seed, 20);
        let expected = reference(&model, 1);
        let world = random_world(seed);
        let loaded = Loaded::new(&world, &model, spread(&world, seed)).unwrap();
        let mut session = world.session(|_| ()).unwrap();
        let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
        let exec = session.executable(plan).unwrap();
        let seen = trace(exec, &inputs(&model, 0));
        let computes = |t: &&TensorId| !model.graph.tensor(**t).op.is_view();
        assert_eq!(seen.len(), model.graph.nodes().values().filter(computes).count());
        for (output, expected) in model.outputs.iter().zip(&expected[0]) {
            assert!(&seen[output] == expected, "seed {seed}: {output} was seen with other bytes");
        }
        assert_eq!(difference(&outputs(exec, &model).unwrap(), &expected[0]), None);
    }
}

/// Wants the n-th node that it is asked about, and stops there.
struct StopAt {
    left: usize,
    seen: Vec<TensorId>,
}

impl Observer for StopAt {
    fn wants(&mut self, _: NodeId, _: TensorId) -> bool {
        self.left = self.left.saturating_sub(1);
        self.left == 0
    }
    fn seen(&mut self, _: NodeId, tensor: TensorId, bytes: &[u8]) -> Flow {
        assert!(!bytes.is_empty());
        self.seen.push(tensor);
        Flow::Stop
    }
}

#[test]
fn an_observer_stops_a_run_anywhere_and_the_next_run_is_whole() {
    let model = model(3, 20);
    let expected = reference(&model, 1);
    let world = random_world(3);
    let loaded = Loaded::new(&world, &model, spread(&world, 3)).unwrap();
    let mut session = world.session(|_| ()).unwrap();
    let plan = session.prepare(&model.graph, loaded.resident()).unwrap();
    let exec = session.executable(plan).unwrap();
    let nodes = trace(exec, &inputs(&model, 0)).len();
    for n in 1..=nodes {
        let mut stop = StopAt { left: n, seen: Vec::new() };
        write_all(exec, &inputs(&model, 0)).unwrap();
        assert_eq!(exec.run_observed(&mut stop).unwrap(), Flow::Stop);
        assert_eq!(stop.seen.len(), 1);
        assert!(matches!(outputs(exec, &model), Err(ExecError::NoResults)));
    }
    run_once(exec, &inputs(&model, 0)).unwrap();
    assert_eq!(difference(&outputs(exec, &model).unwrap(), &expected[0]), None);
}

//! MiniMalloc's hard instances: the capacity is met on all, the optimum proved on nine.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic)]

use loadmaster_alloc::pack::csv::CsvProblem;
use loadmaster_alloc::pack::{Effort, FitOutcome, PackProblem, check, pack, pack_into};
use loadmaster_graph::Bytes;

const CAPACITY: Bytes = Bytes(1 << 20);

fn instance(name: char) -> PackProblem {
    let path = format!("{}/../../tests/goldens/planner/{name}.1048576.csv", env!("CARGO_MANIFEST_DIR"));
    CsvProblem::parse(&std::fs::read(path).unwrap()).unwrap().problem
}

#[test]
fn all_eleven_meet_their_capacity() {
    for name in 'A'..='K' {
        let problem = instance(name);
        match pack_into(&problem, CAPACITY, Effort::Optimal { node_budget: 200_000 }).unwrap() {
            FitOutcome::Fits(packing) => {
                check(&problem, &packing).unwrap();
                assert!(packing.peak <= CAPACITY, "{name}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn nine_are_packed_at_the_bound_without_being_told_a_capacity() {
    for name in "ABCEFGHIK".chars() {
        let problem = instance(name);
        let packing = pack(&problem, Effort::Optimal { node_budget: 400_000 }).unwrap();
        check(&problem, &packing).unwrap();
        assert!(packing.proved, "{name}: {} over {}", packing.peak.get(), packing.lower_bound.get());
    }
}

#[test]
fn less_than_the_bound_is_refused_without_a_search() {
    for name in 'A'..='K' {
        let problem = instance(name);
        let bound = loadmaster_alloc::pack::lower_bound(&problem).unwrap();
        let outcome = pack_into(&problem, Bytes(bound.get() - 1), Effort::Default).unwrap();
        assert_eq!(outcome, FitOutcome::Infeasible { at_least: bound });
    }
}

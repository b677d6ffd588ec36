//! The whole chain with every checker.

use loadmaster_alloc::{BestOptions, Checker, InPlaceTable, InPlaceTables, Placer};
use loadmaster_graph::{Bytes, Graph};
use loadmaster_sched::{
    AssignOptions, LowerOptions, Machine, Plan, PlanOptions, Residency, SchedError, Sizes, check_lowered, check_splits,
    compute_types, plan,
};
use std::num::NonZeroU32;

/// Plans under both placers; every stage must satisfy its checker, a second run must give the same, and the better
/// placer must not need more where it may write over what the reference may. Returns the plan under the reference's
/// rules.
pub fn plan_and_check<'g>(
    graph: &'g Graph,
    machine: &Machine,
    residency: &Residency,
    assign: AssignOptions,
    n_copies: u32,
) -> Result<Plan<'g>, SchedError> {
    let run = |placer: Placer, table: InPlaceTables| {
        let n_copies = NonZeroU32::new(n_copies).unwrap();
        let options = PlanOptions { assign, lower: LowerOptions { n_copies, keep: Vec::new() }, placer };
        let arenas = loadmaster_alloc::Arenas::new(compute_types(machine, &Sizes::ByRule));
        let plan = plan(graph, machine, residency, arenas, &options)?;
        check_splits(graph, machine, residency, &plan.assignment, &plan.splits).unwrap();
        check_lowered(graph, &plan.assignment, &plan.splits, &plan.lowered).unwrap();
        let checker = Checker { graph: &plan.lowered.graph, arenas: &plan.arenas, ids: plan.ids(), in_place: &table };
        checker.check(&plan.memory).unwrap();
        Ok::<_, SchedError>(plan)
    };
    let best = |table: InPlaceTable| {
        let in_place = InPlaceTables::from(table);
        run(Placer::Best(BestOptions { in_place: in_place.clone(), ..BestOptions::default() }), in_place)
    };
    let reference = run(Placer::Ggml, InPlaceTable::ggml().into())?;
    let again = run(Placer::Ggml, InPlaceTable::ggml().into())?;
    assert_eq!(reference.assignment, again.assignment);
    assert_eq!(reference.splits, again.splits);
    assert_eq!(reference.memory, again.memory);
    let same_table = best(InPlaceTable::ggml())?;
    let (ours, theirs): (Bytes, Bytes) = (same_table.memory.total_size(), reference.memory.total_size());
    assert!(ours <= theirs, "best needs {ours:?}, the reference {theirs:?}");
    best(InPlaceTable::loadmaster())?;
    Ok(reference)
}

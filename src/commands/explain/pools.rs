//! What every pool holds: what is there already, and what the plan adds.

use super::Explained;
use crate::commands::table::{Column, Table};
use loadmaster_graph::{Bytes, PoolId};
use loadmaster_sched::{Usage, arena_of};

/// Bytes of one pool.
pub(super) struct Load {
    /// In buffers of usage `weights`.
    pub(super) weights: Bytes,
    /// In other buffers that exist already.
    pub(super) other: Bytes,
    /// What the plan needs.
    pub(super) compute: Bytes,
}

impl Load {
    fn of(explained: &Explained<'_>, pool: PoolId) -> Self {
        let machine = &explained.setup.machine;
        let computes = machine.devices().ids().filter(|&d| machine.compute_type(d).pool == pool);
        Self {
            weights: resident(explained, pool, |usage| usage == Usage::Weights),
            other: resident(explained, pool, |usage| usage != Usage::Weights),
            compute: computes.map(|d| explained.plan.memory.buffer_size(arena_of(d))).sum(),
        }
    }

    /// All of it.
    pub(super) fn total(&self) -> Bytes {
        [self.weights, self.other, self.compute].into_iter().sum()
    }
}

/// Bytes of the graph's tensors that are in a pool already. Tensors that no graph names are not known here.
fn resident(explained: &Explained<'_>, pool: PoolId, wanted: impl Fn(Usage) -> bool) -> Bytes {
    let (machine, residency) = (&explained.setup.machine, &explained.setup.residency);
    let tensors = explained.file.graph.tensors();
    let held = residency.buffer_of.iter().filter_map(|(tensor, buffer)| {
        let resident = &residency.buffers[(*buffer)?];
        let buffer_type = &machine.buffer_types()[resident.buffer_type];
        let counts = buffer_type.pool == pool && wanted(resident.usage) && !tensors[tensor].is_view();
        counts.then(|| buffer_type.alloc_size(&tensors[tensor]))
    });
    held.sum()
}

pub(super) fn table(explained: &Explained<'_>) -> Table {
    let mut table = Table::new(&[
        (Column::Left, "pool"),
        (Column::Left, "kind"),
        (Column::Right, "weights"),
        (Column::Right, "other"),
        (Column::Right, "compute"),
        (Column::Right, "total"),
        (Column::Right, "capacity"),
        (Column::Left, "fits"),
    ]);
    for (id, pool) in explained.setup.machine.pools().iter() {
        let load = Load::of(explained, id);
        table.push([
            pool.name.to_string(),
            pool.kind.to_string(),
            load.weights.to_string(),
            load.other.to_string(),
            load.compute.to_string(),
            load.total().to_string(),
            pool.capacity.map_or("not known".to_owned(), |c| c.to_string()),
            fits(&load, pool.capacity),
        ]);
    }
    table
}

fn fits(load: &Load, capacity: Option<Bytes>) -> String {
    match capacity {
        None => "-".to_owned(),
        Some(capacity) if load.total() <= capacity => {
            format!("yes, {} left", capacity.saturating_sub(load.total()))
        }
        Some(capacity) => format!("NO, {} too much", load.total().saturating_sub(capacity)),
    }
}

//! What the compute buffers need, next to what nothing can beat, and what is alive at their peaks.

use super::Explained;
use loadmaster_alloc::ArenaReport;
use loadmaster_graph::Bytes;
use std::fmt::Write;

/// Most tensors of a peak that are listed; the rest is summed up.
const LISTED: usize = 12;

pub(super) fn write(explained: &Explained<'_>, out: &mut String) -> std::fmt::Result {
    writeln!(out, "compute buffers")?;
    explained.report.arenas.iter().try_for_each(|arena| write_arena(explained, arena, out))
}

fn write_arena(explained: &Explained<'_>, arena: &ArenaReport, out: &mut String) -> std::fmt::Result {
    let bound = arena.lower_bound;
    let proof = match (arena.is_proved(), bound) {
        (true, _) => "the least possible".to_owned(),
        (false, Bytes::ZERO) => "lower bound 0 B".to_owned(),
        (false, _) => format!("lower bound {bound}, {:.1} % above", percent(arena.gap(), bound)),
    };
    let chunks = explained.plan.memory.chunks(arena.arena).len();
    let chunks = if chunks > 1 { format!(" in {chunks} chunks") } else { String::new() };
    writeln!(out, "  {}: {}{chunks}; {proof}", arena.buffer_type, arena.size)?;
    if arena.size == Bytes::ZERO {
        return Ok(());
    }
    let alive: Bytes = arena.alive_at_peak.iter().map(|h| h.size).sum();
    let at = arena.peak_node.map_or(String::new(), |node| format!(" at {}", explained.item_name(node)));
    writeln!(out, "    peak{at}, {alive} alive:")?;
    for holder in arena.alive_at_peak.iter().take(LISTED) {
        let name = holder.item.map_or_else(|| explained.tensor_name(holder.tensor), |item| explained.item_name(item));
        writeln!(out, "      {:>12}  {name}", holder.size)?;
    }
    let rest = arena.alive_at_peak.get(LISTED..).unwrap_or_default();
    if rest.is_empty() {
        return Ok(());
    }
    let bytes: Bytes = rest.iter().map(|h| h.size).sum();
    writeln!(out, "      {bytes:>12}  {} more", rest.len())
}

fn percent(part: Bytes, whole: Bytes) -> f64 {
    100.0 * part.get() as f64 / whole.get() as f64
}

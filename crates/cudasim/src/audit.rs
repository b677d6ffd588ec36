//! Launches compared before and after: a kernel writes what it declares and nothing else, although other tensors lie
//! beside it in the same allocation.

use crate::config::Audit;
use crate::launch::Launch;
use crate::race::Space;
use crate::report::Kind;
use crate::shadow::Mode;
use crate::state::State;

/// An allocation by its first address, and its bytes before a launch.
type Snapshot = (u64, Vec<u8>);

impl State {
    /// The bytes of allocations before a launch, if it is audited.
    pub(crate) fn snapshot(&self, allocations: &[u64]) -> Vec<Snapshot> {
        if self.config.audit == Audit::Off {
            return Vec::new();
        }
        let mut bases = allocations.to_vec();
        bases.sort_unstable();
        bases.dedup();
        bases.into_iter().filter_map(|base| Some((base, self.bytes_of(base)?.to_vec()))).collect()
    }

    fn bytes_of(&self, base: u64) -> Option<&[u8]> {
        let (_, allocation) = self.memory.containing(base)?;
        // SAFETY: the mapping holds `len` initialised bytes; operations, which write it, run under the same lock.
        Some(unsafe { std::slice::from_raw_parts(allocation.bytes.start(), allocation.len as usize) })
    }

    /// Reports what a launch changed outside the ranges that its kernel declares to write.
    pub(crate) fn compare(&mut self, launch: &Launch, device: u32, label: &str, before: &[Snapshot]) {
        if before.is_empty() {
            return;
        }
        let accesses = self.kernel_accesses(launch, device).unwrap_or_default();
        for (base, old) in before {
            let Some(new) = self.bytes_of(*base) else { continue };
            let declared = accesses.iter().filter(|a| a.mode == Mode::Write && a.space == Space::Device(*base));
            let mut declared: Vec<(u64, u64)> = declared.map(|a| (a.start - base, a.end - base)).collect();
            declared.sort_unstable();
            let Some(at) = changed_outside(old, new, &declared) else { continue };
            let text = format!("{label} changed byte {at} of allocation at {base:#x}, which it does not declare");
            self.report.add(Kind::Memory, text);
        }
    }
}

/// The first byte that differs outside sorted ranges.
fn changed_outside(old: &[u8], new: &[u8], declared: &[(u64, u64)]) -> Option<usize> {
    let mut from = 0;
    let end = old.len();
    for (start, stop) in declared.iter().map(|(a, b)| (*a as usize, *b as usize)).chain([(end, end)]) {
        let gap = from..start.max(from).min(end);
        if old[gap.clone()] != new[gap.clone()] {
            return gap.into_iter().find(|at| old[*at] != new[*at]);
        }
        from = from.max(stop).min(end);
    }
    None
}

//! What no packing can beat.

use super::error::PackError;
use super::prepared::Prepared;
use super::problem::PackProblem;
use loadmaster_graph::Bytes;

/// The largest sum of sizes alive at one step, and no less than any fixed buffer's end.
///
/// Where all offsets share an alignment that sizes do not fill, all buffers alive at a step but the topmost take whole
/// multiples of it. With a chunk limit this is a bound for the sum of the chunks. O(n log n).
///
/// Errors: a problem that is no problem (see [`PackError`]), or a load that overflows 64 bits.
pub fn lower_bound(problem: &PackProblem) -> Result<Bytes, PackError> {
    let prepared = Prepared::new(problem)?;
    bound_of(&prepared, problem.max_chunk).map(Bytes)
}

pub(super) fn bound_of(prepared: &Prepared, max_chunk: Option<Bytes>) -> Result<u64, PackError> {
    let plain = peak_load(prepared)?;
    let fixed = prepared.live.iter().filter_map(|b| b.fixed.map(|f| f + b.size)).max().unwrap_or(0);
    let padded = if max_chunk.is_none() { padded_bound(prepared) } else { None };
    Ok(plain.max(fixed).max(padded.unwrap_or(0)))
}

/// Bytes alive at each compressed step.
pub(super) fn loads(prepared: &Prepared) -> Result<Vec<u64>, PackError> {
    let mut born = vec![0u64; prepared.steps.len() + 1];
    let mut died = vec![0u64; prepared.steps.len() + 1];
    for b in &prepared.live {
        let step = b.first as usize;
        born[step] = born[step]
            .checked_add(b.size)
            .ok_or(PackError::LoadOverflow { step: prepared.steps[step], buffer: b.id })?;
        // Buffers that die together may have been born apart: their sum wraps where no load does, and the wrapped
        // difference below is still exact.
        died[b.last as usize] = died[b.last as usize].wrapping_add(b.size);
    }
    let mut load = 0u64;
    let mut result = Vec::with_capacity(prepared.steps.len());
    for (step, &at) in prepared.steps.iter().enumerate() {
        load = load.wrapping_sub(died[step]);
        let Some(sum) = load.checked_add(born[step]) else {
            let buffer = prepared.live.iter().find(|b| b.first as usize == step).map(|b| b.id);
            // Something is born at every compressed step.
            let buffer = buffer.unwrap_or(prepared.live[0].id);
            return Err(PackError::LoadOverflow { step: at, buffer });
        };
        load = sum;
        result.push(load);
    }
    Ok(result)
}

fn peak_load(prepared: &Prepared) -> Result<u64, PackError> {
    Ok(loads(prepared)?.into_iter().max().unwrap_or(0))
}

/// The bound from padding to the smallest alignment; `None` if sizes fill it, or on overflow (the plain bound stands).
fn padded_bound(prepared: &Prepared) -> Option<u64> {
    let align = prepared.live.iter().map(|b| b.align).min()?;
    if prepared.live.iter().all(|b| b.size % align == 0) {
        return None;
    }
    let mut events: Vec<(u32, bool, u64)> = Vec::with_capacity(prepared.live.len() * 2);
    for b in &prepared.live {
        events.push((b.last, false, b.size));
        events.push((b.first, true, b.size));
    }
    // Deaths before births of the same step.
    events.sort_unstable();
    let mut slacks = std::collections::BTreeMap::<u64, u32>::new();
    let (mut load, mut best) = (0u64, 0u64);
    for (_, is_birth, size) in events {
        let padded = size.checked_add(align - 1)? & !(align - 1);
        let slack = padded - size;
        if is_birth {
            load = load.checked_add(padded)?;
            *slacks.entry(slack).or_insert(0) += 1;
            let topmost = slacks.last_key_value().map_or(0, |(&s, _)| s);
            best = best.max(load - topmost);
            continue;
        }
        load -= padded;
        if let Some(count) = slacks.get_mut(&slack) {
            *count -= 1;
            if *count == 0 {
                slacks.remove(&slack);
            }
        }
    }
    Some(best)
}

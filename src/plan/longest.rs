//! The longest context that fits.
//!
//! What a context needs is found by packing, which may need less for a longer one; what it cannot be below grows with the
//! context, nearly in proportion. So two contexts say where a third is worth planning, and few are planned.

use super::Choices;
use super::fit::Request;
use crate::engine::Prepared;
use loadmaster_graph::{Bytes, IdVec, PoolId};
use std::collections::BTreeMap;

/// Contexts grow by blocks of this many tokens.
pub const CONTEXT_BLOCK: u32 = 256;
/// Contexts that are tried one by one where bounds leave room and packings do not.
const MOST_LOOSE: usize = 64;
/// Of so many questions one halves what is left, however bytes grow.
const HALVES_EVERY: u32 = 3;

/// The longest context that is tried: what the model was trained for, or what was asked for if that is more, which is
/// rounded up to whole blocks as the cache is.
#[must_use]
pub fn longest_tried(request: &Request<'_>, choices: &Choices) -> u32 {
    let blocks = request.model.params.trained_context / CONTEXT_BLOCK;
    blocks.max(choices.ctx.div_ceil(CONTEXT_BLOCK)).max(1) * CONTEXT_BLOCK
}

/// The longest context, in whole blocks and up to what the model was trained for, that fits with all else as chosen.
/// One block more does not fit, unless it is the longest that was tried. `None`: not even one block. `prepared` is the
/// model as chosen.
///
/// The longest context that bounds leave room for is found first, and then the longest up to there that fits: of the last
/// 64 blocks if the two are far apart.
#[must_use]
pub fn longest_context(request: &Request<'_>, choices: &Choices, prepared: &Prepared) -> Option<u32> {
    let most = longest_tried(request, choices) / CONTEXT_BLOCK;
    let mut contexts = Contexts::new(request, choices, prepared);
    let limit = contexts.last(1, most, Contexts::might)?;
    if let Some(found) = (1..=limit).rev().take(MOST_LOOSE).find(|&blocks| contexts.fits(blocks)) {
        return Some(found * CONTEXT_BLOCK);
    }
    let far = limit.checked_sub(MOST_LOOSE as u32).filter(|&n| n > 0)?;
    contexts.last(1, far, Contexts::fits).map(|blocks| blocks * CONTEXT_BLOCK)
}

/// What a context needs.
struct Need {
    fits: bool,
    /// Whether bounds leave room for it.
    might: bool,
    /// By pool, however its graphs are placed; at least that.
    least: IdVec<PoolId, Bytes>,
}

/// Contexts by their blocks, each planned once.
struct Contexts<'r, 'a> {
    request: &'r Request<'a>,
    choices: &'r Choices,
    /// The chosen context, if it is of whole blocks.
    chosen: Option<u32>,
    /// `None`: cannot be prepared.
    planned: BTreeMap<u32, Option<Need>>,
}

impl<'r, 'a> Contexts<'r, 'a> {
    fn new(request: &'r Request<'a>, choices: &'r Choices, prepared: &Prepared) -> Self {
        let chosen = choices.ctx.is_multiple_of(CONTEXT_BLOCK).then_some(choices.ctx / CONTEXT_BLOCK);
        let planned = chosen.map(|blocks| (blocks, Some(need(request, prepared))));
        Self { request, choices, chosen, planned: planned.into_iter().collect() }
    }

    fn need(&mut self, blocks: u32) -> Option<&Need> {
        let (request, choices) = (self.request, self.choices);
        let plan = || {
            let choices = Choices { ctx: blocks * CONTEXT_BLOCK, ..choices.clone() };
            // What not even bounds leave room for needs no further look.
            let outlook = request.prepare_while(&choices, |p| request.might_fit(p)).ok()?;
            Some(need(request, &outlook.prepared))
        };
        self.planned.entry(blocks).or_insert_with(plan).as_ref()
    }

    fn fits(&mut self, blocks: u32) -> bool {
        self.need(blocks).is_some_and(|need| need.fits)
    }

    /// Whether bounds leave room for it.
    fn might(&mut self, blocks: u32) -> bool {
        self.need(blocks).is_some_and(|need| need.might)
    }

    /// The last of `[first, end]` that holds, for what holds up to somewhere: it holds there and not for the next.
    /// O(log n) questions; four where bytes grow in proportion.
    fn last(&mut self, first: u32, end: u32, holds: fn(&mut Self, u32) -> bool) -> Option<u32> {
        if holds(self, end) {
            return Some(end);
        }
        let start = self.chosen.filter(|&blocks| first < blocks && blocks < end && holds(self, blocks));
        let mut good = start.unwrap_or(first);
        if start.is_none() && !holds(self, first) {
            return None;
        }
        let known_bad = self.chosen.filter(|&blocks| start.is_none() && first < blocks && blocks < end);
        let mut bad = known_bad.unwrap_or(end);
        let mut questions = 0u32;
        while good + 1 < bad {
            questions += 1;
            let halves = questions.is_multiple_of(HALVES_EVERY);
            let guess = if halves { None } else { self.crossing(good, bad) };
            let next = guess.unwrap_or(good + (bad - good) / 2).max(good + 1);
            if holds(self, next) { good = next } else { bad = next }
        }
        Some(good)
    }

    /// Where a pool is full between two planned contexts, if bytes grow in proportion: before `bad`.
    fn crossing(&self, good: u32, bad: u32) -> Option<u32> {
        let (low, high) = (self.planned.get(&good)?.as_ref()?, self.planned.get(&bad)?.as_ref()?);
        let pools = self.request.machine.pools().iter();
        let full = pools.filter_map(|(pool, p)| {
            let room = p.capacity?.saturating_sub(self.request.reserve);
            let (grows, left) = (high.least[pool].checked_sub(low.least[pool])?, room.checked_sub(low.least[pool])?);
            let blocks = u128::from(left.get()) * u128::from(bad - good) / u128::from(grows.get()).max(1);
            u32::try_from(blocks).ok().filter(|&n| n < bad - good)
        });
        full.min().map(|blocks| good + blocks)
    }
}

fn need(request: &Request<'_>, prepared: &Prepared) -> Need {
    let least = request.least(prepared);
    Need { fits: request.fits(prepared), might: request.might_fit(prepared), least }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::commands::input::PolicyArg;
    use crate::engine::Model;
    use crate::plan::fit::speeds::{ASSUMED_GPU, ASSUMED_HOST};
    use loadmaster_sched::Machine;
    use std::path::Path;

    #[test]
    fn few_contexts_are_planned_to_find_the_longest() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/models/headers/llama3-8b.gguf");
        let (model, placer) = (Model::open(&path).unwrap(), PolicyArg::Best.placer());
        let trained = model.params.trained_context;
        let mut between = 0;
        for mib in [4700u64, 5000, 5500, 6000] {
            let machine = Machine::from_specs(&[format!("sim:{mib}MiB").parse().unwrap()]).unwrap();
            let speeds = [ASSUMED_GPU, ASSUMED_HOST];
            let request =
                Request { model: &model, machine: &machine, speeds: &speeds, placer: &placer, reserve: Bytes::ZERO };
            let ctx = 2 * CONTEXT_BLOCK;
            let choices = Choices { flash_attn: true, ..Choices::of_context(ctx) };
            let mut contexts = Contexts::new(&request, &choices, &request.prepare(&choices).unwrap());
            let found = contexts.last(1, trained / CONTEXT_BLOCK, Contexts::might);
            let planned = contexts.planned.len();
            assert!(planned <= 6, "{mib} MiB: {found:?} after {planned}");
            let holds = |blocks| Contexts::new(&request, &choices, &request.prepare(&choices).unwrap()).might(blocks);
            if let Some(found) = found.filter(|&n| n < trained / CONTEXT_BLOCK) {
                assert!(holds(found) && !holds(found + 1), "{mib} MiB: {found}");
                between += 1;
            }
        }
        assert!(between > 0, "all or nothing fits");
    }
}

//! What would make a model fit, each change planned again.
//!
//! Changes are of kinds, each from mild to strong. Kinds that do alone come first, then two and three together; of each
//! the mildest is told. Where some kinds do alone, another beside them is told only if the last of them may then be
//! milder.

mod steps;

use self::steps::{Step, ladders};
use super::Choices;
use super::fit::costs::Costs;
use super::fit::{FitError, Purpose, Request};
use super::saved::Predicted;
use crate::engine::{Prepared, rooms};
use loadmaster_graph::{Bytes, PoolId};

/// Changes that are told at most.
const MOST: usize = 6;
/// Changes that are looked for, if need be of several kinds together.
const WANTED: usize = 3;
/// Kinds that are tried together at most.
const MOST_KINDS: usize = 3;

/// A change that makes the model fit: planned again, and checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Relaxation {
    /// What changes, with the options that say so.
    pub what: String,
    /// With it.
    pub choices: Choices,
    /// Predicted speed with it.
    pub predicted: Predicted,
}

/// Who says where things go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placing {
    /// The choices.
    Asked,
    /// The search, for every change anew.
    Chosen(Purpose),
}

/// Changes that make the model fit: at least three, if as many are found with up to three kinds together.
///
/// Errors: a model that cannot be prepared at all.
pub fn relaxations(request: &Request<'_>, choices: &Choices, placing: Placing) -> Result<Vec<Relaxation>, FitError> {
    let ladders = ladders(request, choices, placing);
    let mut advice = Advice { request, choices, placing, ladders, found: Vec::new() };
    let again = advice.another_placement()?;
    for size in 1..=MOST_KINDS {
        for kinds in subsets(advice.ladders.len(), size) {
            let enough = if size == 1 { MOST } else { WANTED };
            if advice.found.len() + usize::from(again.is_some()) >= enough {
                break;
            }
            advice.found.extend(advice.mildest(&kinds));
        }
    }
    let told: Result<Vec<Relaxation>, FitError> = advice.found.iter().map(|change| advice.tell(change)).collect();
    Ok(again.into_iter().chain(told?).collect())
}

/// Steps of some kinds: kinds and places on their ladders, both in order of the kinds.
type Change = Vec<(usize, usize)>;

/// What planning a change again came to.
enum Outcome {
    /// Nothing is missing.
    Fits,
    /// Only host memory is too small.
    HostLacks,
    /// Something else is too small, or it cannot be planned.
    Lacks,
}

struct Advice<'r, 'a> {
    request: &'r Request<'a>,
    choices: &'r Choices,
    placing: Placing,
    ladders: Vec<Vec<Step>>,
    found: Vec<Change>,
}

impl Advice<'_, '_> {
    /// The search's placement, where another was asked for.
    fn another_placement(&self) -> Result<Option<Relaxation>, FitError> {
        if self.placing != Placing::Asked {
            return Ok(None);
        }
        let Ok(fitted) = self.request.fit(self.choices, Purpose::Decode) else { return Ok(None) };
        let now = self.choices;
        let options = [
            ("--n-gpu-layers", now.n_gpu_layers.is_some()),
            ("--tensor-split", now.tensor_split.is_some()),
            ("--override-tensor", !now.override_tensor.is_empty()),
        ];
        let given: Vec<&str> = options.into_iter().filter(|(_, is_given)| *is_given).map(|(name, _)| name).collect();
        let without = if given.is_empty() { String::new() } else { format!(" without {}", given.join(", ")) };
        self.relaxation(format!("another placement (--fit){without}"), fitted.choices, &fitted.prepared).map(Some)
    }

    /// The mildest change of these kinds that fits and that no change of fewer kinds makes needless.
    fn mildest(&self, kinds: &[usize]) -> Option<Change> {
        let within = |change: &&Change| change.iter().all(|(kind, _)| kinds.contains(kind));
        let alone: Vec<&Change> = self.found.iter().filter(within).collect();
        let (eased, end) = match alone.as_slice() {
            [] => (*kinds.last()?, None),
            [change] => change.last().map(|&(kind, step)| (kind, Some(step)))?,
            _ => return None,
        };
        let others = kinds.iter().filter(|&&kind| kind != eased);
        let strongest = |kind: usize| self.ladders[kind].len().checked_sub(1);
        let mut change: Change = others.clone().map(|&kind| Some((kind, strongest(kind)?))).collect::<Option<_>>()?;
        change.push((eased, end.map_or(strongest(eased), |end| end.checked_sub(1))?));
        if !self.ease(&mut change, eased) {
            return None;
        }
        others.for_each(|&kind| {
            self.ease(&mut change, kind);
        });
        change.sort_unstable();
        Some(change)
    }

    /// Makes a change as mild in one kind as fits. Whether any step up to the given one does, for what grows milder in
    /// order. O(log steps) plans.
    fn ease(&self, change: &mut Change, kind: usize) -> bool {
        let Some(at) = change.iter().position(|(k, _)| *k == kind) else { return false };
        let strongest = change[at].1;
        let (mut low, mut end, mut found) = (0, strongest + 1, None);
        while low < end {
            let middle = low + (end - low) / 2;
            change[at].1 = middle;
            match self.outcome(change) {
                Outcome::Fits => (end, found) = (middle, Some(middle)),
                // What went to the host is too much for it.
                Outcome::HostLacks if self.ladders[kind][middle].fills_host() => end = middle,
                Outcome::HostLacks | Outcome::Lacks => low = middle + 1,
            }
        }
        change[at].1 = found.unwrap_or(strongest);
        found.is_some()
    }

    fn steps<'s>(&'s self, change: &'s Change) -> impl Iterator<Item = &'s Step> {
        change.iter().map(|&(kind, step)| &self.ladders[kind][step])
    }

    fn changed(&self, change: &Change) -> Choices {
        self.steps(change).fold(self.choices.clone(), |choices, step| step.apply(choices))
    }

    fn outcome(&self, change: &Change) -> Outcome {
        let Ok((_, prepared)) = self.plan(change) else { return Outcome::Lacks };
        let machine = self.request.machine;
        let rooms = rooms(machine, &prepared.pools(machine), self.request.reserve);
        let mut short = rooms.iter().filter(|(_, room)| room.missing() > Bytes::ZERO).peekable();
        if short.peek().is_none() {
            return Outcome::Fits;
        }
        let host: Vec<PoolId> = machine.pool_and_outer(machine.compute_type(machine.fallback()).pool).collect();
        if short.all(|(pool, _)| host.contains(&pool)) { Outcome::HostLacks } else { Outcome::Lacks }
    }

    fn plan(&self, change: &Change) -> Result<(Choices, Prepared), FitError> {
        let choices = self.changed(change);
        match self.placing {
            Placing::Asked => self.request.prepare(&choices).map(|prepared| (choices, prepared)),
            Placing::Chosen(purpose) => self.request.fit(&choices, purpose).map(|f| (f.choices, f.prepared)),
        }
    }

    fn tell(&self, change: &Change) -> Result<Relaxation, FitError> {
        let words: Vec<String> = self.steps(change).map(|step| step.what(self.host())).collect();
        let (choices, prepared) = self.plan(change)?;
        self.relaxation(words.join(", and "), choices, &prepared)
    }

    fn host(&self) -> &str {
        &self.request.machine.device(self.request.machine.fallback()).name
    }

    fn relaxation(&self, what: String, choices: Choices, prepared: &Prepared) -> Result<Relaxation, FitError> {
        let predicted = Costs::new(self.request, &choices)?.predict(self.request, &choices, prepared);
        Ok(Relaxation { what, choices, predicted })
    }
}

/// All ways to take so many of `n`, in order.
fn subsets(n: usize, size: usize) -> Vec<Vec<usize>> {
    let grow = |sets: Vec<Vec<usize>>| {
        let longer = |set: Vec<usize>| (set.last().map_or(0, |l| l + 1)..n).map(move |i| [&set[..], &[i]].concat());
        sets.into_iter().flat_map(longer).collect()
    };
    (0..size).fold(vec![Vec::new()], |sets, _| grow(sets))
}

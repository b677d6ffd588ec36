//! What would make a model fit, each change planned again.

use super::Choices;
use super::fit::costs::Costs;
use super::fit::{FitError, Purpose, Request};
use super::longest::CONTEXT_BLOCK;
use super::saved::Predicted;
use loadmaster_graph::Bytes;

/// Changes that are told at most.
const MOST: usize = 6;
/// Changes that are looked for, if need be in pairs.
const WANTED: usize = 3;
/// Smallest micro-batch that is tried.
const SMALLEST_MICRO_BATCH: u32 = 16;

/// A change that makes the model fit: planned again, and checked.
#[derive(Clone, PartialEq, Debug)]
pub struct Relaxation {
    /// What changes.
    pub what: String,
    /// With it.
    pub choices: Choices,
    /// Predicted speed with it.
    pub predicted: Predicted,
}

type Change = (String, Choices);

/// Changes that make the model fit: single ones, then pairs if fewer than three of those do.
///
/// Errors: a model that cannot be prepared at all.
pub fn relaxations(request: &Request<'_>, choices: &Choices) -> Result<Vec<Relaxation>, FitError> {
    let kinds = ladders(request, choices);
    let mut found = Vec::new();
    for ladder in &kinds {
        if let Some(change) = first_that_fits(request, ladder) {
            found.push(change);
        }
    }
    for (i, ladder) in kinds.iter().enumerate() {
        let Some((what, furthest)) = ladder.last().filter(|_| found.len() < WANTED) else { break };
        for other in ladders(request, furthest).iter().skip(i + 1) {
            let both: Vec<Change> = other.iter().map(|(w, c)| (format!("{what}, and {w}"), c.clone())).collect();
            if let Some(change) = first_that_fits(request, &both).filter(|_| found.len() < WANTED) {
                found.push(change);
            }
        }
    }
    if let Ok(fitted) = request.fit(choices, Purpose::Decode) {
        found.insert(0, ("another placement (--fit)".to_owned(), fitted.choices));
    }
    found.truncate(MOST);
    let told = found.into_iter().map(|(what, choices)| {
        let prepared = request.prepare(&choices)?;
        let predicted = Costs::new(request, &choices)?.predict(request, &choices, &prepared);
        Ok(Relaxation { what, choices, predicted })
    });
    told.collect()
}

fn fits(request: &Request<'_>, choices: &Choices) -> bool {
    request.prepare(choices).is_ok_and(|prepared| request.short(&prepared) == Bytes::ZERO)
}

fn first_that_fits(request: &Request<'_>, ladder: &[Change]) -> Option<Change> {
    ladder.iter().find(|(_, choices)| fits(request, choices)).cloned()
}

/// Changes by kind, each from mild to strong.
fn ladders(request: &Request<'_>, now: &Choices) -> Vec<Vec<Change>> {
    let mut kinds = Vec::new();
    if now.copies > 1 {
        kinds.push(vec![("no pipelining (--copies 1)".to_owned(), Choices { copies: 1, ..now.clone() })]);
    }
    let smaller = std::iter::successors(Some(now.ubatch.min(now.batch).min(now.ctx) / 2), |n| Some(n / 2));
    kinds.push(
        smaller
            .take_while(|&n| n >= SMALLEST_MICRO_BATCH)
            .map(|n| (format!("a smaller micro-batch (--ubatch {n})"), Choices { ubatch: n, ..now.clone() }))
            .collect(),
    );
    if !now.flash_attn {
        kinds.push(vec![(
            "attention as one operation (--flash-attn on)".to_owned(),
            Choices { flash_attn: true, ..now.clone() },
        )]);
    }
    let quantized = ["q8_0", "q4_0"].into_iter().filter(|t| now.kv_type != *t).map(|t| {
        let choices = Choices { kv_type: t.to_owned(), flash_attn: true, ..now.clone() };
        (format!("a quantized KV cache (--kv-type {t} --flash-attn on)"), choices)
    });
    kinds.push(quantized.collect());
    let host = &request.machine.device(request.machine.fallback()).name;
    if request.model.params.experts.is_some() {
        let mut choices = now.clone();
        choices.override_tensor.insert(0, format!(r"_exps\.={host}"));
        kinds.push(vec![(format!(r"experts on the host (--override-tensor '_exps\.={host}')"), choices)]);
    }
    let all = request.model.params.layers.len() as u32 + 1;
    let offloaded = now.n_gpu_layers.map_or(all, |n| n.min(all));
    let fewer = (0..offloaded).rev().step_by((offloaded as usize / 16).max(1));
    kinds.push(
        fewer
            .map(|n| {
                (format!("fewer layers on GPUs (--n-gpu-layers {n})"), Choices { n_gpu_layers: Some(n), ..now.clone() })
            })
            .collect(),
    );
    if now.kv_offload {
        let choices = Choices { kv_offload: false, ..now.clone() };
        kinds.push(vec![("the KV cache on the host (--no-kv-offload)".to_owned(), choices)]);
    }
    let shorter = std::iter::successors(Some(now.ctx / 2), |n| Some(n / 2));
    kinds.push(
        shorter
            .take_while(|&n| n >= CONTEXT_BLOCK)
            .map(|n| (format!("a shorter context (--ctx {n})"), Choices { ctx: n, ..now.clone() }))
            .collect(),
    );
    kinds.retain(|k| !k.is_empty());
    kinds
}

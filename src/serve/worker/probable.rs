//! Probabilities of tokens, as they are told: natural logarithms, of the logits as the model gave them.

use super::job::{Chosen, Likely};
use loadmaster_models::tokenizer::{TokenId, Tokenizer};

/// The chosen token and the `count` most probable ones; of equal ones the lower token first. O(logits).
pub(super) fn chosen(tokenizer: Option<&Tokenizer>, logits: &[f32], token: TokenId, count: usize) -> Chosen {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - f64::from(largest)).exp()).sum();
    let offset = f64::from(largest) + sum.ln();
    let likely = |index: usize| Likely {
        bytes: tokenizer.and_then(|t| t.piece(TokenId::new(index)).ok()).unwrap_or_default(),
        logprob: logits.get(index).map_or(f64::NEG_INFINITY, |&l| f64::from(l) - offset),
    };
    let mut order: Vec<usize> = (0..logits.len()).collect();
    let better = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
    let count = count.min(order.len());
    if count > 0 && count < order.len() {
        order.select_nth_unstable_by(count - 1, better);
    }
    order.truncate(count);
    order.sort_unstable_by(better);
    Chosen { token: likely(token.index()), top: order.into_iter().map(likely).collect() }
}

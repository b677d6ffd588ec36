//! Choosing the next token from logits.
//!
//! The steps, in this order (llama.cpp's): repetition penalty, top-k, top-p, min-p, temperature, draw. A temperature of 0
//! means the largest logit after the penalty. Ties go to the lower token. Equal logits, history and seed give equal tokens.

use crate::random::Random;
use crate::tokenizer::TokenId;
use std::collections::VecDeque;

/// How the next token is chosen.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct SamplingConfig {
    /// Logits are divided by this; 0 chooses the largest. At least 0.
    pub temperature: f32,
    /// Only this many of the largest logits are kept.
    pub top_k: Option<u32>,
    /// Only the most probable tokens are kept that reach this probability together; 1 keeps all. Above 0, at most 1.
    pub top_p: f32,
    /// Tokens below this share of the largest probability are dropped; 0 drops none. At least 0, at most 1.
    pub min_p: f32,
    /// Logits of recent tokens are divided by this where positive, else multiplied; 1 changes nothing. Above 0.
    pub repeat_penalty: f32,
    /// How many tokens count as recent.
    pub repeat_last: u32,
    /// Seed of the draws.
    pub seed: u64,
}

impl SamplingConfig {
    /// The largest logit, always.
    #[must_use]
    pub const fn greedy() -> Self {
        Self { temperature: 0.0, top_k: None, top_p: 1.0, min_p: 0.0, repeat_penalty: 1.0, repeat_last: 64, seed: 0 }
    }
}

impl Default for SamplingConfig {
    /// llama.cpp's defaults, with the seed 0.
    fn default() -> Self {
        Self { temperature: 0.8, top_k: Some(40), top_p: 0.95, min_p: 0.05, ..Self::greedy() }
    }
}

/// Why no token can be chosen.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SamplingError {
    /// A setting out of range.
    #[error("{setting} is {value}, which is not {expected}")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: f64,
        /// What it must be.
        expected: &'static str,
    },
    /// There are no logits, or all are −∞.
    #[error("no token has a finite logit: the model's output is unusable")]
    NothingToChoose,
    /// A logit that is not a number, or +∞.
    #[error("the logit of {token} is {value}: the model's output is unusable")]
    Logit {
        /// The token.
        token: TokenId,
        /// Its logit.
        value: f32,
    },
}

/// The token with the largest logit; the lowest of equal ones. O(logits).
pub fn argmax(logits: &[f32]) -> Result<TokenId, SamplingError> {
    let mut best = Candidate { token: 0, logit: f32::NEG_INFINITY };
    for (token, &logit) in logits.iter().enumerate() {
        check_logit(token, logit)?;
        if logit > best.logit {
            best = Candidate { token, logit };
        }
    }
    if best.logit == f32::NEG_INFINITY { Err(SamplingError::NothingToChoose) } else { Ok(TokenId::new(best.token)) }
}

fn check_logit(token: usize, value: f32) -> Result<(), SamplingError> {
    if value.is_nan() || value == f32::INFINITY {
        return Err(SamplingError::Logit { token: TokenId::new(token), value });
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Candidate {
    token: usize,
    logit: f32,
}

/// Larger logits first, then lower tokens.
fn better(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

/// Chooses tokens, and remembers which came before.
#[derive(Clone, Debug)]
pub struct Sampler {
    config: SamplingConfig,
    random: Random,
    recent: VecDeque<TokenId>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler without history. Errors: a setting out of range.
    pub fn new(config: SamplingConfig) -> Result<Self, SamplingError> {
        check_config(&config)?;
        let random = Random::new(config.seed);
        Ok(Self { config, random, recent: VecDeque::new(), candidates: Vec::new() })
    }

    /// Remembers a token of the prompt, or one that was chosen.
    pub fn accept(&mut self, token: TokenId) {
        if self.recent.len() == self.config.repeat_last as usize {
            self.recent.pop_front();
        }
        if self.config.repeat_last > 0 {
            self.recent.push_back(token);
        }
    }

    /// Chooses a token; it is not remembered until [`Self::accept`]. O(logits), and a sort of what top-k keeps (of all
    /// where only top-p is set).
    pub fn sample(&mut self, logits: &[f32]) -> Result<TokenId, SamplingError> {
        if self.config.temperature == 0.0 && self.config.repeat_penalty == 1.0 {
            return argmax(logits);
        }
        self.load(logits)?;
        self.penalize();
        self.candidates.retain(|c| c.logit > f32::NEG_INFINITY);
        if self.candidates.is_empty() {
            return Err(SamplingError::NothingToChoose);
        }
        if self.config.temperature == 0.0 {
            let best = self.candidates.iter().min_by(|a, b| better(a, b));
            return best.map(|c| TokenId::new(c.token)).ok_or(SamplingError::NothingToChoose);
        }
        self.keep_top_k();
        self.keep_top_p();
        self.keep_min_p();
        Ok(self.draw())
    }

    fn load(&mut self, logits: &[f32]) -> Result<(), SamplingError> {
        self.candidates.clear();
        for (token, &logit) in logits.iter().enumerate() {
            check_logit(token, logit)?;
            self.candidates.push(Candidate { token, logit });
        }
        Ok(())
    }

    /// Candidates are still in the order of tokens.
    fn penalize(&mut self) {
        let penalty = self.config.repeat_penalty;
        if penalty == 1.0 {
            return;
        }
        let mut tokens: Vec<TokenId> = self.recent.iter().copied().collect();
        tokens.sort_unstable();
        tokens.dedup();
        for token in tokens {
            if let Some(c) = self.candidates.get_mut(token.index()) {
                c.logit = if c.logit > 0.0 { c.logit / penalty } else { c.logit * penalty };
            }
        }
    }

    fn keep_top_k(&mut self) {
        let Some(k) = self.config.top_k.map(|k| k as usize).filter(|&k| k > 0 && k < self.candidates.len()) else {
            return;
        };
        self.candidates.select_nth_unstable_by(k - 1, better);
        self.candidates.truncate(k);
    }

    fn keep_top_p(&mut self) {
        if self.config.top_p >= 1.0 {
            return;
        }
        self.candidates.sort_unstable_by(better);
        let weights = self.weights(1.0);
        let wanted = f64::from(self.config.top_p) * weights.iter().sum::<f64>();
        let mut sum = 0.0;
        let enough = weights.iter().position(|w| {
            sum += w;
            sum >= wanted
        });
        self.candidates.truncate(enough.map_or(weights.len(), |last| last + 1));
    }

    fn keep_min_p(&mut self) {
        if self.config.min_p <= 0.0 {
            return;
        }
        let least = self.largest() + self.config.min_p.ln();
        self.candidates.retain(|c| c.logit >= least);
    }

    fn largest(&self) -> f32 {
        self.candidates.iter().map(|c| c.logit).fold(f32::NEG_INFINITY, f32::max)
    }

    /// Probabilities up to a common factor; the largest is 1.
    fn weights(&self, temperature: f32) -> Vec<f64> {
        let largest = f64::from(self.largest());
        let weight = |c: &Candidate| ((f64::from(c.logit) - largest) / f64::from(temperature)).exp();
        self.candidates.iter().map(weight).collect()
    }

    fn draw(&mut self) -> TokenId {
        // A fixed order, so that a draw does not depend on how candidates were kept.
        self.candidates.sort_unstable_by(better);
        let weights = self.weights(self.config.temperature);
        let mut left = self.random.unit() * weights.iter().sum::<f64>();
        let chosen = weights.iter().position(|w| {
            left -= w;
            left < 0.0
        });
        // Rounding may leave a little over: then it is the last one. There is at least one candidate.
        let index = chosen.unwrap_or(weights.len().saturating_sub(1));
        TokenId::new(self.candidates[index].token)
    }
}

fn check_config(config: &SamplingConfig) -> Result<(), SamplingError> {
    let check = |setting, value: f32, fits: bool, expected| {
        if fits { Ok(()) } else { Err(SamplingError::Setting { setting, value: value.into(), expected }) }
    };
    let SamplingConfig { temperature, top_p, min_p, repeat_penalty, .. } = *config;
    check("the temperature", temperature, temperature.is_finite() && temperature >= 0.0, "a number from 0 on")?;
    check("top-p", top_p, top_p > 0.0 && top_p <= 1.0, "above 0 and at most 1")?;
    check("min-p", min_p, (0.0..=1.0).contains(&min_p), "between 0 and 1")?;
    let penalty = repeat_penalty.is_finite() && repeat_penalty > 0.0;
    check("the repetition penalty", repeat_penalty, penalty, "a number above 0")
}

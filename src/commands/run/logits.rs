//! `--logits-out`: a line of JSON for each step.

use crate::engine::EngineError;
use anyhow::Context;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// How many of the largest logits a line has.
const TOP: usize = 16;
/// Up to this vocabulary a line has all logits.
const SMALL_VOCABULARY: usize = 1024;

/// A step's logits, as in the golden files.
#[derive(Serialize, Debug)]
pub struct Line<'a> {
    step: usize,
    argmax: usize,
    mean: f64,
    rms: f64,
    top: Vec<(usize, f32)>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logits: Option<&'a [f32]>,
}

impl<'a> Line<'a> {
    /// Sums up a step. Ties go to the lower token. O(logits · log).
    pub fn new(step: usize, logits: &'a [f32]) -> Self {
        let count = logits.len().max(1) as f64;
        let sum: f64 = logits.iter().map(|&l| f64::from(l)).sum();
        let squares: f64 = logits.iter().map(|&l| f64::from(l) * f64::from(l)).sum();
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
        let top: Vec<_> = order.into_iter().take(TOP).map(|id| (id, logits[id])).collect();
        Self {
            step,
            argmax: top.first().map_or(0, |&(id, _)| id),
            mean: sum / count,
            rms: (squares / count).sqrt(),
            top,
            logits: (logits.len() <= SMALL_VOCABULARY).then_some(logits),
        }
    }
}

/// The file.
pub struct LogitsLog {
    path: PathBuf,
    out: BufWriter<File>,
    step: usize,
}

impl LogitsLog {
    /// Creates the file. Errors: with the path.
    pub fn create(path: &Path) -> anyhow::Result<Self> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        Ok(Self { path: path.to_owned(), out: BufWriter::new(file), step: 0 })
    }

    /// Writes the next step.
    pub fn push(&mut self, logits: &[f32]) -> anyhow::Result<()> {
        let line = serde_json::to_string(&Line::new(self.step, logits));
        let line = line.map_err(|e| EngineError::Settings(format!("logits that JSON cannot hold: {e}")))?;
        self.step += 1;
        writeln!(self.out, "{line}").with_context(|| self.path.display().to_string())
    }

    /// Writes what is left.
    pub fn finish(mut self) -> anyhow::Result<()> {
        self.out.flush().with_context(|| self.path.display().to_string())
    }
}

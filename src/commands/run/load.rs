//! How far loading is, on a terminal.

use loadmaster_graph::Bytes;
use std::io::{self, IsTerminal, Write};

/// A line that is written over as loading goes on.
pub struct ProgressLine {
    shown: Option<u64>,
    on_terminal: bool,
}

impl ProgressLine {
    /// Nothing shown yet; nothing ever is where standard error is no terminal.
    pub fn new(quiet: bool) -> Self {
        Self { shown: None, on_terminal: !quiet && io::stderr().is_terminal() }
    }

    /// Shows the share that is done, where it has changed.
    pub fn show(&mut self, done: Bytes, total: Bytes) {
        const WIDTH: usize = 30;
        if !self.on_terminal || total == Bytes::ZERO {
            return;
        }
        let percent = (u128::from(done.get()) * 100 / u128::from(total.get())) as u64;
        if self.shown == Some(percent) {
            return;
        }
        self.shown = Some(percent);
        let full = percent as usize * WIDTH / 100;
        // A terminal that is gone sees no progress.
        let _ = write!(io::stderr(), "\rloading [{:<WIDTH$}] {percent:3}% of {total} ", "#".repeat(full));
    }

    /// Takes the line away.
    pub fn clear(&mut self) {
        if self.shown.take().is_some() {
            let _ = write!(io::stderr(), "\r{:60}\r", "");
        }
    }
}

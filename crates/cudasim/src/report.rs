//! What the simulator found, as lines of text.

use std::collections::BTreeSet;
use std::fmt;

/// Findings kept; more are counted only.
const KEPT: usize = 200;

/// What is wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// An argument or a state that the driver API forbids.
    Invalid,
    /// Two operations on the same bytes, one of them writing, with nothing that orders them.
    Race,
    /// Something still alive when its context was released.
    Leak,
    /// Memory touched outside what is allocated.
    Memory,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Invalid => "invalid",
            Kind::Race => "race",
            Kind::Leak => "leak",
            Kind::Memory => "memory",
        })
    }
}

/// Findings in order of discovery, each line once.
#[derive(Default, Debug)]
pub struct Report {
    lines: Vec<String>,
    seen: BTreeSet<String>,
    dropped: usize,
}

impl Report {
    /// Adds a finding. `key` names it: the second of a key is dropped silently.
    pub fn add_once(&mut self, kind: Kind, key: String, text: impl fmt::Display) {
        if self.seen.contains(&key) {
            return;
        }
        if self.lines.len() >= KEPT {
            self.dropped += 1;
            return;
        }
        self.seen.insert(key);
        self.lines.push(format!("{kind}: {text}"));
    }

    /// Adds a finding.
    pub fn add(&mut self, kind: Kind, text: impl fmt::Display) {
        let text = text.to_string();
        self.add_once(kind, format!("{kind}: {text}"), text);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        if self.dropped > 0 {
            writeln!(f, "and {} more", self.dropped)?;
        }
        Ok(())
    }
}

//! Races: two operations on the same bytes, one of them writing, with nothing that orders them.
//!
//! Order is known when an operation is queued, so races are found then, whatever order the seed makes of them. Each
//! piece of memory keeps the accesses that the host does not know to be finished.

use std::sync::Arc;

use crate::clock::{Clock, Epoch};
use crate::report::Kind;
use crate::state::State;

/// A piece of memory, by its first address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Space {
    /// An allocation of a device.
    Device(u64),
    /// Pinned host memory.
    Pinned(u64),
}

impl Space {
    /// Its first address.
    pub fn base(self) -> u64 {
        match self {
            Space::Device(base) | Space::Pinned(base) => base,
        }
    }
}

/// What an operation does to a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    Read,
    Write,
}

/// Half-open range of addresses that an operation touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub space: Space,
    pub start: u64,
    pub end: u64,
    pub mode: Mode,
}

/// Who touches: when, knowing what, called how.
#[derive(Clone, Debug)]
pub struct Actor {
    /// None for the host, which needs no record: whatever is queued later knows of it.
    pub epoch: Option<Epoch>,
    pub clock: Clock,
    pub label: Arc<str>,
}

#[derive(Debug)]
struct Record {
    start: u64,
    end: u64,
    mode: Mode,
    epoch: Epoch,
    label: Arc<str>,
}

/// The accesses to one piece of memory that may still matter.
#[derive(Default, Debug)]
pub struct Shadow(Vec<Record>);

impl Shadow {
    /// Records an access; the earlier accesses that it conflicts with. Linear in the accesses kept.
    fn touch(&mut self, access: &Access, actor: &Actor, host: &Clock) -> Vec<(Arc<str>, Mode)> {
        let mut conflicts = Vec::new();
        self.0.retain(|old| {
            if host.covers(old.epoch) {
                return false;
            }
            let overlaps = old.start < access.end && access.start < old.end;
            if !overlaps {
                return true;
            }
            let known = actor.clock.covers(old.epoch);
            let harmless = old.mode == Mode::Read && access.mode == Mode::Read;
            if !known && !harmless {
                conflicts.push((Arc::clone(&old.label), old.mode));
            }
            // What conflicts with the old access and knows of the new one knows of the old one too.
            let replaced = known
                && actor.epoch.is_some()
                && access.start <= old.start
                && old.end <= access.end
                && (access.mode == Mode::Write || old.mode == Mode::Read);
            !replaced
        });
        if let Some(epoch) = actor.epoch {
            let label = Arc::clone(&actor.label);
            self.0.push(Record { start: access.start, end: access.end, mode: access.mode, epoch, label });
        }
        conflicts
    }
}

fn verb(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "reads",
        Mode::Write => "writes",
    }
}

/// A label up to the number of its operation: one report for each pair of call sites is enough.
fn without_number(label: &str) -> &str {
    label.split(NUMBER).next().unwrap_or(label)
}

/// What comes before the number of an operation in its label.
pub const NUMBER: &str = ", operation ";

impl State {
    /// Records what an operation touches and reports what it races with.
    pub(crate) fn touch(&mut self, accesses: &[Access], actor: &Actor) {
        for access in accesses.iter().filter(|a| a.start < a.end) {
            let Some((shadow, name)) = self.memory.shadow(access.space) else { continue };
            let name = name.to_owned();
            for (label, mode) in shadow.touch(access, actor, &self.host) {
                let base = access.space.base();
                let (from, to) = (access.start - base, access.end - base);
                let key = format!("race {} {} {name}", without_number(&actor.label), without_number(&label));
                let text = format_args!(
                    "{} {} bytes {from}..{to} of {name}, which {label} {}; nothing orders them",
                    actor.label,
                    verb(access.mode),
                    verb(mode)
                );
                self.report.add_once(Kind::Race, key, text);
            }
        }
    }

    /// Reports operations that the host does not know to be finished with memory that it gives back.
    pub(crate) fn free_races(&mut self, space: Space, call: &str) {
        let end = space.base() + self.memory.len(space);
        self.host_touch(space, space.base(), end, Mode::Write, call);
    }

    /// The host itself touches bytes from `start` to `end`.
    pub(crate) fn host_touch(&mut self, space: Space, start: u64, end: u64, mode: Mode, call: &str) {
        let actor = Actor { epoch: None, clock: self.host.clone(), label: Arc::from(call) };
        self.touch(&[Access { space, start, end, mode }], &actor);
    }
}

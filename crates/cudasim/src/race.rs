//! Races: two operations on the same bytes, one of them writing, with nothing that orders them.
//!
//! Order is known when an operation is queued, so races are found then, whatever order the seed makes of them.

use std::sync::Arc;

use crate::report::Kind;
use crate::shadow::{Actor, Mode};
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

/// Half-open range of addresses that an operation touches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    pub space: Space,
    pub start: u64,
    pub end: u64,
    pub mode: Mode,
}

/// What comes before the number of an operation in its label.
pub const NUMBER: &str = ", operation ";

/// A label up to the number of its operation: one report for each pair of call sites is enough.
fn without_number(label: &str) -> &str {
    label.split(NUMBER).next().unwrap_or(label)
}

fn verb(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "reads",
        Mode::Write => "writes",
    }
}

impl State {
    /// Records what an operation touches and reports what it races with.
    pub(crate) fn touch(&mut self, accesses: &[Access], actor: &Actor) {
        for access in accesses.iter().filter(|a| a.start < a.end) {
            let Some((shadow, name)) = self.memory.shadow(access.space) else { continue };
            let conflicts = shadow.touch(access.start, access.end, access.mode, actor);
            let (name, base) = (name.to_owned(), access.space.base());
            for other in conflicts {
                let key = format!("race {} {} {name}", without_number(&actor.label), without_number(&other.label));
                let text = format_args!(
                    "{} {} bytes {}..{} of {name}, which {} {}; nothing orders them",
                    actor.label,
                    verb(access.mode),
                    other.start - base,
                    other.end - base,
                    other.label,
                    verb(other.mode)
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

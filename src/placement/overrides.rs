//! Placement by name: `REGEX=DEVICE` sends the weights whose name matches to a device.

use loadmaster_graph::DeviceId;
use loadmaster_sched::Machine;
use regex::{Regex, RegexBuilder};

/// Most bytes that a compiled pattern may take: names of weights need few.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// Sends weights to a device by name.
#[derive(Clone, Debug)]
pub struct Override {
    pattern: Regex,
    device: DeviceId,
}

/// What is wrong with a `REGEX=DEVICE`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OverrideError {
    /// No `=`.
    #[error("override `{text}` is no REGEX=DEVICE")]
    Form {
        /// What was given.
        text: String,
    },
    /// The pattern does not parse.
    #[error("override `{text}`: {why}")]
    Pattern {
        /// What was given.
        text: String,
        /// What the pattern's parser says.
        why: String,
    },
    /// The machine has no such device.
    #[error("override `{text}`: there is no device `{device}`; there are {known}")]
    Device {
        /// What was given.
        text: String,
        /// The name that was not found.
        device: String,
        /// The names there are.
        known: String,
    },
}

impl Override {
    /// Parses `REGEX=DEVICE`; the last `=` divides.
    pub fn parse(text: &str, machine: &Machine) -> Result<Self, OverrideError> {
        let (pattern, name) = text.rsplit_once('=').ok_or_else(|| OverrideError::Form { text: text.to_owned() })?;
        let fault = |e: regex::Error| OverrideError::Pattern { text: text.to_owned(), why: e.to_string() };
        let pattern = RegexBuilder::new(pattern).size_limit(MAX_PATTERN_BYTES).build().map_err(fault)?;
        let device = machine.device_named(name).ok_or_else(|| OverrideError::Device {
            text: text.to_owned(),
            device: name.to_owned(),
            known: machine.devices().values().map(|d| &*d.name).collect::<Vec<_>>().join(", "),
        })?;
        Ok(Self { pattern, device })
    }

    /// The device for a weight, by the first override whose pattern is found in its name.
    #[must_use]
    pub fn find(overrides: &[Self], weight: &str) -> Option<DeviceId> {
        overrides.iter().find(|o| o.pattern.is_match(weight)).map(|o| o.device)
    }
}

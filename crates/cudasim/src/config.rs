//! What is simulated, read from one line of text.

use std::collections::BTreeSet;

use crate::fault::{Fault, Skip};

/// Devices that one configuration may ask for.
pub const MAX_DEVICES: u32 = 16;

/// Bytes that one simulated device may have.
pub const MAX_MEMORY: u64 = 1 << 38;

/// Multiprocessors that a device may say it has.
pub const MAX_MULTIPROCESSORS: u32 = 1024;

/// When operations run that may run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Each stream draws from the seed how eager it is; between calls, operations of eager streams run, others wait
    /// until something forces them.
    Adversarial,
    /// As early as possible.
    Eager,
    /// As late as possible.
    Lazy,
}

/// Pairs of devices, by direction.
pub type Pairs = BTreeSet<(u32, u32)>;

/// A whole configuration.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Bytes of memory per device; its length is the number of devices.
    pub memory: Vec<u64>,
    /// Which device can read and write which other.
    pub peer: Pairs,
    /// Pairs whose direct path changes a byte of what is copied.
    pub corrupt: Pairs,
    /// Seed of the order of execution.
    pub seed: u64,
    /// When operations run.
    pub order: Order,
    /// Compute capability times ten, as in `sm_80`.
    pub arch: u32,
    /// Multiprocessors of each device.
    pub multiprocessors: u32,
    /// Calls that fail.
    pub faults: Vec<Fault>,
    /// Waits that are left out.
    pub skips: Vec<Skip>,
    /// Whether every launch is checked for writes outside what its kernel declares.
    pub audit: Audit,
    /// Whether calls and operations are told as they happen.
    pub trace: Trace,
    /// Whether the functions of cuBLAS may be used.
    pub cublas: Offer,
}

/// Whether the functions of cuBLAS may be used, and for which products.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer {
    /// They may not: the backend uses its own kernels.
    Off,
    /// By the backend's rule.
    Rule,
    /// The same, but one element of each product is wrong.
    Wrong,
    /// For products with this many columns or more.
    From(u32),
}

/// Whether calls and operations are told as they happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trace {
    /// On the error stream, a line each: what a crash or a hang leaves behind.
    Stderr,
    /// No.
    Off,
}

/// Whether launches are compared before and after, in time linear in the memory of every allocation that they touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Audit {
    /// They are.
    Writes,
    /// They are not.
    Off,
}

/// Why a configuration was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("LOADMASTER_CUDASIM: `{part}`: {why}")]
pub struct ConfigError {
    part: String,
    why: &'static str,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            memory: vec![1 << 30],
            peer: Pairs::new(),
            corrupt: Pairs::new(),
            seed: 0,
            order: Order::Adversarial,
            arch: 80,
            multiprocessors: 4,
            faults: Vec::new(),
            skips: Vec::new(),
            audit: Audit::Off,
            trace: Trace::Off,
            cublas: Offer::Off,
        }
    }
}

impl Config {
    /// Reads `key=value` parts joined by commas; the crate's documentation lists them. Empty text is the default: one
    /// device of 1 GiB.
    pub fn parse(text: &str) -> Result<Config, ConfigError> {
        let mut config = Config::default();
        let (mut devices, mut memory) = (1, vec![1 << 30]);
        let (mut peer, mut corrupt) = ("all", "none");
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let refuse = |why| ConfigError { part: part.to_owned(), why };
            let (key, value) = part.split_once('=').ok_or_else(|| refuse("is not key=value"))?;
            match key {
                "devices" => devices = count(value).ok_or_else(|| refuse("is not 0 to 16 devices"))?,
                "memory" => memory = sizes(value).ok_or_else(|| refuse("is not sizes such as 64MiB or 64MiB+1GiB"))?,
                "peer" => peer = value,
                "corrupt-peer" => corrupt = value,
                "seed" => config.seed = value.parse().map_err(|_| refuse("is not a number"))?,
                "order" => config.order = order(value).ok_or_else(|| refuse("is not adversarial, eager or lazy"))?,
                "arch" => config.arch = value.parse().map_err(|_| refuse("is not a number such as 80"))?,
                "multiprocessors" => {
                    let found = value.parse().ok().filter(|n| (1..=MAX_MULTIPROCESSORS).contains(n));
                    config.multiprocessors = found.ok_or_else(|| refuse("is not a number from 1 to 1024"))?;
                }
                "fail" => config.faults.push(Fault::parse(value).map_err(refuse)?),
                "skip" => config.skips.push(Skip::parse(value).map_err(refuse)?),
                "audit" => config.audit = audit(value).ok_or_else(|| refuse("is not writes or off"))?,
                "trace" => config.trace = trace(value).ok_or_else(|| refuse("is not stderr or off"))?,
                "cublas" => {
                    config.cublas = offer(value).ok_or_else(|| refuse("is not off, rule, wrong or columns from 1"))?
                }
                _ => return Err(refuse("is not a known key")),
            }
        }
        let last = memory.last().copied().unwrap_or(1 << 30);
        config.memory = (0..devices as usize).map(|i| memory.get(i).copied().unwrap_or(last)).collect();
        config.peer = pairs(peer, devices)?;
        config.corrupt = pairs(corrupt, devices)?;
        Ok(config)
    }
}

fn count(value: &str) -> Option<u32> {
    value.parse().ok().filter(|n| *n <= MAX_DEVICES)
}

fn sizes(value: &str) -> Option<Vec<u64>> {
    value.split('+').map(size).collect()
}

fn size(value: &str) -> Option<u64> {
    const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];
    let (number, unit) = UNITS.iter().find_map(|(name, unit)| Some((value.strip_suffix(name)?, *unit)))?;
    number.parse::<u64>().ok()?.checked_mul(unit).filter(|bytes| (1..=MAX_MEMORY).contains(bytes))
}

fn order(value: &str) -> Option<Order> {
    match value {
        "adversarial" => Some(Order::Adversarial),
        "eager" => Some(Order::Eager),
        "lazy" => Some(Order::Lazy),
        _ => None,
    }
}

fn audit(value: &str) -> Option<Audit> {
    match value {
        "writes" => Some(Audit::Writes),
        "off" => Some(Audit::Off),
        _ => None,
    }
}

fn trace(value: &str) -> Option<Trace> {
    match value {
        "stderr" => Some(Trace::Stderr),
        "off" => Some(Trace::Off),
        _ => None,
    }
}

fn offer(value: &str) -> Option<Offer> {
    match value {
        "off" => Some(Offer::Off),
        "rule" => Some(Offer::Rule),
        "wrong" => Some(Offer::Wrong),
        _ => value.parse().ok().filter(|columns| *columns > 0).map(Offer::From),
    }
}

fn pairs(value: &str, devices: u32) -> Result<Pairs, ConfigError> {
    let mut pairs = Pairs::new();
    match value {
        "none" => return Ok(pairs),
        "all" => {
            let each = (0..devices).flat_map(|a| (0..devices).map(move |b| (a, b)));
            return Ok(each.filter(|(a, b)| a != b).collect());
        }
        _ => {}
    }
    for part in value.split('+') {
        let refuse = || ConfigError { part: part.to_owned(), why: "is not all, none, or pairs such as 0-1+1>2" };
        let (a, b) = part.split_once(['-', '>']).ok_or_else(refuse)?;
        let (a, b) = (a.parse::<u32>().map_err(|_| refuse())?, b.parse::<u32>().map_err(|_| refuse())?);
        if a == b || a >= devices || b >= devices {
            return Err(ConfigError { part: part.to_owned(), why: "names no pair of the simulated devices" });
        }
        pairs.insert((a, b));
        if part.contains('-') {
            pairs.insert((b, a));
        }
    }
    Ok(pairs)
}
